"""`holdfast forget` and `holdfast delete`"""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.completing import RUN
from holdfast.cli.output import Column
from holdfast.cli.plan import careful, go_ahead
from holdfast.desk.lookup import parts_of
from holdfast.desk.plan import names
from holdfast.desk.records import pruned_record
from holdfast.desk.words import count, length, plain, size
from holdfast.engine import Holdfast
from holdfast.errors import StaleVersion
from holdfast.model.public import Pruned
from holdfast.model.retention import Retention


@command("forget")
@click.argument("runs", nargs=-1, type=RUN)
@click.option("--all", "everything", is_flag=True, help="All runs.")
@click.option("--keep-last", "last", type=click.IntRange(0), metavar="N", help="Keep the last N versions.")
@click.option("--keep-within", "within", metavar="TIME", help="Keep what is not older: 12h, 30d.")
@click.option(
    "--keep-hourly", "hourly", type=click.IntRange(0), metavar="N", help="Keep one for each of N hours."
)
@click.option(
    "--keep-daily", "daily", type=click.IntRange(0), metavar="N", help="Keep one for each of N days."
)
@click.option(
    "--keep-weekly", "weekly", type=click.IntRange(0), metavar="N", help="Keep one for each of N weeks."
)
@careful
def forget_command(
    call: Call, runs: tuple[str, ...], *, everything: bool, yes: bool, dry_run: bool, **rules: Any
) -> int:
    """Remove versions that a policy does not keep. A version stays if any rule keeps it.

    The head, tagged and pinned versions, and those that forks and unfinished runs need, stay always.
    """
    if not runs and not everything:
        raise click.UsageError("name the runs, or say --all")
    within = rules.pop("within")
    if within is None and all(rule is None for rule in rules.values()):
        raise click.UsageError("say what to keep: --keep-last 10, --keep-within 30d, --keep-daily 7")
    policy = Retention(**rules, within=None if within is None else length(within))
    hf = call.hf
    wanted = [run.id for run in hf.iter_runs()] if everything else _found(hf, runs)
    plans = _plans(hf, wanted, policy)
    if dry_run:
        _show(call, plans)
        return exits.DONE
    total = sum(len(plan.versions) for plan in plans.values())
    if not total:
        call.out.done({"versions": 0, "bytes": 0, "runs": wanted}, "nothing to forget")
        return exits.DONE
    if not yes:
        for run, plan in plans.items():
            if plan.versions:
                call.out.say(
                    plain(f"{run}: {_ranges(plan.versions)} of {len(plan.versions) + len(plan.kept)}")
                )
    lines = [f"{count(total, 'version')} of {count(len(wanted), 'run')} can no longer be read"]
    if not go_ahead(call, lines, {}, yes=yes, dry_run=False, must=True):
        return exits.DONE
    if not yes:
        _refuse_more(plans, _plans(hf, wanted, policy))
    freed = 0
    gone = 0
    with call.out.progress("forgetting") as advance:
        for done, run in enumerate(wanted, 1):
            pruned = hf.history(run).prune(policy)
            freed, gone = freed + pruned.bytes, gone + len(pruned.versions)
            advance(done, len(wanted))
    call.out.done(
        {"versions": gone, "bytes": freed, "runs": wanted},
        f"{count(gone, 'version')} forgotten, {size(freed)} (holdfast gc removes large values that are free now)",
    )
    return exits.DONE


@command("delete")
@click.argument("runs", nargs=-1, required=True, type=RUN)
@careful
def delete_command(call: Call, runs: tuple[str, ...], *, yes: bool, dry_run: bool) -> int:
    """Remove whole runs for ever.

    The runs that are parts of them go with them; forks of them stay. A run that is at work is to be cancelled first.
    """
    hf = call.hf
    named = _found(hf, runs)
    parts = list(dict.fromkeys(part for run in named for part in parts_of(hf, run)))
    wanted = [run for run in named if run not in parts]
    lines = [f"{count(len(wanted), 'run')} will be removed for ever, with all versions: {names(wanted)}"]
    if parts:
        along = "that is a part of them goes" if len(parts) == 1 else "that are parts of them go"
        lines.append(f"{count(len(parts), 'run')} {along} along: {names(parts)}")
    lines = [plain(line) for line in lines]
    if not go_ahead(call, lines, {"runs": wanted, "parts": parts}, yes=yes, dry_run=dry_run, must=True):
        return exits.DONE
    for run in wanted:
        hf.delete(run)
    more = f", and {count(len(parts), 'part')}" if parts else ""
    call.out.done({"deleted": wanted, "parts": parts}, plain(f"removed: {names(wanted)}{more}"))
    return exits.DONE


def _found(hf: Holdfast, runs: tuple[str, ...]) -> list[str]:
    """The runs that are named, each once."""
    return list(dict.fromkeys(hf.find(run) for run in runs))


def _plans(hf: Holdfast, runs: list[str], policy: Retention) -> dict[str, Pruned]:
    return {run: hf.history(run).prune(policy, dry_run=True) for run in runs}


def _refuse_more(said: dict[str, Pruned], now: dict[str, Pruned]) -> None:
    """Nothing goes of which nobody was told."""
    for run, plan in now.items():
        more = set(plan.versions) - set(said[run].versions)
        if more:
            raise StaleVersion(
                f"run {run!r} has changed meanwhile, and more of its versions would go "
                f"({_ranges(tuple(more))}): nothing was forgotten; call this again and look at it anew",
                run=run,
            )


def _show(call: Call, plans: dict[str, Pruned]) -> None:
    """What would be done, for a dry run."""
    if call.out.json:
        call.out.document({"dry_run": True, "runs": [pruned_record(*row) for row in plans.items()]})
        return
    columns = [
        Column("run", lambda row: row[0], style="bold", least=20),
        Column("forget", lambda row: len(row[1].versions), style="red", right=True),
        Column("keep", lambda row: len(row[1].kept), style="green", right=True),
        Column(
            "versions",
            lambda row: ",".join(map(str, row[1].versions)),
            lambda row: _ranges(row[1].versions),
            least=10,
        ),
    ]
    call.out.rows(plans.items(), columns, lambda row: pruned_record(*row), empty="no runs")
    call.out.say("nothing was changed (--dry-run)")


def _ranges(numbers: tuple[int, ...]) -> str:
    """Numbers in few characters: `1–4, 7`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in parts)
