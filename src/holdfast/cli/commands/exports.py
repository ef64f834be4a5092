"""`holdfast export` and `holdfast import`"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from hashlib import sha256
from io import BytesIO
from json import JSONDecoder
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.completing import REF
from holdfast.cli.files import taken, whole
from holdfast.desk.lookup import run_of
from holdfast.desk.words import count, dumps
from holdfast.engine import Holdfast
from holdfast.errors import AlreadyExists, HoldfastError, InvalidSnapshot, NotFound
from holdfast.history.snapshot import validate

BUNDLE = ".holdfast"
_LONGEST = 150
#: How a bundle begins.
_MAGIC = b"holdfast.bundle "


@command("export")
@click.argument("refs", nargs=-1, type=REF, metavar="REF...")
@click.option("--all", "everything", is_flag=True, help="All runs.")
@click.option("--bundle", is_flag=True, help="Whole runs with all their versions, a file each.")
@click.option("-o", "--output", metavar="PATH", help="A file, or for several a folder.")
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
def export_command(
    call: Call, refs: tuple[str, ...], *, everything: bool, bundle: bool, output: str | None, force: bool
) -> None:
    """Write versions as JSON, or whole runs as bundles.

    Several versions go to standard output a line each, or with -o into a folder, a file each.

    \b
    holdfast export RUN@12 > snapshot.json
    holdfast export --bundle RUN -o run.holdfast
    holdfast export --bundle --all -o backup/
    """
    hf = call.hf
    if everything == bool(refs):
        raise click.UsageError("name what to export, or say --all")
    wanted = [run.id for run in hf.iter_runs()] if everything else _named(hf, refs, bundle)
    if output is None or output == "-":
        if bundle:
            raise click.UsageError("a bundle goes into a file: say -o PATH")
        for ref in wanted:
            call.out.document(_snapshot(hf, ref))
        return
    folder = Path(output)
    if len(wanted) == 1 and not everything and not folder.is_dir():
        targets = {folder: wanted[0]}
    else:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        targets = {folder / file_name(ref, BUNDLE if bundle else ".json"): ref for ref in wanted}
    there = {path for path in targets if os.path.lexists(path)}
    if there and not force:
        raise taken(min(there))
    with call.out.progress("exporting") as advance:
        for done, (path, ref) in enumerate(targets.items(), 1):
            # What came meanwhile may be a file of this very call, where names differ by their case only.
            _write(hf, ref, path, bundle=bundle, overwrite=path in there)
            advance(done, len(targets))
    call.out.done(
        {"exported": [{"ref": ref, "file": str(path)} for path, ref in targets.items()]},
        f"{count(len(targets), 'file')} written to {output}",
    )


@command("import")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--run-id", metavar="ID", help="Call the run so; for a single one.")
@click.option("--keep-secrets", is_flag=True, help="Import bundles that hold values which the store redacts.")
def import_command(call: Call, paths: tuple[str, ...], *, run_id: str | None, keep_secrets: bool) -> int:
    """Read snapshots and bundles. Never overwrites.

    A folder stands for all .json and .holdfast files in it, - for standard input. A file may hold several snapshots, as
    `export` prints them. What cannot be read is named, and the others are read nevertheless.

    \b
    holdfast export RUN-1 RUN-2 --store old.db | holdfast import -
    """
    files = [file for path in paths for file in _files(path)]
    if run_id is not None and len(files) != 1:
        raise click.UsageError("--run-id is for a single file")
    made: list[dict[str, Any]] = []
    refused: list[tuple[str, Exception]] = []
    with call.out.progress("importing") as advance:
        for done, file in enumerate(files, 1):
            try:
                found = _found(file)
                if run_id is not None and len(found) != 1:
                    raise click.UsageError(f"--run-id is for a single run, and {file} holds {len(found)}")
                for each in found:
                    try:
                        # A store is made when there is something to put into it.
                        made.append({"file": file, "run": _read(call, each, run_id, keep_secrets)})
                    except HoldfastError as error:
                        if len(files) == len(found) == 1:
                            raise
                        refused.append((file, error))
            except (HoldfastError, OSError) as error:
                if len(files) == 1:
                    raise
                refused.append((file, error))
            advance(done, len(files))
    for file, why in refused:
        call.out.say(f"{file}: {_why(file, why)}")
    call.out.done(
        {"imported": made, "refused": [{"file": file, "why": _why(file, why)} for file, why in refused]},
        "\n".join(each["run"] for each in made) or "nothing was imported",
    )
    return _code(refused[0][1]) if refused else exits.DONE


def file_name(ref: str, ending: str) -> str:
    """A name for a file that any system takes, from a reference that may hold anything; another for each."""
    name = quote(ref, safe="@~ ")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > _LONGEST:
        name = f"{name[:_LONGEST]}-{sha256(ref.encode()).hexdigest()[:12]}"
    return name + ending


def _named(hf: Holdfast, refs: tuple[str, ...], bundle: bool) -> list[str]:
    """What is wanted, each once."""
    whole_run = "a bundle holds a whole run; without --bundle, a version is exported"
    return list(dict.fromkeys(run_of(hf, ref, whole_run) if bundle else ref for ref in refs))


def _snapshot(hf: Holdfast, ref: str) -> dict[str, Any]:
    version = hf.version(ref)
    return hf.history(version.run).export(version)


def _write(hf: Holdfast, ref: str, path: Path, *, bundle: bool, overwrite: bool) -> None:
    with whole(path, overwrite=overwrite) as file:
        if bundle:
            hf.export_run(ref, file)
        else:
            file.write(f"{dumps(_snapshot(hf, ref), indent=2)}\n".encode())


def _files(path: str) -> Iterator[str]:
    folder = Path(path)
    if not folder.is_dir():
        yield path
        return
    found = sorted(str(each) for each in folder.iterdir() if each.suffix in (BUNDLE, ".json"))
    if not found:
        raise NotFound(f"there is nothing to import in {path}: no file in it ends with .json or {BUNDLE}")
    yield from found


def _found(file: str) -> list[Any]:
    """The snapshots in a file, checked; or what can be read as a bundle."""
    content = sys.stdin.buffer.read() if file == "-" else None
    if content is None:
        with Path(file).open("rb") as opened:
            start = opened.read(64).lstrip()
        if start.startswith(_MAGIC):
            return [Path(file)]
        content = Path(file).read_bytes()
    elif content.startswith(_MAGIC):
        return [BytesIO(content)]
    try:
        return list(_documents(content.decode()))
    except (ValueError, RecursionError) as error:
        raise InvalidSnapshot(f"{file} is no snapshot and no bundle: {error}") from None


def _documents(text: str) -> Iterator[Any]:
    """JSON documents, one after the other."""
    decoder = JSONDecoder()
    text = text.strip()
    at = 0
    while at < len(text) or not at:
        document, at = decoder.raw_decode(text, at)
        yield document
        while text[at : at + 1].isspace():
            at += 1


def _read(call: Call, found: Any, run_id: str | None, keep_secrets: bool) -> str:
    try:
        if isinstance(found, Path | BytesIO):
            secrets: Literal["refuse", "keep"] = "keep" if keep_secrets else "refuse"
            return call.make().import_run(found, run_id=run_id, secrets=secrets).id
        problems = validate(found).problems
        if problems:
            raise InvalidSnapshot(
                f"this snapshot cannot be imported: {'; '.join(problems)}", problems=problems
            )
        return call.make().import_snapshot(found, run_id=run_id).run
    except AlreadyExists as error:
        run = error.details.get("run")
        raise AlreadyExists(
            f"run {run!r} exists: import it under another name with --run-id, or delete it first", run=run
        ) from None


def _why(file: str, error: Exception) -> str:
    text = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return text.removeprefix(f"{file} ")


def _code(error: Exception) -> int:
    return exits.FILES if isinstance(error, OSError) else exits.code_of(error)
