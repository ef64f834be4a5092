"""Compare two versions, two lines of versions, or two calls of a step.

A `Diff` covers the state and the other fields of a version: step, result, error, status, note, tags, annotations; and
names the artifacts that came and went, and the events in between. A
`Comparison` pairs the steps of two runs or timelines. `call_differences` compares the stored arguments of two calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.history.journal import to_event
from holdfast.history.version import Implementation, NotStored, arguments_by_name
from holdfast.model.checks import check_integer
from holdfast.model.names import short
from holdfast.model.public import Event
from holdfast.store.process_fork import StoredContent
from holdfast.tree import diff as trees
from holdfast.tree import path as paths
from holdfast.tree.artifact import Artifact
from holdfast.tree.codec import REDACTED, nested_artifacts, open_box
from holdfast.tree.fold import Folder, artifacts_within
from holdfast.tree.frozen import Box
from holdfast.tree.portable import to_json
from holdfast.tree.values import NATIVE

if TYPE_CHECKING:
    from holdfast.history.version import Version

#: Fields that a diff compares, besides the state.
_FIELDS = ("step", "result", "error", "status", "note", "tags", "annotations")
#: Events that are read at once.
_PAGE = 256
#: Differences of calls that a message names.
_NAMED = 3


class Diff(msgspec.Struct, frozen=True):
    """The changes from one version to another."""

    a: Version
    b: Version
    #: Changes of the state.
    changes: tuple[trees.Change, ...]
    #: Changes of step, result, error, status, note, tags, annotations; the path starts with the name of the field.
    facts: tuple[trees.Change, ...]

    @property
    def new_artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts in the state or the other fields of `b` that are nowhere in those of `a`."""
        return self._artifacts("new", self.b, self.a)

    @property
    def removed_artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts in the state or the other fields of `a` that are nowhere in those of `b`."""
        return self._artifacts("old", self.a, self.b)

    @property
    def new_events(self) -> tuple[Event, ...]:
        """The events in the run's journal after `a`, up to and with `b`, oldest first; at most 1,000 (see `events`).
        Empty if `b` was not committed after `a`, or is of another run."""
        return tuple(self.events())

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return one page of `new_events`. For the next page, pass the last one's cursor as `after`."""
        check_integer("after", after, 0)
        check_integer("limit", limit, 1)
        run, first, last = self.b.reader.run, self.a.record.seq, self.b.record.seq
        if self.a.reader.run.key != run.key or last <= first:
            return []
        found: list[Event] = []
        after = max(after, first)
        while len(found) < limit and after < last:
            page = self.b.reader.store.journal(run=run.key, after=after, limit=min(limit - len(found), _PAGE))
            if not page:
                break
            events = [to_event(run, entry) for entry in page]
            found += [event for event in events if event.cursor <= last]
            after = events[-1].cursor
        return found

    def _artifacts(self, side: Literal["old", "new"], of: Version, other: Version) -> tuple[Artifact, ...]:
        """Return the artifacts of one side of the changes that are nowhere in the other version."""
        found: dict[str, Artifact] = {}
        for change in self:
            value = getattr(change, side)
            if change.source is None and value is not None:
                found.update((artifact.digest, artifact) for artifact in _artifacts_in(value))
        if not found:
            return ()
        # It may have been moved, or be in a second place. An unchanged part can hold it, too.
        for value in (_state(other), *(_fact(other, name) for name in _FIELDS)):
            for artifact in _artifacts_in(value):
                found.pop(artifact.digest, None)
        for artifact in found.values():
            artifact.bind(StoredContent(of.reader.store, bytes.fromhex(artifact.digest)))
        return tuple(found.values())

    def __bool__(self) -> bool:
        """Return whether there is any difference."""
        return bool(self.changes or self.facts)

    def __iter__(self) -> Iterator[trees.Change]:
        return iter((*self.changes, *self.facts))

    def __len__(self) -> int:
        return len(self.changes) + len(self.facts)

    def summary(self) -> list[str]:
        """Return one line for each change."""
        return [change.summary for change in self.changes] + [f"({change.summary})" for change in self.facts]

    def json_patch(self) -> list[dict[str, Any]]:
        """Return a JSON Patch (RFC 6902) from the first state as JSON to the second."""
        return trees.json_patch(_state(self.a), _state(self.b), to_json=to_json)

    def fields(self) -> dict[str, dict[str, Any]]:
        """Return `{field: {"from": …, "to": …}}`; fields of the state start with `state.`."""
        state = {_below("state", where): change for where, change in trees.fields(self.changes).items()}
        return {**state, **trees.fields(self.facts)}

    def __str__(self) -> str:
        return "\n".join(self.summary()) or "no difference"


class StepPair(msgspec.Struct, frozen=True):
    """A step on the left and its counterpart on the right; one of them may be missing."""

    step: str | None
    left: Version | None
    right: Version | None
    #: The code that ran on each side; None if not recorded.
    left_code: Implementation | None = None
    right_code: Implementation | None = None

    @property
    def same_code(self) -> bool | None:
        """Whether the same code ran on both sides; None if not recorded for both. The module is not compared: a program
        is `__main__`, and has another name where it is imported."""
        if self.left_code is None or self.right_code is None:
            return None
        return self.left_code.is_same(self.right_code)

    @property
    def name(self) -> str:
        """The name of the step, or the kind of the version."""
        version = self.left or self.right
        return self.step or f"({version.kind if version is not None else ''})"

    @property
    def same(self) -> bool:
        """Whether both returned the same result, or failed with the same error."""
        if self.left is None or self.right is None:
            return False
        left, right = self.left, self.right
        return not (
            _changes(left.result, right.result) or _changes(_failure(left.error), _failure(right.error))
        )


class Comparison(msgspec.Struct, frozen=True):
    """Two lines of versions: their steps side by side, and the difference of their states."""

    left: Version
    right: Version
    #: The steps after the last common version, oldest first.
    steps: tuple[StepPair, ...]
    diff: Diff

    def __str__(self) -> str:
        lines = [f"{self.left.run}@{self.left.number} ↔ {self.right.run}@{self.right.number}"]
        for pair in self.steps:
            left = "—" if pair.left is None else f"@{pair.left.number}"
            right = "—" if pair.right is None else f"@{pair.right.number}"
            lines.append(f"  {pair.name}: {left} {'=' if pair.same else '≠'} {right}")
            if pair.same_code is False:
                lines.append(f"    ran {pair.left_code} ↔ {pair.right_code}")
        return "\n".join([*lines, *(f"  {line}" for line in self.diff.summary())])


def diff(a: Version, b: Version) -> Diff:
    """Return the changes from `a` to `b`, which may be of different runs."""
    changes = trees.changes(_state(a), _state(b))
    facts = [change for name in _FIELDS for change in _changes(_fact(a, name), _fact(b, name), (name,))]
    return Diff(a, b, tuple(changes), tuple(facts))


def compare(left: Version, right: Version) -> Comparison:
    """Compare two versions and the steps that led to each."""
    one, two = list(left.lineage())[::-1], list(right.lineage())[::-1]
    shared = 0
    while shared < min(len(one), len(two)) and _place(one[shared]) == _place(two[shared]):
        shared += 1
    ran = {**_implementations(one), **_implementations(two)}
    pairs = [
        msgspec.structs.replace(
            pair,
            left_code=None if pair.left is None else ran.get(_place(pair.left)),
            right_code=None if pair.right is None else ran.get(_place(pair.right)),
        )
        for pair in _pair(one[shared:], two[shared:])
    ]
    return Comparison(left, right, tuple(pairs), diff(left, right))


def _place(version: Version) -> tuple[str, int]:
    return version.run, version.number


def _pair(one: list[Version], two: list[Version]) -> Iterator[StepPair]:
    """Pair steps of the same name and occurrence; the others have no counterpart."""
    waiting: dict[tuple[str | None, int], Version] = {}
    seen: dict[str | None, int] = {}
    for version in two:
        seen[version.step] = seen.get(version.step, 0) + 1
        waiting[(version.step, seen[version.step])] = version
    seen = {}
    for version in one:
        seen[version.step] = seen.get(version.step, 0) + 1
        yield StepPair(version.step, version, waiting.pop((version.step, seen[version.step]), None))
    for (step, _), version in waiting.items():
        yield StepPair(step, None, version)


def _artifacts_in(value: Any) -> Iterator[Artifact]:
    """Yield the artifacts in a value, frozen or not."""
    kind = type(value)
    if kind is Artifact:
        yield value
    elif kind is Box:
        if any(nested_artifacts(value.code, value.data)):
            yield from artifacts_within(open_box(value))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _artifacts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _artifacts_in(item)
    elif kind not in NATIVE:
        yield from artifacts_within(value)


def _state(version: Version) -> Any:
    return version.reader.state(version.number)


def _failure(error: Any) -> Any:
    """Return an error without its traceback."""
    return {**error, "traceback": None} if isinstance(error, dict) else error


def _fact(version: Version, name: str) -> Any:
    value = getattr(version, name)
    return sorted(value) if name == "tags" else value


def _changes(old: Any, new: Any, at: tuple[Any, ...] = ()) -> list[trees.Change]:
    folder = Folder(None)
    one = folder.fold(old)
    return [
        msgspec.structs.replace(
            change, path=(*at, *change.path), source=change.source and (*at, *change.source)
        )
        for change in trees.changes(one, folder.fold(new, one))
    ]


def _below(name: str, path: str) -> str:
    """Return a path below a name, as text."""
    return f"{name}.{path}" if path and path[0] != "[" else name + path


def _implementations(line: Iterable[Version]) -> dict[tuple[str, int], Implementation]:
    """Return the implementations of a line of versions, oldest first, by run and number."""
    last: dict[str, Implementation] = {}
    found: dict[tuple[str, int], Implementation] = {}
    for version in line:
        if version.step is None or "args" not in version.detail:
            continue
        if "ran" in version.detail:
            last[version.step] = Implementation(*version.detail["ran"][:3])
        if version.step in last:
            found[_place(version)] = last[version.step]
    return found


def has_placeholders(call: Any) -> bool:
    """Return whether a stored call has a placeholder for a value that was not stored, or was redacted."""
    given, keywords, *_ = call
    values = [open_box(value) if type(value) is Box else value for value in (*given, *keywords.values())]
    return any(
        isinstance(value, NotStored) or (isinstance(value, str) and value == REDACTED) for value in values
    )


def call_differences(recorded: Any, now: Any) -> list[tuple[str, str, str]]:
    """Return where two stored calls differ: the path, starting with the parameter, and both values, shortened."""
    before: Mapping[str, Any] = arguments_by_name(recorded) or {}
    after: Mapping[str, Any] = arguments_by_name(now) or {}
    return [found for name in dict.fromkeys((*before, *after)) for found in _differences(name, before, after)]


def describe_differences(found: list[tuple[str, str, str]]) -> str:
    """Return differences as part of a sentence."""
    shown = [f"{where} was {was}, is {now}" for where, was, now in found[:_NAMED]]
    if len(found) > _NAMED:
        shown.append(f"{len(found) - _NAMED} more differ")
    return "; ".join(shown)


def _differences(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    if name not in after:
        yield name, short(before[name]), "not given"
    elif name not in before:
        yield name, "not given", short(after[name])
    else:
        for change in trees.changes(before[name], after[name]):
            where = _below(name, paths.show(change.path))
            if change.source is not None:
                yield where, f"at {name}{paths.show(change.source)}", "moved"
            else:
                was, now = _shorten(change.old, change.new)
                yield (
                    where,
                    "missing" if change.kind == "added" else was,
                    "missing" if change.kind == "removed" else now,
                )


def _shorten(old: Any, new: Any) -> tuple[str, str]:
    """Return two values, shortened so that the difference shows: long texts start shortly before it."""
    if type(old) is type(new) and isinstance(old, str | bytes) and old[:40] == new[:40]:
        same = next(
            (place for place, (one, other) in enumerate(zip(old, new, strict=False)) if one != other),
            min(len(old), len(new)),
        )
        start = max(0, same - 20)
        more = "…" if start else ""
        return f"{more}{short(old[start:])}", f"{more}{short(new[start:])}"
    return short(old), short(new)
