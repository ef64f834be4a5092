"""`holdfast inbox`, `holdfast answer`, `holdfast assign` and `holdfast signal`"""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import RUN, CommandContext, actor_option, command, number_option
from holdfast.cli.outcome import explain_changed_code, report_outcome, show_progress
from holdfast.cli.output import Column
from holdfast.errors import InvalidAnswer
from holdfast.execution.run import Run
from holdfast.model.public import Question
from holdfast.model.records import QUESTION_KINDS
from holdfast.operator_view.actions import expected_answer, find_question, parse_answer
from holdfast.operator_view.records import question_view
from holdfast.operator_view.text import age, brief, parse_duration, parse_json, plain

_resume_option = click.option(
    "--resume/--no-resume", default=True, help="Resume the run at once if its code is available."
)


@command("inbox")
@click.option("--run", "run", type=RUN, help="Only questions of this run.")
@click.option("--workflow", metavar="NAME", help="Only questions of runs of this workflow.")
@click.option("--assignee", metavar="NAME", help="Only questions that this person or group is to answer.")
@click.option("--waiting-longer-than", metavar="TIME", help="Only questions that are older, as in 90s or 1h.")
@click.option("--kind", type=click.Choice(QUESTION_KINDS), help="Only questions of this kind.")
@click.option("--answered", is_flag=True, help="List answered questions instead, newest first.")
@click.option("--after", metavar="ID", help="Continue after this question, the last one of the page before.")
@number_option(100, "At most N questions.")
def inbox_command(
    ctx: CommandContext,
    *,
    run: str | None,
    answered: bool,
    limit: int,
    waiting_longer_than: str | None,
    **filters: Any,
) -> None:
    """List the questions that wait for an answer: the most urgent first, then the oldest."""
    only = None if run is None else ctx.hf.get(run, prefix=True).id
    waiting = None if waiting_longer_than is None else parse_duration(waiting_longer_than)
    listed = ctx.hf.inbox(
        open=not answered, run_id=only, waiting_longer_than=waiting, limit=limit + 1, **filters
    )
    found = listed[:limit]
    columns = [
        Column("id", lambda each: each.id, style="bold"),
        Column("run", lambda each: each.run, min_width=12, drop_order=3),
        Column("asked", lambda each: each.opened, lambda each: age(each.opened), drop_order=2),
        Column("due", lambda each: each.due, lambda each: age(each.due) if each.due else "", drop_order=4),
        Column("question", lambda each: each.text, min_width=16),
    ]
    if answered:
        columns += [
            Column(
                "answer",
                lambda each: each.details.get("choice", each.answer),
                lambda each: each.details.get("choice") or brief(each.answer),
                min_width=8,
            ),
            Column("by", lambda each: each.actor, min_width=8, drop_order=1),
            Column("at", lambda each: each.answered, lambda each: age(each.answered)),
        ]
    else:
        columns += [
            Column("answer", lambda each: each.schema, expected_answer, min_width=12, drop_order=1),
            Column("priority", lambda each: each.priority, drop_order=6),
            Column(
                "assignee",
                lambda each: each.assignee,
                lambda each: f"{each.assignee or ''}{' (escalated)' if each.escalated else ''}",
                drop_order=5,
            ),
            Column("kind", lambda each: each.kind, drop_order=7),
        ]
    ctx.out.rows(found, columns, question_view, empty=f"no {'answered' if answered else 'open'} questions")
    if len(listed) > limit and ctx.out.is_for_people:
        ctx.out.say(ctx.out.styled(f"more questions: --after {found[-1].id}", "bright_black"))


@command("answer")
@click.argument("question_id", metavar="ID")
@click.argument("value", required=False)
@click.option(
    "--to", "version", type=int, metavar="N", help="With rollback: the version; default: the last good one."
)
@click.option(
    "--keep", multiple=True, metavar="PATH", help="With reinitialize: a part of the state. Repeatable."
)
@actor_option
@_resume_option
def answer_command(
    ctx: CommandContext,
    question_id: str,
    *,
    value: str | None,
    version: int | None,
    keep: tuple[str, ...],
    actor: str | None,
    resume: bool,
) -> int:
    """Answer a question. ID is the question's id from `holdfast inbox`, or its run if that has only one question.

    VALUE is JSON (true, 3, {"ok": true}), or plain text if the question expects a text. Without it, you are prompted.

    For a stalled run or loop, VALUE is resume, rollback (--to 3), reinitialize (start again, --keep plan) or cancel;
    without it, the diagnosis is shown first.
    """
    hf = ctx.open_with_app() if resume else ctx.hf
    question = _find(ctx, question_id)
    if value is None:
        if not ctx.out.can_ask:
            raise click.UsageError("pass the answer as the second argument")
        for line in _describe_stall(question):
            ctx.out.say(plain(line))
        ctx.out.say(f"{plain(question.text)}  [{expected_answer(question)}]")
        value = click.prompt("answer", err=True)
    answer = parse_answer(question, str(value))
    with show_progress(ctx, hf, question.run), explain_changed_code(question.run):
        run = hf.answer(
            question.id, answer, version=version, keep=keep, actor=actor, resume=resume, raises=False
        )
    done = f"answered {question.id}"
    if question.kind == "loop":
        # The program that the loop belongs to continues it.
        ctx.out.done({"run": run.id, "answer": answer}, plain(f"{done}: {answer}"))
        return exit_codes.DONE
    return _report_delivery(ctx, run, done, resume)


#: What `assign --clear` removes, by the arguments of `Holdfast.assign`.
_CLEARED = {
    "assignee": {"assignee": None},
    "due": {"due": None},
    "reminders": {"remind_every": None},
    "escalation": {"escalate_after": None, "escalate_to": None},
}


@command("assign")
@click.argument("question_id", metavar="ID")
@click.option("--assignee", metavar="NAME", help="The person or group that is to answer.")
@click.option("--due", metavar="TIME", help="When an answer is wanted, from now: 90s, 2h.")
@click.option("--priority", type=int, metavar="N", help="From -100 to 100; higher is listed first.")
@click.option("--remind-every", metavar="TIME", help="Remind this often, as in 30m or 1d.")
@click.option("--escalate-after", metavar="TIME", help="Escalate after this time, as in 4h.")
@click.option("--escalate-to", metavar="NAME", help="The person or group to escalate to.")
@click.option(
    "--clear", multiple=True, type=click.Choice(list(_CLEARED)), help="Remove this instead. Repeatable."
)
@actor_option
def assign_command(
    ctx: CommandContext, question_id: str, *, clear: tuple[str, ...], actor: str | None, **given: Any
) -> None:
    """Change who is to answer a question, and by when. ID is as for `holdfast answer`."""
    question = _find(ctx, question_id)
    changes = {name: value for name, value in given.items() if value is not None}
    for name in ("due", "remind_every", "escalate_after"):
        if name in changes:
            changes[name] = parse_duration(changes[name])
    for name in clear:
        changes |= _CLEARED[name]
    if not changes:
        raise click.UsageError("say what to change: --assignee ana, --due 2h, --priority 5, …")
    after = ctx.hf.assign(question.id, **changes, actor=actor)
    parts = [
        f"assigned to {after.assignee}" if after.assignee else "assigned to no one",
        f"due {age(after.due)}" if after.due else "",
        f"priority {after.priority}" if after.priority else "",
    ]
    ctx.out.done(question_view(after), plain(f"{after.id}: {', '.join(filter(None, parts))}"))


@command("signal")
@click.argument("run", type=RUN)
@click.argument("name")
@click.argument("data", required=False, metavar="[JSON]")
@actor_option
@_resume_option
def signal_command(
    ctx: CommandContext, run: str, name: str, *, data: str | None, actor: str | None, resume: bool
) -> int:
    """Send a signal to a run that waits for it, now or later."""
    hf = ctx.open_with_app() if resume else ctx.hf
    run = hf.get(run, prefix=True).id
    value = None if data is None else parse_json(data, name)
    with show_progress(ctx, hf, run), explain_changed_code(run):
        found = hf.signal(run, name, value, actor=actor, resume=resume, raises=False)
    return _report_delivery(ctx, found, f"sent {name}", resume)


def _report_delivery(ctx: CommandContext, run: Run, done: str, resume: bool) -> int:
    """Print the outcome of the run that received an answer or a signal; of a child, that of the topmost parent."""
    while run.parent is not None:
        run = ctx.hf.get(run.parent)
    preview = ctx.hf.preview(run.id)
    could_resume = resume and preview.known
    # A run of a queue that waits for nothing more is left to the workers.
    is_left = preview.status == "queued" or (
        could_resume and preview.status == "suspended" and not preview.waits
    )
    if preview.status == "cancelled" or (
        could_resume and not is_left and preview.status not in ("running", "paused")
    ):
        return report_outcome(ctx, run)
    resume_it = f"holdfast resume {run.id}{'' if preview.known else ' --app MODULE'}"
    if is_left:
        done = f"{done}; a worker or monitor with its code will resume {run.id}, or use {resume_it}"
    elif preview.status != "running":
        done = f"{done}; continue the run with {resume_it}"
    ctx.out.done({"run": run.id, "status": preview.status}, plain(done))
    return exit_codes.DONE


def _find(ctx: CommandContext, question_id: str) -> Question:
    try:
        return find_question(ctx.hf, question_id)
    except InvalidAnswer as error:
        raise exit_codes.AlreadyAnswered(str(error), **error.details) from None


def _describe_stall(question: Question) -> list[str]:
    """Return the diagnosis of a stalled run or loop; the details of a question of a workflow."""
    details = question.details
    if question.kind == "question":
        return [f"{name}: {brief(value, 200)}" for name, value in details.items()]
    lines = [
        f"{'loop ' + question.project if question.project else question.run} is stalled: {details['why']}",
        f"  since              {age(details['since'])}",
    ]
    if question.kind == "stalled":
        attempt = f", attempt {details['attempt']}" if details["attempt"] else ""
        lines += [
            f"  step               {details['address'] + attempt if details['address'] else 'between two steps'}",
            f"  recoveries         {details['restores']}",
        ]
    good = "none" if details["version"] is None else details["version"]
    lines.append(f"  last good version  {good}")
    if details.get("stack"):
        lines += ["  stack:", *(f"    {line}" for line in details["stack"].splitlines())]
    if details["diff"]:
        lines += [f"  changes since version {good}:", *(f"    {line}" for line in details["diff"])]
    if details["initial"]:
        lines.append("  the parts that --keep accepts, with their changes since the start:")
        for part in details["initial"]:
            lines += [f"    {part['path']}", *(f"      {line}" for line in part["changes"][:5])]
    return lines
