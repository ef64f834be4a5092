"""Taking along: snapshots, bundles, large values."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, BinaryIO, TypedDict

from msgspec import Meta

from holdfast.desk.lookup import run_of, within
from holdfast.desk.putting import place_for, put
from holdfast.desk.records import version_record
from holdfast.desk.shapes import VersionShown
from holdfast.errors import InvalidSnapshot
from holdfast.history.snapshot import validate
from holdfast.tree.artifact import artifact
from holdfast.web.fields import Limit, Name, Query
from holdfast.web.incoming import Incoming
from holdfast.web.operation import Attachment, Role, Table, Upload
from holdfast.web.reading import check_depth
from holdfast.web.service import Service

TABLE = Table("transfer")

_PIECE = 1 << 20
#: Bytes of what is sent here, and of a snapshot among it, which is read into memory.
_MOST = 1 << 30
_SNAPSHOT = 64 << 20
_MAGIC = b"holdfast.bundle "

Digest = Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")]


class Imported(TypedDict):
    """The run that was made."""

    run: str


class ImportQuery(Query):
    """Under which id."""

    run: Name | None = None


class ArtifactsQuery(Query):
    """Which page."""

    limit: Limit = 100
    after: Digest | None = None


class ArtifactListed(TypedDict):
    """A large value in the store."""

    digest: str
    size: int
    at: datetime


class Artifacts(TypedDict):
    """Large values in order of their digests. `next` is what to pass as `after`; null if there are no more."""

    artifacts: list[ArtifactListed]
    next: str | None


@TABLE.add("GET", "/runs/{run}/versions/{version}/snapshot", Role.VIEWER)
def export_snapshot(service: Service, run: str, version: str) -> dict[str, Any]:
    """A version with its state as a document, for people and other tools, and for `POST /imports`."""
    found = within(service.hf, service.hf.find(run), version)
    return service.hf.history(found.run).export(found)


@TABLE.add("GET", "/runs/{run}/bundle", Role.VIEWER)
def export_bundle(service: Service, run: str) -> Attachment:
    """A whole run with all its versions, as a file."""
    run = run_of(service.hf, run, "a bundle holds a whole run")
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it has been sent
    try:
        service.hf.export_run(run, file)
        size = file.tell()
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return Attachment(f"{run}.holdfast".replace("/", "_"), _pieces(file), size=size)


@TABLE.add(
    "POST",
    "/imports",
    Role.OPERATOR,
    upload=Upload(("application/octet-stream", "application/json")),
    most=_MOST,
)
def import_run(service: Service, query: ImportQuery, body: BinaryIO) -> Imported:
    """Read a bundle or a snapshot. Never overwrites."""
    start = body.read(len(_MAGIC))
    body.seek(0)
    if start == _MAGIC:
        return {"run": service.hf.import_run(body, run_id=query.run).id}
    text = body.read(_SNAPSHOT + 1)
    if len(text) > _SNAPSHOT:
        raise InvalidSnapshot(f"a snapshot has at most {_SNAPSHOT:,} bytes: send a bundle")
    check_depth(text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidSnapshot(f"this is no bundle, and no snapshot: {error}") from None
    problems = validate(document).problems
    if problems:
        raise InvalidSnapshot(f"this snapshot cannot be imported: {'; '.join(problems)}", problems=problems)
    return {"run": service.hf.import_snapshot(document, run_id=query.run).run}


class PutQuery(Query):
    """Where in the state, under which name, and what the new version's step is called."""

    path: Annotated[str, Meta(min_length=1, max_length=10_000)]
    name: Name | None = None
    step: Name = "put"


@TABLE.add("PUT", "/runs/{run}/artifacts", Role.OPERATOR, upload=Upload(), most=_MOST)
def put_artifact(service: Service, run: str, query: PutQuery, body: BinaryIO) -> VersionShown:
    """Put a file into the state of a run that is kept by hand: a new version. The run is made if need be."""
    found, segments = place_for(service.hf, run, query.path)
    Incoming(service.hf).refuse_secret(segments)
    content = artifact(body, query.name)
    return version_record(put(service.hf, found, segments, content, step=query.step))


@TABLE.add("GET", "/artifacts", Role.VIEWER)
def list_artifacts(service: Service, query: ArtifactsQuery) -> Artifacts:
    """The large values of the store."""
    found = service.hf.artifacts(after=query.after, limit=query.limit + 1)
    page = found[: query.limit]
    return {
        "artifacts": [{"digest": each.digest, "size": each.size, "at": each.at} for each in page],
        "next": page[-1].digest if len(found) > query.limit else None,
    }


@TABLE.add("GET", "/artifacts/{digest}", Role.VIEWER)
def get_artifact(service: Service, digest: str) -> Attachment:
    """A large value as a file, by its whole digest."""
    found = service.hf.artifact(digest)
    return Attachment(found.name or found.digest, found.pieces(), size=found.size)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE):
            yield piece
