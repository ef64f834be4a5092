"""`holdfast show`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import drawing
from holdfast.cli.context import REF, CommandContext, command
from holdfast.cli.output import Output
from holdfast.errors import InvalidCall
from holdfast.execution.run import Run
from holdfast.history.version import Version
from holdfast.operator_view.records import (
    attachment_names,
    full_version_view,
    moves_view,
    reference_to,
    spending_lines,
    spending_view,
    status_of,
    version_view,
)
from holdfast.operator_view.text import (
    age,
    as_json,
    brief,
    dumps,
    full_traceback,
    plain,
    printable_lines,
    size,
    span,
)
from holdfast.tree.artifact import Artifact

if TYPE_CHECKING:
    from rich.text import Text

#: Larger than any state.
_UNLIMITED = 1 << 40
#: Application values: in a pipe they are JSON, so that 3 and "3" differ.
_VALUES = ("arguments", "result", "error", "annotations", "failure", "totals", "limits", "meta")
_COLOURS = {"string": "green", "number": "cyan", "none": "magenta", "more": "bright_black", "other": ""}


@command("show")
@click.argument("ref", type=REF)
@click.argument("path", required=False)
@click.option("--state", "only", flag_value="state", help="Only the state.")
@click.option(
    "--annotations",
    "only",
    flag_value="annotations",
    help="Only the annotations of the step: model, tokens, cost, …",
)
@click.option(
    "--arguments",
    "only",
    flag_value="arguments",
    help="Only the arguments of the step, or of the workflow.",
)
@click.option("--result", "only", flag_value="result", help="Only the result of the step.")
@click.option(
    "--raw", is_flag=True, help="Print the value itself: text as text, bytes as bytes, anything else as JSON."
)
@click.option("--all", "everything", is_flag=True, help="Do not shorten the state.")
def show_command(
    ctx: CommandContext, ref: str, path: str | None, *, only: str | None, raw: bool, everything: bool
) -> None:
    """Show a version: step, arguments, result, error, state; or a part of the state, at PATH.

    The head of a failed run includes the failure, with the tracebacks of all causes.

    \b
    holdfast show RUN                    the head
    holdfast show RUN@12 plan.tasks[3]   a part of the state
    holdfast show RUN~1 --state --json   the state as JSON
    """
    version = ctx.hf.version(ref)
    out = ctx.out
    if path is None and only is None and not raw:
        run = ctx.hf.get(version.run)
        status = status_of(run) if run.head.number == version.number else None
        # The step that failed left no version.
        failure = run.failure if status == "failed" else None
        if out.json:
            spending = None if status is None else spending_view(run)
            moves = None if status is None else moves_view(run)
            meta = None if status is None else run.meta
            failed = as_json(failure)
            out.document(
                {
                    **full_version_view(version),
                    "failure": failed,
                    "spending": spending,
                    "moves": moves,
                    "meta": meta,
                }
            )
        else:
            _print_version(out, version, status, failure, everything, None if status is None else run)
        return
    value = version.get(path) if path is not None else getattr(version, only or "state")
    if raw:
        _print_raw(value)
    elif out.json or not out.is_for_people:
        out.document(as_json(value))
    else:
        tree(out, value, everything)


def tree(out: Output, value: Any, everything: bool = False) -> None:
    """Print a value as a tree."""
    limits = (
        {"width": _UNLIMITED, "entries": _UNLIMITED, "levels": _UNLIMITED}
        if everything
        else {"width": out.width}
    )
    for line in drawing.draw_tree(value, **limits):
        text = out.styled(line.guide, "bright_black").append(line.name, "bold")
        text.append("  " if line.name else "").append(line.value, _COLOURS[line.kind])
        out.text(text)


def _print_version(
    out: Output, version: Version, status: str | None, failure: Any, everything: bool, run: Run | None
) -> None:
    """Print a version; for the head of a run, also the run's status, failure, limits and spending."""
    error, arguments, ran = version.error, version.arguments, version.implementation
    spending = None if run is None else spending_view(run)
    facts = {
        **{name: value for name, value in version_view(version).items() if name != "run"},
        "version": reference_to(version),
        "ran": ran and str(ran),
        "arguments": as_json(arguments),
        "result": as_json(version.result),
        "error": as_json(error),
        "annotations": as_json(version.annotations),
        "attachments": attachment_names(version),
        "failure": as_json(failure),
        "totals": spending and spending["totals"],
        "limits": spending and spending["limits"] and spending,
        "meta": None if run is None else run.meta or None,
        **({} if run is None else {name: number for name, number in moves_view(run).items() if number}),
    }
    if not out.is_for_people:
        values = {name: dumps(facts[name]) for name in _VALUES if facts[name] is not None}
        out.facts({**facts, **values, "state": dumps(as_json(version.state))})
        return
    shown: dict[str, str | Text] = {
        "status": out.status(status or version.status),
        "at": f"{version.at.astimezone():%Y-%m-%d %H:%M:%S}  ({age(version.at)})",
        "took": "" if version.took is None else span(version.took),
        "size": size(version.size),
        "attempt": "" if version.attempt == 1 else str(version.attempt),
        "pinned": "yes" if version.pinned else "",
        "failed": "yes" if facts["failed"] else "",
        # Reading a damaged version has failed before.
        "damaged": "",
        "steps": f"{version.steps} completed",
        "step": "" if version.step == version.address else str(version.step),
        "arguments": "",
        "result": "" if version.result is None else brief(version.result, out.width - 12),
        "error": "" if error is None else _error_line(error),
        "annotations": "" if version.annotations is None else brief(version.annotations, out.width - 12),
        "totals": brief(spending["totals"], out.width - 12) if spending and spending["totals"] else "",
        "limits": "" if run is None else "; ".join(spending_lines(run)),
        "meta": "" if facts["meta"] is None else brief(facts["meta"], out.width - 12),
        "failure": ""
        if failure is None
        else out.styled("the run failed after this: ", "red").append(_error_line(failure)),
    }
    out.facts(facts, shown)
    if arguments:
        out.text(out.styled("\narguments", "bright_black"))
        tree(out, arguments, everything)
    for each in (error, failure):
        if isinstance(each, dict):
            out.text(out.styled("\ntraceback", "bright_black"))
            out.text(out.styled(printable_lines(full_traceback(each)).rstrip(), "red"))
    out.text(out.styled("\nstate", "bright_black"))
    tree(out, version.state, everything)


def _print_raw(value: Any) -> None:
    if isinstance(value, str):
        _print_raw_text(value)
    elif isinstance(value, bytes | Artifact) and sys.stdout.isatty():
        raise click.UsageError(
            "bytes are not written to a terminal: use a pipe, or `holdfast artifacts get -o FILE`"
        )
    elif isinstance(value, bytes):
        sys.stdout.buffer.write(value)
    elif isinstance(value, Artifact):
        for piece in value.pieces():
            sys.stdout.buffer.write(piece)
    else:
        print(dumps(as_json(value)))


def _print_raw_text(text: str) -> None:
    if sys.stdout.isatty():
        sys.stdout.write(printable_lines(text) + "\n")
        return
    try:
        written = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidCall(
            f"the text contains a lone surrogate (at {error.start}), which UTF-8 cannot encode: omit --raw to get JSON"
        ) from None
    sys.stdout.buffer.write(written)


def _error_line(error: Any) -> str:
    if isinstance(error, dict) and "message" in error:
        return plain(f"{error.get('type', 'error')}: {error['message']}")
    return brief(error, 200)
