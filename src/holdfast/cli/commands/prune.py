"""`holdfast prune`, `holdfast delete` and `holdfast gc`"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.cli.context import RUN, CommandContext, command, confirm, confirm_options
from holdfast.cli.output import Column
from holdfast.engine import Holdfast
from holdfast.errors import StaleVersion
from holdfast.model.public import Pruned
from holdfast.model.retention import Retention
from holdfast.operator_view.actions import join_names
from holdfast.operator_view.lookup import iter_descendants
from holdfast.operator_view.records import pruned_view
from holdfast.operator_view.text import count, parse_duration, plain, size

F = TypeVar("F", bound=Callable[..., Any])


def _keep_option(rule: str, what: str) -> Callable[[F], F]:
    """Return the option of a retention rule that counts versions."""
    return click.option(f"--keep-{rule}", rule, type=click.IntRange(0), metavar="N", help=what)


@command("prune")
@click.argument("runs", nargs=-1, type=RUN)
@click.option("--all", "everything", is_flag=True, help="All runs.")
@_keep_option("last", "Keep the last N versions.")
@click.option("--keep-within", "within", metavar="TIME", help="Keep versions younger than this: 12h, 30d.")
@_keep_option("hourly", "Keep one version per hour, for N hours.")
@_keep_option("daily", "Keep one version per day, for N days.")
@_keep_option("weekly", "Keep one version per week, for N weeks.")
@confirm_options
def prune_command(
    ctx: CommandContext,
    runs: tuple[str, ...],
    *,
    everything: bool,
    yes: bool,
    dry_run: bool,
    **rules: Any,
) -> None:
    """Remove old versions that a retention policy does not keep. A version is kept if any rule keeps it.

    The head, tagged and pinned versions, and versions that forks, unfinished runs and agent loops need, are always
    kept.
    """
    if not runs and not everything:
        raise click.UsageError("name the runs, or use --all")
    within = rules.pop("within")
    if within is None and all(rule is None for rule in rules.values()):
        raise click.UsageError("name what to keep: --keep-last 10, --keep-within 30d, --keep-daily 7")
    policy = Retention(**rules, within=None if within is None else parse_duration(within))
    hf = ctx.hf
    wanted = [run.id for run in hf.iter_runs()] if everything else _resolve_runs(hf, runs)
    plans = _plans(hf, wanted, policy)
    if dry_run:
        _show(ctx, plans)
        return
    total = sum(len(plan.versions) for plan in plans.values())
    if not total:
        ctx.out.done({"versions": 0, "bytes": 0, "runs": wanted}, "nothing to prune")
        return
    if not yes:
        for run, plan in plans.items():
            if plan.versions:
                ctx.out.say(
                    plain(f"{run}: {_ranges(plan.versions)} of {len(plan.versions) + len(plan.kept)}")
                )
    lines = [f"{count(total, 'version')} of {count(len(wanted), 'run')} will be removed"]
    if not confirm(ctx, lines, {}, yes=yes, dry_run=False, irreversible=True):
        return
    if not yes:
        _refuse_more(plans, _plans(hf, wanted, policy))
    freed = 0
    gone = 0
    with ctx.out.progress("pruning") as advance:
        for done, run in enumerate(wanted, 1):
            pruned = hf.history(run).prune(policy)
            freed, gone = freed + pruned.bytes, gone + len(pruned.versions)
            advance(done, len(wanted))
    ctx.out.done(
        {"versions": gone, "bytes": freed, "runs": wanted},
        f"pruned {count(gone, 'version')}, {size(freed)} (`holdfast gc` removes unused artifacts)",
    )


@command("delete")
@click.argument("runs", nargs=-1, required=True, type=RUN)
@confirm_options
def delete_command(ctx: CommandContext, runs: tuple[str, ...], *, yes: bool, dry_run: bool) -> None:
    """Delete whole runs permanently, with their children but not their forks. Cancel a running run first."""
    hf = ctx.hf
    named = _resolve_runs(hf, runs)
    children = list(dict.fromkeys(child for run in named for child in iter_descendants(hf, run)))
    wanted = [run for run in named if run not in children]
    lines = [f"delete {count(len(wanted), 'run')} permanently, with all versions: {join_names(wanted)}"]
    if children:
        lines.append(f"and {count(len(children), 'child run')}: {join_names(children)}")
    lines = [plain(line) for line in lines]
    if not confirm(
        ctx, lines, {"runs": wanted, "children": children}, yes=yes, dry_run=dry_run, irreversible=True
    ):
        return
    for run in wanted:
        hf.delete(run)
    more = f", and {count(len(children), 'child run')}" if children else ""
    ctx.out.done({"deleted": wanted, "children": children}, plain(f"deleted {join_names(wanted)}{more}"))


def _resolve_runs(hf: Holdfast, runs: tuple[str, ...]) -> list[str]:
    """Return the ids of the named runs, without duplicates."""
    return list(dict.fromkeys(hf.get(run, prefix=True).id for run in runs))


def _plans(hf: Holdfast, runs: list[str], policy: Retention) -> dict[str, Pruned]:
    return {run: hf.history(run).prune(policy, dry_run=True) for run in runs}


def _refuse_more(announced: dict[str, Pruned], now: dict[str, Pruned]) -> None:
    """Raise `StaleVersion` if more versions would be removed than were announced."""
    for run, plan in now.items():
        more = set(plan.versions) - set(announced[run].versions)
        if more:
            raise StaleVersion(
                f"run {run!r} has changed, and more of its versions would be removed "
                f"({_ranges(tuple(more))}); nothing was pruned: run the command again",
                run=run,
            )


def _show(ctx: CommandContext, plans: dict[str, Pruned]) -> None:
    """Print the plans of a dry run."""
    if ctx.out.json:
        ctx.out.document({"dry_run": True, "runs": [pruned_view(*row) for row in plans.items()]})
        return
    columns = [
        Column("run", lambda row: row[0], style="bold", min_width=20),
        Column("prune", lambda row: len(row[1].versions), style="red", right=True),
        Column("keep", lambda row: len(row[1].kept), style="green", right=True),
        Column(
            "versions",
            lambda row: ",".join(map(str, row[1].versions)),
            lambda row: _ranges(row[1].versions),
            min_width=10,
        ),
    ]
    ctx.out.rows(plans.items(), columns, lambda row: pruned_view(*row), empty="no runs")
    ctx.out.say("nothing was changed (--dry-run)")


def _ranges(numbers: tuple[int, ...]) -> str:
    """Return numbers as ranges: `1–4, 7`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in parts)


@command("gc")
@click.option("--compact", is_flag=True, help="Also return free space to the file system (slow).")
@click.option("--grace", metavar="TIME", default="1h", show_default=True, help="Keep younger artifacts.")
def gc_command(ctx: CommandContext, *, compact: bool, grace: str) -> None:
    """Remove artifacts that no version refers to."""
    hf = ctx.hf
    before = hf.stats().file_bytes or 0
    with ctx.out.progress("collecting") as advance:
        advance(0, 1)
        found = hf.gc(grace=parse_duration(grace).total_seconds(), compact=compact)
    after = hf.stats().file_bytes or 0
    compacted = f"; the file shrank from {size(before)} to {size(after)}" if compact else ""
    ctx.out.done(
        {"artifacts": found.artifacts, "bytes": found.bytes, "file_bytes": after},
        f"removed {count(found.artifacts, 'artifact')}, {size(found.bytes)}{compacted}",
    )
