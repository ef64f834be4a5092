"""`holdfast diff` and `holdfast compare`"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import REF, CommandContext, command
from holdfast.cli.output import Column, Output
from holdfast.errors import InvalidCall
from holdfast.history.compare import Diff, StepPair
from holdfast.operator_view.lookup import changes_below, resolve_version, versions_to_compare
from holdfast.operator_view.records import between_view, change_view, changes_of, reference_to, step_pair_view
from holdfast.operator_view.text import as_json, brief, count, dumps, plain, size
from holdfast.tree import path as paths
from holdfast.tree.diff import Change

if TYPE_CHECKING:
    from rich.text import Text

_SIGNS = {
    "added": ("+", "green"),
    "removed": ("-", "red"),
    "changed": ("~", "yellow"),
    "moved": ("→", "cyan"),
}


class DiffLine(NamedTuple):
    """A change of the state, or of the version's metadata (`of`)."""

    change: Change
    of: str

    @property
    def where(self) -> str:
        """The path, in parentheses if it is not part of the state."""
        where = plain(self.change.where) or "(all)"
        return where if self.of == "state" else f"({where})"

    @property
    def top(self) -> str:
        """The top-level part of the state that contains it."""
        first = plain(str(self.change.path[0])) if self.change.path else "(all)"
        return first if self.of == "state" else f"({first})"

    def fields(self) -> Iterator[str]:
        """Yield the fields for programs: values as JSON, empty if there is none."""
        change = self.change
        yield change.kind
        yield self.where
        yield "" if change.kind == "added" else dumps(as_json(change.old))
        yield "" if change.kind == "removed" else dumps(as_json(change.new))

    def line(self, out: Output) -> Text:
        """Return the line for people."""
        change = self.change
        sign, colour = _SIGNS[change.kind]
        line = out.styled(f"{sign} ", colour).append(self.where, "bold")
        if change.source is not None:
            return line.append(f"  was {plain(paths.show(change.source))}", colour)
        room = max(20, (out.width - len(self.where) - 12) // (2 if change.kind == "changed" else 1))
        if change.kind != "added":
            line.append("  ").append(brief(change.old, room), "red")
        if change.kind == "changed":
            line.append(" →")
        if change.kind != "removed":
            line.append("  " if change.kind == "added" else " ").append(brief(change.new, room), "green")
        return line


def diff_lines(found: Diff) -> list[DiffLine]:
    """Return all changes of a diff."""
    return [DiffLine(*each) for each in changes_of(found)]


@command("diff")
@click.argument("a", type=REF)
@click.argument("b", required=False, type=REF)
@click.option("--stat", is_flag=True, help="Count the changes in each part of the state.")
@click.option("--path", metavar="PATH", help="Only changes below this path of the state.")
@click.option("--json-patch", is_flag=True, help="Print a JSON patch (RFC 6902).")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if there is any difference.")
def diff_command(
    ctx: CommandContext,
    a: str,
    b: str | None,
    *,
    stat: bool,
    path: str | None,
    json_patch: bool,
    exit_code: bool,
) -> int:
    """Show the changes from version A to version B, of the same run or of two runs.

    Without B, compare with the head of A's run; if A is the head, with its parent. B may omit the run, as in @4, ~1 or
    :tag.
    """
    one, other = versions_to_compare(ctx.hf, a, b)
    found = ctx.hf.diff(one, other)
    changes = (
        diff_lines(found)
        if path is None
        else [DiffLine(each, "state") for each in changes_below(found, path)]
    )
    out = ctx.out
    if json_patch:
        if path is not None:
            raise InvalidCall("a JSON patch covers the whole state: omit --path or --json-patch")
        out.document(found.json_patch())
        # A patch contains no metadata.
        changes = [each for each in changes if each.of == "state"]
    elif stat:
        _stat(out, changes)
    elif out.json:
        records = [change_view(*each) for each in changes]
        out.document(
            {"a": reference_to(one), "b": reference_to(other), "changes": records, **between_view(found)}
        )
    elif out.is_for_people:
        out.text(out.styled(f"{reference_to(one)} → {reference_to(other)}", "bold"))
        for change in changes:
            out.text(change.line(out))
        _artifacts(out, found)
        if not changes:
            out.text("no difference")
    else:
        for change in changes:
            out.fields(change.fields())
    return exit_codes.FINDINGS if exit_code and changes else exit_codes.DONE


def _artifacts(out: Output, found: Diff) -> None:
    """Print the artifacts that came and went."""
    for sign, artifacts in (("added", found.new_artifacts), ("removed", found.removed_artifacts)):
        for artifact in artifacts:
            mark, colour = _SIGNS[sign]
            line = out.styled(f"{mark} ", colour).append("artifact ", "bold").append(artifact.digest[:12])
            out.text(line.append(f"  {plain(artifact.name or '')}  {size(artifact.size)}", colour))


def _stat(out: Output, changes: Sequence[DiffLine]) -> None:
    tops: Counter[tuple[str, str]] = Counter((each.top, each.change.kind) for each in changes)
    names = sorted({name for name, _ in tops})
    kinds = list(_SIGNS)
    columns = [
        Column("part", lambda row: row["part"], style="bold"),
        *(Column(kind, itemgetter(kind), style=_SIGNS[kind][1], right=True) for kind in kinds),
    ]
    rows = [{"part": name, **{kind: tops[name, kind] for kind in kinds}} for name in names]
    out.rows(rows, columns, lambda row: row, empty="no difference")
    if out.is_for_people and changes:
        out.text(count(len(changes), "change"))


@command("compare")
@click.argument("a", type=REF)
@click.argument("b", type=REF)
def compare_command(ctx: CommandContext, a: str, b: str) -> None:
    """Compare two runs or timelines step by step, and their states."""
    one = ctx.hf.version(a)
    found = ctx.hf.compare(one, resolve_version(ctx.hf, b, one))
    out = ctx.out
    if out.json:
        changes = [change_view(*each) for each in changes_of(found.diff)]
        steps = [step_pair_view(pair) for pair in found.steps]
        out.document(
            {
                "a": reference_to(found.left),
                "b": reference_to(found.right),
                "steps": steps,
                "changes": changes,
                **between_view(found.diff),
            }
        )
        return
    columns = [
        Column("step", _name, style="bold", min_width=12),
        Column(
            reference_to(found.left), lambda pair: pair.left and pair.left.number, right=True, min_width=8
        ),
        Column("", lambda pair: "same" if pair.same else "differs", lambda pair: "=" if pair.same else "≠"),
        Column(
            reference_to(found.right), lambda pair: pair.right and pair.right.number, right=True, min_width=8
        ),
    ]
    if any(map(_code, found.steps)):
        columns.append(Column("code", _code, min_width=8))
    out.rows(found.steps, columns, step_pair_view)
    if out.is_for_people:
        for place, change in enumerate(diff_lines(found.diff)):
            if not place and found.steps:
                out.text("")
            out.text(change.line(out))
        _artifacts(out, found.diff)
        if not found.steps and not found.diff:
            out.text("no difference")


def _code(pair: StepPair) -> str:
    """Return the code that ran, where it differs or was an override."""
    if pair.same_code is False:
        return f"{pair.left_code} → {pair.right_code}"
    ran = pair.left_code or pair.right_code
    return str(ran) if ran is not None and ran.overridden else ""


def _name(pair: StepPair) -> str:
    """Return the address of a step, or the kind of a version."""
    version = pair.left or pair.right
    assert version is not None
    return version.address or f"({version.kind})"
