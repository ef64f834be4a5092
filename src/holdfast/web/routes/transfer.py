"""Export and import: snapshots, bundles, artifacts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO, TypedDict

from msgspec import Meta

from holdfast.errors import InvalidSnapshot
from holdfast.model.public import StoredArtifact
from holdfast.operator_view.lookup import find_artifact_target, resolve_run, store_artifact, version_in_run
from holdfast.operator_view.records import VersionView, version_view
from holdfast.tree.artifact import artifact
from holdfast.web.operation import Attachment, Limit, Name, OperationTable, Query, Role, UploadBody
from holdfast.web.request import RequestValues, check_depth
from holdfast.web.service import Service

TABLE = OperationTable("import and export")

_PIECE = 1 << 20
#: Limits in bytes of an upload, and of a snapshot, which is read into memory.
_MOST = 1 << 30
_SNAPSHOT = 64 << 20
_MAGIC = b"holdfast.bundle "

Digest = Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")]


class ImportedRun(TypedDict):
    """Imported run."""

    run: str


class ImportQuery(Query):
    """Id of the new run."""

    run: Name | None = None


class ArtifactsQuery(Query):
    """Page of the artifacts."""

    limit: Limit = 100
    after: Digest | None = None


class ArtifactPage(TypedDict):
    """Artifacts in order of their digests. `next` is the `after` of the next page; null on the last page."""

    artifacts: list[StoredArtifact]
    next: str | None


@TABLE.add("GET", "/runs/{run}/versions/{version}/snapshot", Role.VIEWER)
def export_snapshot(service: Service, run: str, version: str) -> dict[str, Any]:
    """Export a version with its state as a document, for people, other tools, and `POST /imports`."""
    found = version_in_run(service.hf, service.hf.get(run, prefix=True).id, version)
    return service.hf.history(found.run).export(found)


@TABLE.add("GET", "/runs/{run}/bundle", Role.VIEWER)
def export_bundle(service: Service, run: str) -> Attachment:
    """Export a run with all its versions, as a file."""
    run = resolve_run(service.hf, run, "a bundle holds a whole run")
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
    upload=UploadBody(("application/octet-stream", "application/json")),
    most=_MOST,
)
def import_run(service: Service, query: ImportQuery, body: BinaryIO) -> ImportedRun:
    """Import a bundle or a snapshot. Never overwrites a run."""
    start = body.read(len(_MAGIC))
    body.seek(0)
    if start == _MAGIC:
        return {"run": service.hf.import_run(body, run_id=query.run).id}
    text = body.read(_SNAPSHOT + 1)
    if len(text) > _SNAPSHOT:
        raise InvalidSnapshot(f"a snapshot may have at most {_SNAPSHOT:,} bytes: send a bundle")
    check_depth(text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidSnapshot(f"this is neither a bundle nor a snapshot: {error}") from None
    return {"run": service.hf.import_snapshot(document, run_id=query.run).run}


class PutQuery(Query):
    """Path in the state, name of the artifact, and step name of the new version."""

    path: Annotated[str, Meta(min_length=1, max_length=10_000)]
    name: Name | None = None
    step: Name = "put"


@TABLE.add("PUT", "/runs/{run}/artifacts", Role.OPERATOR, upload=UploadBody(), most=_MOST)
def put_artifact(service: Service, run: str, query: PutQuery, body: BinaryIO) -> VersionView:
    """Put a file into the state of a manual run: a new version. The run is created if it does not exist."""
    found, segments = find_artifact_target(service.hf, run, query.path)
    RequestValues(service.hf).refuse_secret(segments)
    content = artifact(body, query.name)
    return version_view(store_artifact(service.hf, found, segments, content, step=query.step))


@TABLE.add("GET", "/artifacts", Role.VIEWER)
def list_artifacts(service: Service, query: ArtifactsQuery) -> ArtifactPage:
    """List the artifacts of the store."""
    found = service.hf.artifacts(after=query.after, limit=query.limit + 1)
    page = found[: query.limit]
    return {
        "artifacts": page,
        "next": page[-1].digest if len(found) > query.limit else None,
    }


@TABLE.add("GET", "/artifacts/{digest}", Role.VIEWER)
def get_artifact(service: Service, digest: str) -> Attachment:
    """Return an artifact as a file, by its complete digest."""
    found = service.hf.artifact(digest)
    return Attachment(found.name or found.digest, found.pieces(), size=found.size)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE):
            yield piece
