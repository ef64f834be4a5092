"""`holdfast diff`"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.completing import REF
from holdfast.cli.output import Column, Output
from holdfast.desk.lookup import below, sides
from holdfast.desk.records import change_record, changes_of, name_of
from holdfast.desk.words import as_json, brief, count, dumps, plain
from holdfast.errors import InvalidCall
from holdfast.history.compare import Diff
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


class Shown(NamedTuple):
    """A change, and what it is of: the state, or what is said about the version."""

    change: Change
    of: str

    @property
    def where(self) -> str:
        """The path; in parentheses where it is not of the state."""
        where = plain(self.change.where) or "(all)"
        return where if self.of == "state" else f"({where})"

    @property
    def top(self) -> str:
        """The part of the state in which it lies."""
        first = plain(str(self.change.path[0])) if self.change.path else "(all)"
        return first if self.of == "state" else f"({first})"

    def fields(self) -> Iterator[str]:
        """In a line for programs: values as JSON, empty where there is none."""
        change = self.change
        yield change.kind
        yield self.where
        yield "" if change.kind == "added" else dumps(as_json(change.old))
        yield "" if change.kind == "removed" else dumps(as_json(change.new))

    def line(self, out: Output) -> Text:
        """In a line for people."""
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


def shown(found: Diff) -> list[Shown]:
    """All changes of a diff."""
    return [Shown(*each) for each in changes_of(found)]


@command("diff")
@click.argument("a", type=REF)
@click.argument("b", required=False, type=REF)
@click.option("--stat", is_flag=True, help="Count the changes of each part of the state.")
@click.option("--path", metavar="PATH", help="Only what changed below this part of the state.")
@click.option("--json-patch", is_flag=True, help="As a JSON patch (RFC 6902).")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if there is any difference.")
def diff_command(
    call: Call, a: str, b: str | None, *, stat: bool, path: str | None, json_patch: bool, exit_code: bool
) -> int:
    """What changed from version A to version B, of one run or of two.

    Without B, it is the head of A's run; if A is the head, what the head itself changed. B may leave out the run, as in
    @4, ~1 or :tag.
    """
    one, other = sides(call.hf, a, b)
    found = call.hf.diff(one, other)
    changes = shown(found) if path is None else [Shown(each, "state") for each in below(found, path)]
    out = call.out
    if json_patch:
        if path is not None:
            raise InvalidCall("a JSON patch is of the whole state: leave out --path or --json-patch")
        out.document(found.json_patch())
        # A patch tells nothing else.
        changes = [each for each in changes if each.of == "state"]
    elif stat:
        _stat(out, changes)
    elif out.json:
        records = [change_record(*each) for each in changes]
        out.document({"a": name_of(one), "b": name_of(other), "changes": records})
    elif out.for_people:
        out.text(out.styled(f"{name_of(one)} → {name_of(other)}", "bold"))
        for change in changes:
            out.text(change.line(out))
        if not changes:
            out.text("no difference")
    else:
        for change in changes:
            out.fields(change.fields())
    return exits.FINDINGS if exit_code and changes else exits.DONE


def _stat(out: Output, changes: Sequence[Shown]) -> None:
    tops: Counter[tuple[str, str]] = Counter((each.top, each.change.kind) for each in changes)
    names = sorted({name for name, _ in tops})
    kinds = list(_SIGNS)
    columns = [
        Column("part", lambda row: row["part"], style="bold"),
        *(Column(kind, itemgetter(kind), style=_SIGNS[kind][1], right=True) for kind in kinds),
    ]
    rows = [{"part": name, **{kind: tops[name, kind] for kind in kinds}} for name in names]
    out.rows(rows, columns, lambda row: row, empty="no difference")
    if out.for_people and changes:
        out.text(count(len(changes), "change"))
