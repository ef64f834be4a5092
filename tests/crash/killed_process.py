"""The program that `test_kill` kills: it works on a store and reports each acknowledged call.

It is a fork server: for each job, a line of JSON on its input, it forks a child that does the job, so that modules are
imported once. Children and server write lines of JSON to one pipe. The server reports the end of a child after the
child has ended, so all reports of the child come first.
"""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import holdfast
from holdfast import History, Holdfast, Retention

RUNS = ("ada", "bob", "eve")
KEEP = 5
_ROUND = 8


def digest(state: Any) -> str:
    """Return a short hash of a state, including the order of keys and the types of values."""
    return sha256(repr(holdfast.thaw(state)).encode()).hexdigest()[:24]


def say(**facts: Any) -> None:
    """Write one line to the parent in a single call."""
    os.write(sys.stdout.fileno(), json.dumps(facts).encode() + b"\n")


def fresh_state() -> dict[str, Any]:
    """Return the first state of a run."""
    return {"messages": [], "wide": {f"k{n}": n for n in range(40)}, "count": 0}


def change(state: Any, rng: random.Random) -> None:
    """Change a state, plain or draft; the same random numbers make the same change."""
    state["count"] += 1
    choice = rng.random()
    if choice < 0.5:
        state["messages"].append({"role": "agent", "content": rng.randbytes(rng.randrange(20, 300)).hex()})
    elif choice < 0.7:
        state["wide"][f"k{rng.randrange(80)}"] = [rng.random(), "x" * rng.randrange(700)]
    elif choice < 0.8:
        state["messages"][:] = []
    elif choice < 0.9:
        state["wide"].pop(f"k{rng.randrange(80)}", None)
    else:
        state["large"] = rng.randbytes(rng.randrange(66_000, 80_000))


def commit(hf: Holdfast, rng: random.Random, _: Any) -> None:
    """Commit to several runs until killed, by `commit` and by `edit`, with rollbacks and tags."""
    logs = [hf.history(run) for run in RUNS]
    for log in logs:
        if not hf.runs() or log.id not in {run.id for run in hf.runs()}:
            version = log.commit(fresh_state())
            say(run=log.id, number=version.number, digest=digest(fresh_state()))
    plain = {log.id: holdfast.thaw(log.head.state) for log in logs}
    while True:
        log = rng.choice(logs)
        choice = rng.random()
        if choice < 0.05:
            target = log.rollback(to=rng.randrange(1, log.head.number + 1), reason="try again")
            plain[log.id] = holdfast.thaw(target.state)
            say(run=log.id, timeline=log.timelines()[-1].number, to=target.number)
        elif choice < 0.1:
            number, tag = log.head.number, f"tag-{rng.randrange(1000)}"
            log.tag(number, tag)
            say(run=log.id, tagged=number, tag=tag)
        else:
            plain[log.id] = _one_commit(log, plain[log.id], rng, by_edit=choice < 0.6)


def _one_commit(log: History, before: Any, rng: random.Random, *, by_edit: bool) -> Any:
    after = copy.deepcopy(before)
    seed = rng.random()
    change(after, random.Random(seed))
    tags = [f"tag-{rng.randrange(1000)}"] if rng.random() < 0.1 else []
    if by_edit:
        with log.edit(step="work", tags=tags, result={"seed": seed}) as state:
            change(state, random.Random(seed))
        version = log.head
    else:
        version = log.commit(after, step="work", tags=tags, result={"seed": seed})
    say(run=log.id, number=version.number, digest=digest(after), tags=tags, seed=seed)
    return after


def prune(hf: Holdfast, rng: random.Random, _: Any) -> None:
    """Commit and prune until killed."""
    log = hf.history("ada")
    plain = holdfast.thaw(log.head.state) if hf.runs() else fresh_state()
    while True:
        for _n in range(_ROUND):
            change(plain, rng)
            version = log.commit(copy.deepcopy(plain), step="work")
            say(run=log.id, number=version.number, digest=digest(plain))
        if rng.random() < 0.2:
            log.pin("head")
            say(run=log.id, pinned=version.number)
        plan = log.prune(Retention(last=KEEP), dry_run=True)
        say(run=log.id, pruning=plan.versions)
        log.prune(Retention(last=KEEP))
        say(run=log.id, pruned=plan.versions)


def collect(hf: Holdfast, rng: random.Random, _: Any) -> None:
    """Commit large values, prune their versions and collect them until killed."""
    log = hf.history("ada")
    while True:
        for _n in range(4):
            state = {"large": [holdfast.artifact(rng.randbytes(500)), rng.randbytes(66_000)]}
            version = log.commit(state)
            say(run=log.id, number=version.number, digest=digest(state))
        say(run=log.id, pruning=log.prune(Retention(last=2), dry_run=True).versions)
        log.prune(Retention(last=2))
        hf.gc(grace=0)


def bring_in(hf: Holdfast, rng: random.Random, bundle: str) -> None:
    """Import a bundle under new names until killed."""
    while True:
        log = hf.import_run(bundle, run_id=f"copy-{rng.randrange(1 << 60)}")
        say(run=log.id, imported=log.head.number)


def back_up(hf: Holdfast, rng: random.Random, folder: str) -> None:
    """Commit and back up the store under new names until killed."""
    log = hf.history("ada")
    while True:
        state = {"large": [holdfast.artifact(rng.randbytes(500)), rng.randbytes(66_000)], "n": rng.random()}
        version = log.commit(state)
        say(run=log.id, number=version.number, digest=digest(state))
        name = f"copy-{rng.randrange(1 << 60)}.db"
        hf.backup(os.path.join(folder, name), artifacts=os.path.join(folder, "copies"))
        say(run=log.id, backup=name, version=version.number)


JOBS: dict[str, Callable[[Holdfast, random.Random, Any], None]] = {
    job.__name__: job for job in (commit, prune, collect, bring_in, back_up)
}


def _child(job: dict[str, Any]) -> None:
    say(ready=os.getpid())
    try:
        hf = holdfast.open(job["path"], durability="durable", artifacts=job.get("artifacts"))
        JOBS[job["job"]](hf, random.Random(job["seed"]), job.get("more"))
    except BaseException:
        say(failed=traceback.format_exc())
    while True:
        # Wait to be killed: another process must not get this id.
        signal.pause()


def serve() -> None:
    """Fork a child for each job, and report how it ended."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _child(json.loads(line))
        _, status = os.waitpid(pid, 0)
        say(ended=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None)


if __name__ == "__main__":
    serve()
