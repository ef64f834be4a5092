"""`holdfast artifacts`"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from holdfast.cli.context import REF, RUN, CommandContext, command, open_output_file, shared_options
from holdfast.cli.output import Column
from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall, InvalidReference, NotFound
from holdfast.operator_view.lookup import find_artifact_target, find_artifacts, iter_artifacts, store_artifact
from holdfast.operator_view.text import age, plain, size
from holdfast.tree import path as paths
from holdfast.tree.artifact import Artifact, artifact


@click.group("artifacts", invoke_without_command=True)
@shared_options
@click.pass_context
def artifacts_command(click_context: click.Context) -> None:
    """List, read and add artifacts: large values that the store holds once, by the hash of their content."""
    if click_context.invoked_subcommand is None:
        if click_context.ensure_object(CommandContext).out.json:
            raise click.UsageError("name a subcommand: ls, get or put")
        click.echo(click_context.get_help())


@command("ls", short_help="List all artifacts, or those in a version.")
@click.argument("ref", type=REF, required=False)
def _ls(ctx: CommandContext, *, ref: str | None) -> None:
    """List the artifacts of the store, or those in the state of a version with their paths."""
    hf = ctx.hf
    columns = [
        Column("digest", lambda row: row["digest"], lambda row: row["digest"][:12], style="bold"),
        Column("size", lambda row: row["size"], lambda row: size(row["size"]), right=True),
    ]
    if ref is None:
        rows = [msgspec.structs.asdict(each) for each in iter_artifacts(hf)]
        columns.append(Column("created", lambda row: row["at"], lambda row: age(row["at"]), drop_order=1))
    else:
        rows = [
            {"digest": found.digest, "size": found.size, "path": paths.show(where), "name": found.name}
            for where, found in find_artifacts(hf.version(ref).state)
        ]
        columns.append(Column("path", lambda row: row["path"], min_width=12))
        columns.append(Column("name", lambda row: row["name"], min_width=8, drop_order=1))
    ctx.out.rows(rows, columns, lambda row: row, empty="no artifacts")


@command("get", short_help="Read an artifact, by its digest or its path.")
@click.argument("what", metavar="DIGEST|REF")
@click.argument("path", required=False)
@click.option("-o", "--output", metavar="FILE", help="Write to this file, not to standard output.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def _get(ctx: CommandContext, what: str, *, path: str | None, output: str | None, force: bool) -> None:
    """Read an artifact: by its digest, or by a version and a path in its state."""
    found = _find(ctx.hf, what) if path is None else ctx.hf.version(what).get(path)
    if isinstance(found, str | bytes):
        found = artifact(found.encode() if isinstance(found, str) else found)
    if not isinstance(found, Artifact):
        raise InvalidCall(
            f"the value at {path!r} is not an artifact but {type(found).__name__}: `holdfast show` reads it"
        )
    if output is None:
        if sys.stdout.isatty():
            raise click.UsageError("bytes are not written to a terminal: use -o FILE, or a pipe")
        for piece in found.pieces():
            sys.stdout.buffer.write(piece)
        return
    with open_output_file(Path(output), overwrite=force) as file:
        for piece in found.pieces():
            file.write(piece)
    ctx.out.done(
        {"digest": found.digest, "size": found.size, "file": output}, f"wrote {size(found.size)} to {output}"
    )


@command("put", short_help="Add a file to the state of a manual run.")
@click.argument("run", type=RUN)
@click.argument("path")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--step", default="put", show_default=True, help="The name of the new version's step.")
def _put(ctx: CommandContext, run: str, path: str, file: str, *, step: str) -> None:
    """Add a file to the state of a manual run, at PATH, as a new version. Creates the run if it does not exist."""
    hf = ctx.hf
    run, segments = find_artifact_target(hf, run, path)
    # An unreadable file is reported as such, not as an invalid artifact.
    Path(file).open("rb").close()
    content = artifact(file)
    head = store_artifact(hf, run, segments, content, step=step)
    ctx.out.done(
        {"run": run, "version": head.number, "path": path, "digest": content.digest, "size": content.size},
        plain(f"{run}@{head.number} {path}: {size(content.size)}, {content.digest[:12]}"),
    )


for _command in (_ls, _get, _put):
    artifacts_command.add_command(_command)


def _find(hf: Holdfast, digest: str) -> Artifact:
    """Return an artifact by its digest or a unique prefix of it."""
    found = [each.digest for each in iter_artifacts(hf) if each.digest.startswith(digest.lower())]
    if len(found) > 1:
        raise InvalidReference(f"{digest!r} could be any of {', '.join(each[:16] for each in found[:5])}")
    if not found:
        raise NotFound(f"there is no artifact {digest!r:.80}: `holdfast artifacts ls` lists them")
    return hf.artifact(found[0])
