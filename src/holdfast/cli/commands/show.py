"""`holdfast show`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import outline
from holdfast.cli.call import Call, command
from holdfast.cli.completing import REF
from holdfast.cli.output import Output
from holdfast.desk.errors import full_traceback
from holdfast.desk.records import (
    name_of,
    spending_lines,
    spending_record,
    status_of,
    version_record,
    whole_record,
)
from holdfast.desk.words import age, as_json, brief, dumps, plain, plain_lines, size, span
from holdfast.errors import InvalidCall
from holdfast.history.version import Version
from holdfast.runtime.run import Run
from holdfast.tree.artifact import Artifact

if TYPE_CHECKING:
    from rich.text import Text

#: More than any state has of anything.
_ALL = 1 << 40
#: Facts that are values of the user's: in a pipe they are JSON, so that 3 and "3" differ.
_VALUES = ("arguments", "result", "error", "meta", "failure", "totals", "limits")
_COLOURS = {"string": "green", "number": "cyan", "none": "magenta", "more": "bright_black", "other": ""}


@command("show")
@click.argument("ref", type=REF)
@click.argument("path", required=False)
@click.option("--state", "only", flag_value="state", help="Only the state.")
@click.option("--meta", "only", flag_value="meta", help="Only what shaped the step: model, tokens, cost, …")
@click.option(
    "--arguments",
    "only",
    flag_value="arguments",
    help="Only what the step, or the workflow, was called with.",
)
@click.option("--result", "only", flag_value="result", help="Only what the step returned.")
@click.option(
    "--raw", is_flag=True, help="The value itself: a text as text, bytes as bytes, all else as JSON."
)
@click.option("--all", "everything", is_flag=True, help="Do not shorten the state.")
def show_command(
    call: Call, ref: str, path: str | None, *, only: str | None, raw: bool, everything: bool
) -> None:
    """A version: step, arguments, result, error, state; or the part of the state at PATH.

    Of a run that failed, the head tells why, with the traceback and those of its causes.

    \b
    holdfast show RUN                    the head
    holdfast show RUN@12 plan.tasks[3]   a part of the state
    holdfast show RUN~1 --state --json   the state as JSON
    """
    version = call.hf.version(ref)
    out = call.out
    if path is None and only is None and not raw:
        run = call.hf.get(version.run)
        stands = status_of(run) if run.head.number == version.number else None
        # The step that failed left no version.
        failure = run.failure if stands == "failed" else None
        if out.json:
            spending = None if stands is None else spending_record(run)
            out.document({**whole_record(version), "failure": as_json(failure), "spending": spending})
        else:
            _whole(out, version, stands, failure, everything, None if stands is None else run)
        return
    value = version.get(path) if path is not None else getattr(version, only or "state")
    if raw:
        _raw(value)
    elif out.json or not out.for_people:
        out.document(as_json(value))
    else:
        tree(out, value, everything)


def tree(out: Output, value: Any, everything: bool = False) -> None:
    """A value drawn as a tree."""
    limits = {"width": _ALL, "entries": _ALL, "levels": _ALL} if everything else {"width": out.width}
    for line in outline.draw(value, **limits):
        text = out.styled(line.guide, "bright_black").append(line.name, "bold")
        text.append("  " if line.name else "").append(line.value, _COLOURS[line.kind])
        out.text(text)


def _whole(
    out: Output, version: Version, stands: str | None, failure: Any, everything: bool, run: Run | None
) -> None:
    """A version; if it is the head of its run, the run's status, its failure, and what it may spend and has spent."""
    error, arguments, ran = version.error, version.arguments, version.implementation
    spending = None if run is None else spending_record(run)
    facts = {
        **{name: value for name, value in version_record(version).items() if name != "run"},
        "version": name_of(version),
        "ran": ran and str(ran),
        "arguments": as_json(arguments),
        "result": as_json(version.result),
        "error": as_json(error),
        "meta": as_json(version.meta),
        "failure": as_json(failure),
        "totals": spending and spending["totals"],
        "limits": spending and spending["limits"] and spending,
    }
    if not out.for_people:
        values = {name: dumps(facts[name]) for name in _VALUES if facts[name] is not None}
        out.facts({**facts, **values, "state": dumps(as_json(version.state))})
        return
    shown: dict[str, str | Text] = {
        "status": out.status(stands or version.status),
        "at": f"{version.at.astimezone():%Y-%m-%d %H:%M:%S}  ({age(version.at)})",
        "took": "" if version.took is None else span(version.took),
        "size": size(version.size),
        "attempt": "" if version.attempt == 1 else str(version.attempt),
        "pinned": "yes" if version.pinned else "",
        "failed": "yes" if facts["failed"] else "",
        # A damaged version is refused before it is shown.
        "damaged": "",
        "steps": f"{version.steps} completed",
        "step": "" if version.step == version.address else str(version.step),
        "arguments": "",
        "result": "" if version.result is None else brief(version.result, out.width - 12),
        "error": "" if error is None else _told(error),
        "meta": "" if version.meta is None else brief(version.meta, out.width - 12),
        "totals": brief(spending["totals"], out.width - 12) if spending and spending["totals"] else "",
        "limits": "" if run is None else "; ".join(spending_lines(run)),
        "failure": ""
        if failure is None
        else out.styled("the run failed after this: ", "red").append(_told(failure)),
    }
    out.facts(facts, shown)
    if arguments:
        out.text(out.styled("\narguments", "bright_black"))
        tree(out, arguments, everything)
    for each in (error, failure):
        if isinstance(each, dict):
            out.text(out.styled("\ntraceback", "bright_black"))
            out.text(out.styled(plain_lines(full_traceback(each)).rstrip(), "red"))
    out.text(out.styled("\nstate", "bright_black"))
    tree(out, version.state, everything)


def _raw(value: Any) -> None:
    if isinstance(value, str):
        _raw_text(value)
    elif isinstance(value, bytes | Artifact) and sys.stdout.isatty():
        raise click.UsageError(
            "bytes would spoil the terminal: use a pipe, or `holdfast artifacts get -o FILE`"
        )
    elif isinstance(value, bytes):
        sys.stdout.buffer.write(value)
    elif isinstance(value, Artifact):
        for piece in value.pieces():
            sys.stdout.buffer.write(piece)
    else:
        print(dumps(as_json(value)))


def _raw_text(text: str) -> None:
    if sys.stdout.isatty():
        sys.stdout.write(plain_lines(text) + "\n")
        return
    try:
        written = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidCall(
            f"the text holds a lone surrogate (at {error.start}), which no file can: leave out --raw, that gives JSON"
        ) from None
    sys.stdout.buffer.write(written)


def _told(error: Any) -> str:
    if isinstance(error, dict) and "message" in error:
        return plain(f"{error.get('type', 'error')}: {error['message']}")
    return brief(error, 200)
