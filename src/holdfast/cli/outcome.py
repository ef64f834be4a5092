"""Show a run that is being resumed: its steps, and its outcome."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout

from holdfast.cli import exit_codes
from holdfast.cli.context import CommandContext
from holdfast.engine import Holdfast
from holdfast.errors import CodeChanged, CompensationFailed, LimitExceeded, ReplayDiverged
from holdfast.execution.preview import Preview
from holdfast.execution.run import Run
from holdfast.model.public import Event
from holdfast.model.records import ENDED
from holdfast.operator_view.actions import changed_code_text, open_questions, run_outcome
from holdfast.operator_view.records import status_of
from holdfast.operator_view.text import age, brief, plain, span

_SIGNS = {
    "step.completed": ("✓", "green"),
    "step.failed": ("✗", "red"),
    "step.retried": ("↻", "yellow"),
    "question.opened": ("?", "magenta"),
}
#: What to do if the code of a run's workflow has changed.
CHANGED_ADVICE = "restore the old code, or use --changed allow"


@contextmanager
def show_progress(ctx: CommandContext, hf: Holdfast, run_id: str) -> Iterator[None]:
    """Print the steps of a run as they end. Redirect what the steps print: it is not the command's result."""
    with redirect_stdout(sys.stderr):
        if not sys.stderr.isatty() or ctx.out.json:
            yield
            return
        with hf.subscribe(_step_printer(ctx), run_id=run_id, kinds=list(_SIGNS)):
            yield


@contextmanager
def explain_refusal(preview: Preview) -> Iterator[None]:
    """Add commands that help to an error that stops a run from being resumed."""
    run = preview.run
    try:
        yield
    except CompensationFailed as error:
        raise CompensationFailed(
            f"the compensation of step {error.details.get('address')!r} of run {run!r} failed with "
            f"{type(error.__cause__).__name__}: {error.__cause__}; the rollback is incomplete: fix the cause, then "
            f"`holdfast resume {run}` completes it and resumes the run, `holdfast rollback {run} --to "
            f"{preview.version} --no-resume` only completes it",
            **error.details,
        ) from error.__cause__
    except CodeChanged as error:
        raise CodeChanged(changed_code_text(run, CHANGED_ADVICE), **error.details) from None
    except ReplayDiverged as error:
        address = error.details.get("address")
        raise ReplayDiverged(
            f"{error} (`holdfast resume {error.details.get('of', run)} --from {address}`, `holdfast resume {run} "
            "--changed accept`)",
            **error.details,
        ) from None


@contextmanager
def explain_changed_code(run: str) -> Iterator[None]:
    """Add commands that help if a run is not resumed after a signal or an answer because its code has changed."""
    try:
        yield
    except CodeChanged as error:
        advice = f"use --no-resume, then `holdfast resume {error.details['run']} --changed allow`"
        raise CodeChanged(
            changed_code_text(run, f"restore the old code, or {advice}"), **error.details
        ) from None


def _step_printer(ctx: CommandContext) -> Callable[[Event], None]:
    out = ctx.out

    def print_step(event: Event) -> None:
        sign, colour = _SIGNS[event.kind]
        line = out.styled(f"  {sign} ", colour).append(
            plain(str(event.data.get("address") or event.step or ""))
        )
        if event.data.get("took") is not None:
            line.append(f"  {span(event.data['took'] / 1e6)}", "bright_black")
        if event.data.get("error"):
            line.append(f"  {plain(str(event.data['error']))}", "red")
        out.say(line)

    return print_step


#: Statuses in which a run stays until an operator acts.
_AT_REST = (*ENDED, "paused", "stalled", "interrupted")


def is_at_rest(hf: Holdfast, run: Run) -> bool:
    """Return whether nothing happens to a run until an operator acts."""
    status = status_of(run)
    return status in _AT_REST or (status == "suspended" and bool(open_questions(hf, run)))


def exit_code_of(hf: Holdfast, run: Run) -> int:
    """Return the exit code for the status of a run."""
    status = status_of(run)
    if status in ("failed", "interrupted"):
        return exit_codes.FINDINGS
    asks = status in ("suspended", "stalled") and open_questions(hf, run)
    return exit_codes.WAITS if asks else exit_codes.DONE


def _limit_option(run: Run) -> str:
    """Return the option without which a resume fails again, if the run has used up a limit of its own."""
    error = run.error
    if isinstance(error, LimitExceeded) and error.run == run.id and not error.details.get("block"):
        return f" --limit {error.limit}=N"
    return ""


def report_outcome(ctx: CommandContext, run: Run) -> int:
    """Print the outcome of a run and return the exit code for it."""
    out = ctx.out
    record = run_outcome(ctx.hf, run)
    status = record["status"]
    head = f"{run.id}@{record['version']}"
    if status == "completed":
        text = f"  {head}: {brief(run.result, 200)}"
    elif status == "failed":
        error = run.failure or {}
        text = (
            f"  {run.id}: {error.get('type', 'error')}: {error.get('message', '')}; `holdfast show {run.id}` shows "
            f"the traceback, `holdfast resume {run.id}{_limit_option(run)}` tries again"
        )
    elif status == "suspended":
        questions, until = open_questions(ctx.hf, run), record["until"]
        text = f"  {run.id}: waiting for {', '.join(record['waits'])}"
        if questions:
            asked = "; ".join(f"{each.id}: {brief(each.text, 100)}" for each in questions)
            text = f"  {run.id}: open questions: {asked} (holdfast answer {questions[0].id})"
        elif until is not None:
            text += f", until {until.astimezone():%Y-%m-%d %H:%M:%S} ({age(until)})"
    elif status == "stalled":
        asked = "; ".join(f"{each.text} (holdfast answer {each.id})" for each in run.questions())
        text = f"  {run.id}: {asked}"
    else:
        text = f"  {head}"
    out.done(record, out.status(status).append(plain(text)))
    return exit_code_of(ctx.hf, run)
