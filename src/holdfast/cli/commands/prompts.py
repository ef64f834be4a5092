"""`holdfast prompts`, `holdfast answer` and `holdfast send`: the operator's inbox."""

from __future__ import annotations

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.completing import RUN
from holdfast.cli.outcome import ended, followed, kept
from holdfast.cli.output import Column
from holdfast.desk.questions import answer_of, find_prompt, wanted
from holdfast.desk.records import prompt_record
from holdfast.desk.words import age, brief, parsed, plain
from holdfast.errors import InvalidAnswer
from holdfast.model.public import Prompt
from holdfast.runtime.run import Run


@command("prompts")
@click.option("--run", "run", type=RUN, help="Only those of this run.")
@click.option("--answered", is_flag=True, help="Those that have been answered instead, newest first.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    metavar="N",
    help="With --answered: the newest N.",
)
def prompts_command(call: Call, *, run: str | None, answered: bool, limit: int) -> None:
    """The questions that wait for an answer, oldest first."""
    only = None if run is None else call.hf.find(run)
    found = call.hf.prompts(open=not answered, run_id=only, limit=limit)
    columns = [
        Column("id", lambda prompt: prompt.id, style="bold"),
        Column("run", lambda prompt: prompt.run, least=12, spare=3),
        Column("asked", lambda prompt: prompt.opened, lambda prompt: age(prompt.opened), spare=2),
        Column(
            "until", lambda prompt: prompt.due, lambda prompt: age(prompt.due) if prompt.due else "", spare=4
        ),
        Column("question", lambda prompt: prompt.question, least=16),
        Column("answer", lambda prompt: prompt.schema, wanted, least=12, spare=1),
    ]
    if answered:
        columns[-1:] = [
            Column(
                "answer",
                lambda prompt: prompt.details.get("choice", prompt.answer),
                lambda prompt: prompt.details.get("choice") or brief(prompt.answer),
                least=8,
            ),
            Column("by", lambda prompt: prompt.actor, least=8, spare=1),
            Column("at", lambda prompt: prompt.answered, lambda prompt: age(prompt.answered)),
        ]
    none = "no questions have been answered" if answered else "no questions are open"
    call.out.rows(found, columns, prompt_record, empty=none)


@command("answer")
@click.argument("prompt_id", metavar="ID")
@click.argument("value", required=False)
@click.option(
    "--to", "version", type=int, metavar="N", help="With rollback: the version; else the last good one."
)
@click.option(
    "--keep", multiple=True, metavar="PATH", help="With reinitialise: a part of the state. Repeatable."
)
@click.option("--actor", metavar="NAME", help="Who answers; kept with the run.")
@click.option(
    "--resume/--no-resume", default=True, help="Go on with the run at once, where its code is known."
)
def answer_command(
    call: Call,
    prompt_id: str,
    *,
    value: str | None,
    version: int | None,
    keep: tuple[str, ...],
    actor: str | None,
    resume: bool,
) -> int:
    """Answer a question. ID is what `holdfast prompts` shows, or the run that asks, if it asks only one.

    VALUE is JSON (true, 3, {"ok": true}); where a text is wanted, the text itself will do. Without it, you are asked.
    For a run that is frozen it is resume, rollback (--to 3), reinitialise (begin afresh from version 1, --keep plan) or
    cancel; without it, you are told what is wrong first.
    """
    hf = call.with_code() if resume else call.hf
    prompt = _find(call, prompt_id)
    if value is None:
        if not call.out.can_ask:
            raise click.UsageError("give the answer as the second argument")
        for line in _told(prompt):
            call.out.say(plain(line))
        call.out.say(f"{plain(prompt.question)}  [{wanted(prompt)}]")
        value = click.prompt("answer", err=True)
    given = answer_of(prompt, str(value))
    with followed(call, hf, prompt.run), kept(prompt.run):
        run = hf.answer(
            prompt.id, given, version=version, keep=keep, actor=actor, resume=resume, raises=False
        )
    return _delivered(call, run, f"{prompt.id} is answered", resume)


@command("send")
@click.argument("run", type=RUN)
@click.argument("event")
@click.argument("data", required=False, metavar="[JSON]")
@click.option("--actor", metavar="NAME", help="Who sends it; kept with the run.")
@click.option(
    "--resume/--no-resume", default=True, help="Go on with the run at once, where its code is known."
)
def send_command(
    call: Call, run: str, event: str, *, data: str | None, actor: str | None, resume: bool
) -> int:
    """Send an event to a run that waits for it, now or later."""
    hf = call.with_code() if resume else call.hf
    run = hf.find(run)
    value = None if data is None else parsed(data, event)
    with followed(call, hf, run), kept(run):
        found = hf.send(run, event, value, actor=actor, resume=resume, raises=False)
    return _delivered(call, found, f"{event} is sent", resume)


def _delivered(call: Call, run: Run, what: str, resume: bool) -> int:
    """What became of a run that got what it waited for; if it is a part of another, of that one."""
    while run.parent is not None:
        run = call.hf.get(run.parent)
    preview = call.hf.preview(run.id)
    if preview.status == "cancelled" or (
        resume and preview.known and preview.status not in ("running", "paused", "queued")
    ):
        return ended(call, run)
    code = "" if preview.known else " --app MODULE"
    if preview.status == "queued":
        others = f"a worker or a monitor that knows its code goes on with {run.id}"
        what = f"{what}; {others}, or you do: holdfast resume {run.id}{code}"
    elif preview.status != "running":
        what = f"{what}; {run.id} goes on when it is resumed: holdfast resume {run.id}{code}"
    call.out.done({"run": run.id, "status": preview.status}, plain(what))
    return exits.DONE


def _find(call: Call, prompt_id: str) -> Prompt:
    try:
        return find_prompt(call.hf, prompt_id)
    except InvalidAnswer as error:
        raise exits.TooLate(str(error), **error.details) from None


def _told(prompt: Prompt) -> list[str]:
    """What is known of a run that is frozen, for whoever has to decide."""
    details = prompt.details
    if not details:
        return []
    where = (
        f"{details['address']}, attempt {details['attempt']}" if details["attempt"] else details["address"]
    )
    lines = [
        f"{prompt.run} is frozen: {details['why']}",
        f"  since    {age(details['since'])}",
        f"  where    {where or 'between two steps'}",
        f"  restores {details['restores']}",
        f"  the last good version is {details['version']}",
    ]
    if details["stack"]:
        lines += ["  where its code stood:", *(f"    {line}" for line in details["stack"].splitlines())]
    if details["diff"]:
        lines += [f"  since version {details['version']}:", *(f"    {line}" for line in details["diff"])]
    if details["initial"]:
        lines.append("  since the beginning, by the parts that can be kept:")
        for part in details["initial"]:
            lines += [f"    {part['path']}", *(f"      {line}" for line in part["changes"][:5])]
    return lines
