"""`holdfast export`, `holdfast import` and `holdfast import-langgraph`"""

from __future__ import annotations

import importlib
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

from holdfast.cli import exit_codes
from holdfast.cli.context import REF, CommandContext, command, file_exists_error, open_output_file
from holdfast.engine import Holdfast
from holdfast.errors import AlreadyExists, HoldfastError, InvalidCall, InvalidSnapshot, NotFound
from holdfast.history import snapshot
from holdfast.operator_view.lookup import resolve_run
from holdfast.operator_view.text import count, dumps, plain

BUNDLE = ".holdfast"
_MAX_NAME = 150
#: The first bytes of a bundle.
_MAGIC = b"holdfast.bundle "


@command("export")
@click.argument("refs", nargs=-1, type=REF, metavar="REF...")
@click.option("--all", "everything", is_flag=True, help="All runs.")
@click.option("--bundle", is_flag=True, help="Whole runs with all versions, one file per run.")
@click.option("-o", "--output", metavar="PATH", help="A file, or a folder for several.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def export_command(
    ctx: CommandContext,
    refs: tuple[str, ...],
    *,
    everything: bool,
    bundle: bool,
    output: str | None,
    force: bool,
) -> None:
    """Write versions as JSON, or whole runs as bundles.

    Several versions are written to standard output, one per line, or with -o to a folder, one per file.

    \b
    holdfast export RUN@12 > snapshot.json
    holdfast export --bundle RUN -o run.holdfast
    holdfast export --bundle --all -o backup/
    """
    hf = ctx.hf
    if everything == bool(refs):
        raise click.UsageError("name what to export, or use --all")
    wanted = [run.id for run in hf.iter_runs()] if everything else _resolve(hf, refs, bundle)
    if output is None or output == "-":
        if bundle:
            raise click.UsageError("a bundle is written to a file: use -o PATH")
        for ref in wanted:
            ctx.out.document(_snapshot(hf, ref))
        return
    folder = Path(output)
    if len(wanted) == 1 and not everything and not folder.is_dir():
        targets = {folder: wanted[0]}
    else:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        targets = {folder / file_name(ref, BUNDLE if bundle else ".json"): ref for ref in wanted}
    existing = {path for path in targets if os.path.lexists(path)}
    if existing and not force:
        raise file_exists_error(min(existing))
    with ctx.out.progress("exporting") as advance:
        for done, (path, ref) in enumerate(targets.items(), 1):
            # A file that appeared since may be one of these, where names differ only by case.
            _write(hf, ref, path, bundle=bundle, overwrite=path in existing)
            advance(done, len(targets))
    ctx.out.done(
        {"exported": [{"ref": ref, "file": str(path)} for path, ref in targets.items()]},
        f"{count(len(targets), 'file')} written to {output}",
    )


@command("import")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--run-id", metavar="ID", help="The id of the imported run; for a single run.")
@click.option("--keep-secrets", is_flag=True, help="Import bundles with values that the store redacts.")
def import_command(
    ctx: CommandContext, paths: tuple[str, ...], *, run_id: str | None, keep_secrets: bool
) -> int:
    """Import snapshots and bundles. Never overwrites.

    A folder means all .json and .holdfast files in it, - means standard input. A file may hold several snapshots, as
    `export` prints them. Files that cannot be read are listed, and the others are imported.

    \b
    holdfast export RUN-1 RUN-2 --store old.db | holdfast import -
    """
    files = [file for path in paths for file in _files(path)]
    if run_id is not None and len(files) != 1:
        raise click.UsageError("--run-id is for a single file")
    made: list[dict[str, Any]] = []
    refused: list[tuple[str, Exception]] = []
    with ctx.out.progress("importing") as advance:
        for done, file in enumerate(files, 1):
            try:
                found = _contents(file)
                if run_id is not None and len(found) != 1:
                    raise click.UsageError(f"--run-id is for a single run, and {file} holds {len(found)}")
                for each in found:
                    try:
                        # The store is created for the first run that can be imported.
                        made.append({"file": file, "run": _import(ctx, each, run_id, keep_secrets)})
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
        ctx.out.say(f"{file}: {_error_text(file, why)}")
    ctx.out.done(
        {
            "imported": made,
            "refused": [{"file": file, "why": _error_text(file, why)} for file, why in refused],
        },
        "\n".join(each["run"] for each in made) or "nothing was imported",
    )
    return _exit_code(refused[0][1]) if refused else exit_codes.DONE


def file_name(ref: str, ending: str) -> str:
    """Return a file name that is valid on every system, and unique for the reference."""
    name = quote(ref, safe="@~ ")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > _MAX_NAME:
        name = f"{name[:_MAX_NAME]}-{sha256(ref.encode()).hexdigest()[:12]}"
    return name + ending


def _resolve(hf: Holdfast, refs: tuple[str, ...], bundle: bool) -> list[str]:
    """Return what to export, without duplicates."""
    whole_run = "a bundle holds a whole run; omit --bundle to export a version"
    return list(dict.fromkeys(resolve_run(hf, ref, whole_run) if bundle else ref for ref in refs))


def _snapshot(hf: Holdfast, ref: str) -> dict[str, Any]:
    version = hf.version(ref)
    return hf.history(version.run).export(version)


def _write(hf: Holdfast, ref: str, path: Path, *, bundle: bool, overwrite: bool) -> None:
    with open_output_file(path, overwrite=overwrite) as file:
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
        raise NotFound(f"nothing to import in {path}: it has no .json or {BUNDLE} files")
    yield from found


def _contents(file: str) -> list[Any]:
    """Return the snapshots in a file, or the bundle to read."""
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
        raise InvalidSnapshot(f"{file} is neither a snapshot nor a bundle: {error}") from None


def _documents(text: str) -> Iterator[Any]:
    """Yield the JSON documents of a text."""
    decoder = JSONDecoder()
    text = text.strip()
    at = 0
    while at < len(text) or not at:
        document, at = decoder.raw_decode(text, at)
        yield document
        while text[at : at + 1].isspace():
            at += 1


def _import(ctx: CommandContext, found: Any, run_id: str | None, keep_secrets: bool) -> str:
    try:
        if isinstance(found, Path | BytesIO):
            secrets: Literal["refuse", "keep"] = "keep" if keep_secrets else "refuse"
            return ctx.create_store().import_run(found, run_id=run_id, secrets=secrets).id
        # No store is created for an invalid snapshot.
        snapshot.read(found)
        return ctx.create_store().import_snapshot(found, run_id=run_id).run
    except AlreadyExists as error:
        run = error.details.get("run")
        raise AlreadyExists(
            f"run {run!r} exists: import it under another id with --run-id, or delete it first", run=run
        ) from None


def _error_text(file: str, error: Exception) -> str:
    text = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return text.removeprefix(f"{file} ")


def _exit_code(error: Exception) -> int:
    return exit_codes.FILES if isinstance(error, OSError) else exit_codes.code_of(error)


@command("import-langgraph")
@click.argument("file", metavar="FILE")
@click.option(
    "--allow", multiple=True, metavar="MODULE.CLASS", help="An application class that channels contain."
)
def import_langgraph_command(ctx: CommandContext, file: str, *, allow: tuple[str, ...]) -> int:
    """Copy the threads of a LangGraph SqliteSaver database, and compare each checkpoint with its copy.

    The file is only read. Checkpoints that were copied before are compared, not written again, so an interrupted import
    can be repeated.

    \b
    holdfast import-langgraph old.sqlite --store runs.db
    """
    try:
        from holdfast.integrations.langgraph import HoldfastSaver
        from holdfast.integrations.langgraph.import_sqlite import import_sqlite, open_database
    except ImportError as error:
        raise InvalidCall(f"this needs LangGraph: pip install 'holdfast[langgraph]' ({error})") from None
    classes = [_import_class(name) for name in allow]
    with open_database(file):
        # Create no store for a file that cannot be read.
        saver = HoldfastSaver(ctx.create_store(), allow=classes)
    with ctx.out.progress("importing") as advance:
        done = import_sqlite(file, saver, allow=classes, progress=advance)
    for thread, namespace, why in done.refused:
        ctx.out.say(plain(f"thread {thread!r}{f', namespace {namespace!r}' if namespace else ''}: {why}"))
    record = {
        "threads": done.threads,
        "checkpoints": done.checkpoints,
        "writes": done.writes,
        "refused": [
            {"thread": thread, "namespace": namespace, "why": str(why)}
            for thread, namespace, why in done.refused
        ],
    }
    total = f"{count(done.checkpoints, 'checkpoint')} of {count(done.threads, 'thread')}"
    ctx.out.done(record, f"copied {total}, all verified")
    return exit_codes.code_of(done.refused[0][2]) if done.refused else exit_codes.DONE


def _import_class(name: str) -> type:
    module, _, inner = name.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), inner) if module else None
    except (ImportError, AttributeError) as error:
        raise InvalidCall(f"--allow {name}: {error}") from None
    if not isinstance(found, type):
        raise InvalidCall(f"--allow takes a class, such as shop.models.Order, not {name!r}")
    return found
