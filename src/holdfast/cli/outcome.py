"""Going on with a run, seen from the terminal: steps as they are done, and how it ended."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout

from holdfast.cli import exits
from holdfast.cli.call import Call
from holdfast.desk.standing import questions, standing
from holdfast.desk.words import age, brief, plain, span
from holdfast.engine import Holdfast
from holdfast.errors import CodeChanged, CompensationFailed, ReplayDiverged
from holdfast.model.public import Event
from holdfast.runtime.endings import ENDED
from holdfast.runtime.preview import Preview
from holdfast.runtime.run import Run

_SIGNS = {
    "step.completed": ("✓", "green"),
    "step.failed": ("✗", "red"),
    "step.retried": ("↻", "yellow"),
    "prompt.opened": ("?", "magenta"),
}


@contextmanager
def followed(call: Call, hf: Holdfast, run_id: str) -> Iterator[None]:
    """Tell people of the steps of a run while it goes on. What the steps print is no result of the command."""
    with redirect_stdout(sys.stderr):
        if not sys.stderr.isatty() or call.out.json:
            yield
            return
        with hf.subscribe(_teller(call), run_id=run_id, kinds=list(_SIGNS)):
            yield


@contextmanager
def advised(preview: Preview) -> Iterator[None]:
    """What to do next, where going on was refused, in the words of the command line."""
    run = preview.run
    try:
        yield
    except CompensationFailed as error:
        raise CompensationFailed(
            f"undoing step {error.details.get('address')!r} of run {run!r} failed with "
            f"{type(error.__cause__).__name__}: {error.__cause__}; the rollback waits: mend the cause, then `holdfast "
            f"resume {run}` finishes it and runs the workflow again from there, `holdfast rollback {run} --to "
            f"{preview.version} --no-resume` only finishes it",
            **error.details,
        ) from error.__cause__
    except CodeChanged as error:
        raise CodeChanged(_changed(run), **error.details) from None
    except ReplayDiverged as error:
        address = error.details.get("address")
        raise ReplayDiverged(
            f"{error} (`holdfast resume {error.details.get('of', run)} --from {address}`, `holdfast resume {run} "
            "--changed accept`)",
            **error.details,
        ) from None


@contextmanager
def kept(run: str) -> Iterator[None]:
    """What to do next, where word for a run was refused because it would go on with other code."""
    try:
        yield
    except CodeChanged as error:
        raise CodeChanged(
            _changed(run, f"say --no-resume, then `holdfast resume {error.details['run']} --changed allow`"),
            **error.details,
        ) from None


def refuse_changed(preview: Preview, changed: str | None) -> None:
    """`CodeChanged`, before anything is done, where going on would be refused."""
    if preview.changed and changed in (None, "refuse"):
        raise CodeChanged(_changed(preview.run), run=preview.run)


def _changed(run: str, otherwise: str = "say --changed allow") -> str:
    then = f"bring the old code back, or {otherwise}"
    return f"the workflow's code has changed since run {run!r} was last executed: {then}"


def _teller(call: Call) -> Callable[[Event], None]:
    out = call.out

    def tell(event: Event) -> None:
        sign, colour = _SIGNS[event.kind]
        line = out.styled(f"  {sign} ", colour).append(
            plain(str(event.data.get("address") or event.step or ""))
        )
        if event.data.get("took") is not None:
            line.append(f"  {span(event.data['took'] / 1e6)}", "bright_black")
        if event.data.get("error"):
            line.append(f"  {plain(str(event.data['error']))}", "red")
        out.say(line)

    return tell


#: Statuses in which nothing more happens by itself.
_RESTING = (*ENDED, "paused", "frozen")


def rests(hf: Holdfast, run: Run) -> bool:
    """Does nothing more happen until somebody does something: answers, resumes?"""
    status = run.status
    return status in _RESTING or (status == "suspended" and bool(questions(hf, run))) or interrupted(run)


def interrupted(run: Run) -> bool:
    """Did the process that advanced it go away?"""
    return run.status == "running" and run.workflow is not None and not run.alive


def code_for(hf: Holdfast, run: Run) -> int:
    """The exit code that tells how a run stands."""
    status = run.status
    if status == "failed" or interrupted(run):
        return exits.FINDINGS
    return exits.WAITS if status in ("suspended", "frozen") and questions(hf, run) else exits.DONE


def ended(call: Call, run: Run) -> int:
    """Say how a run stands after it was resumed, and give the exit code for it."""
    _say_how(call, run)
    return code_for(call.hf, run)


def _say_how(call: Call, run: Run) -> None:
    out = call.out
    record = standing(call.hf, run)
    status = record["status"]
    place = f"{run.id}@{record['version']}"
    if status == "completed":
        text = f"  {place}: {brief(run.result, 200)}"
    elif status == "failed":
        error = run.failure or {}
        text = (
            f"  {run.id}: {error.get('type', 'error')}: {error.get('message', '')}; `holdfast show {run.id}` tells "
            f"more, `holdfast resume {run.id}` tries again"
        )
    elif status == "suspended":
        prompts, until = questions(call.hf, run), record["until"]
        text = f"  {run.id}: it waits for {', '.join(record['waits'])}"
        if prompts:
            asks = "; ".join(f"{prompt.id}: {brief(prompt.question, 100)}" for prompt in prompts)
            text = f"  {run.id}: it asks {asks} (holdfast answer {prompts[0].id})"
        elif until is not None:
            text += f", until {until.astimezone():%Y-%m-%d %H:%M:%S} ({age(until)})"
    elif status == "frozen":
        asks = "; ".join(f"{each.question} (holdfast answer {each.id})" for each in run.prompts())
        text = f"  {run.id}: {asks}"
    else:
        text = f"  {place}"
    out.done(record, out.status(status).append(plain(text)))
