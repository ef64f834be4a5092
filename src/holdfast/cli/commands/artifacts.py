"""`holdfast artifacts`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from holdfast.cli.call import Call, command, shared
from holdfast.cli.completing import REF, RUN
from holdfast.cli.files import whole
from holdfast.cli.output import Column
from holdfast.desk.lookup import all_artifacts, artifacts_in
from holdfast.desk.putting import place_for, put
from holdfast.desk.words import age, plain, size
from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall, InvalidReference, NotFound
from holdfast.tree import path as paths
from holdfast.tree.artifact import Artifact, artifact


@click.group("artifacts", invoke_without_command=True)
@shared
@click.pass_context
def artifacts_command(context: click.Context) -> None:
    """List, read and add large values.

    They are kept beside the state, under the hash of their content, once a store.
    """
    if context.invoked_subcommand is None:
        if context.ensure_object(Call).out.json:
            raise click.UsageError("say what to do with them: ls, get or put")
        click.echo(context.get_help())


@command("ls", short_help="List them: all, or those in a version.")
@click.argument("ref", type=REF, required=False)
def _ls(call: Call, *, ref: str | None) -> None:
    """All large values of the store, or those in the state of a version, with their paths."""
    hf = call.hf
    columns = [
        Column("digest", lambda row: row["digest"], lambda row: row["digest"][:12], style="bold"),
        Column("size", lambda row: row["size"], lambda row: size(row["size"]), right=True),
    ]
    if ref is None:
        rows: list[dict[str, Any]] = [
            {"digest": each.digest, "size": each.size, "at": each.at} for each in all_artifacts(hf)
        ]
        columns.append(Column("came", lambda row: row["at"], lambda row: age(row["at"]), spare=1))
    else:
        rows = [
            {"digest": found.digest, "size": found.size, "path": paths.show(where), "name": found.name}
            for where, found in artifacts_in(hf.version(ref).state)
        ]
        columns.append(Column("path", lambda row: row["path"], least=12))
        columns.append(Column("name", lambda row: row["name"], least=8, spare=1))
    call.out.rows(rows, columns, lambda row: row, empty="no large values")


@command("get", short_help="Read one, by its digest or its place.")
@click.argument("what", metavar="DIGEST|REF")
@click.argument("path", required=False)
@click.option("-o", "--output", metavar="FILE", help="Write it here; else to standard output.")
@click.option("--force", is_flag=True, help="Overwrite the file if it is there.")
def _get(call: Call, what: str, *, path: str | None, output: str | None, force: bool) -> None:
    """Read a large value: by its digest, or by a version and a path in its state."""
    found = _find(call.hf, what) if path is None else call.hf.version(what).get(path)
    if isinstance(found, str | bytes):
        found = artifact(found.encode() if isinstance(found, str) else found)
    if not isinstance(found, Artifact):
        raise InvalidCall(
            f"there is no large value at {path!r}, but {type(found).__name__}: holdfast show reads it"
        )
    if output is None:
        if sys.stdout.isatty():
            raise click.UsageError("bytes would spoil the terminal: say -o FILE, or use a pipe")
        for piece in found.pieces():
            sys.stdout.buffer.write(piece)
        return
    with whole(Path(output), overwrite=force) as file:
        for piece in found.pieces():
            file.write(piece)
    call.out.done(
        {"digest": found.digest, "size": found.size, "file": output}, f"{size(found.size)} in {output}"
    )


@command("put", short_help="Put a file into a history kept by hand.")
@click.argument("run", type=RUN)
@click.argument("path")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--step", default="put", show_default=True, help="The name of the new version's step.")
def _put(call: Call, run: str, path: str, file: str, *, step: str) -> None:
    """Put a file into the state of a run that is kept by hand, at PATH: a new version. The run is made if need be."""
    hf = call.hf
    run, segments = place_for(hf, run, path)
    with Path(file).open("rb"):
        """One that cannot be read is told as any other file."""
    content = artifact(file)
    head = put(hf, run, segments, content, step=step)
    call.out.done(
        {"run": run, "version": head.number, "path": path, "digest": content.digest, "size": content.size},
        plain(f"{run}@{head.number} {path}: {size(content.size)}, {content.digest[:12]}"),
    )


for _command in (_ls, _get, _put):
    artifacts_command.add_command(_command)


def _find(hf: Holdfast, digest: str) -> Artifact:
    """A large value by its digest or a unique beginning of it."""
    found = [each.digest for each in all_artifacts(hf) if each.digest.startswith(digest.lower())]
    if len(found) > 1:
        raise InvalidReference(f"{digest!r} could be any of {', '.join(each[:16] for each in found[:5])}")
    if not found:
        raise NotFound(f"there is no large value {digest!r:.80}: `holdfast artifacts ls` lists them")
    return hf.artifact(found[0])
