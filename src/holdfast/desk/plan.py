"""What will be done, told before it is: in sentences, for whoever decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from holdfast.desk.records import name_of
from holdfast.desk.words import brief, count, plain
from holdfast.engine import Holdfast
from holdfast.errors import AlreadyExists, InvalidCall, InvalidReference, NotFound
from holdfast.history.version import Version
from holdfast.model.names import check_run_id
from holdfast.runtime.preview import Preview
from holdfast.runtime.run import Run

#: Names that are listed before the rest is counted.
_LISTED = 8


def told(preview: Preview, *, resume: bool = True, back: bool = False) -> list[str]:
    """What resuming, or going back, will do."""
    lines = []
    if preview.left:
        moved = f"{preview.run} goes back to version {preview.version}, on a new timeline"
        verb = "stays" if len(preview.left) == 1 else "stay"
        lines.append(f"{moved}; {count(len(preview.left), 'version')} after it {verb} readable")
    elif back:
        lines.append(f"{preview.run} stays at version {preview.version}, where a new timeline begins")
    if preview.undo:
        lines.append(f"compensations run first, in this order: {names(preview.undo)}")
    if preview.rewound:
        lines.append(f"children are rewound to what they were then: {names(preview.rewound)}")
    if preview.cancelled:
        lines.append(f"runs that are parts of it are cancelled: {names(preview.cancelled)}")
    if resume and preview.workflow is not None:
        verb = "is" if len(preview.passed) == 1 else "are"
        lines.append(
            f"{count(len(preview.passed), 'recorded step')} of {preview.workflow} {verb} passed, not run again"
        )
        if preview.again:
            lines.append(f"these run again: {names(preview.again)}")
        if preview.waits:
            lines.append(f"it waits for: {names(preview.waits)}")
    return [plain(line) for line in lines]


def told_fork(
    source: Version, new: str | None, changes: Mapping[str, Any], *, written: bool = False, resume: bool
) -> list[str]:
    """What forking will do: values change, or the whole state was written anew."""
    lines = [f"a new run{f' {new}' if new else ''} begins with the state of {name_of(source)}"]
    lines += ["its state is what you wrote"] if written else []
    lines += [f"{path} becomes {brief(value)}" for path, value in changes.items()]
    lines += ["it goes on at once"] if resume else []
    return lines


def need_workflow(run: Run | Preview, what: str) -> None:
    """Refuse for a history by hand what is done to a workflow's run."""
    if run.workflow is None:
        name = run.id if isinstance(run, Run) else run.run
        raise InvalidCall(f"run {name!r} is a history kept by hand: {what}", run=name)


def check_free(hf: Holdfast, new: str) -> None:
    """Refuse an id that cannot be one, or that a run has, before anybody is asked."""
    check_run_id(new)
    with suppress(NotFound, InvalidReference):
        if hf.find(new) == new:
            raise AlreadyExists(f"run {new!r} exists: fork into another id", run=new)


def names(found: Sequence[str]) -> str:
    """A list of names that may be long."""
    more = len(found) - _LISTED
    return ", ".join(found[:_LISTED]) + (f" and {more} more" if more > 0 else "")
