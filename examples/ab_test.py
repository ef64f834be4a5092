"""Two agents answer the same question from the same facts: which is worth its price?

    python examples/ab_test.py [FOLDER]

One run reads the sources, which takes most of its tokens. Two forks continue from the version that has the sources,
each with another implementation of the step `write`. They share the history before it, which is not paid for again, so
every difference comes from the writer.
"""

import sys
import tempfile
from pathlib import Path

import holdfast
from holdfast import Run, step, workflow

FACTS = {"kelp": "grows half a metre a day", "urchins": "eat kelp", "otters": "eat urchins"}


@step
def read(source: str) -> str:
    holdfast.state()["facts"][source] = FACTS[source]
    holdfast.annotate(model="reader-1", tokens=200, cost=0.02)  # stored with the version, summed for the run
    return FACTS[source]


@step
def write() -> str:
    holdfast.annotate(model="medium-1", tokens=150, cost=0.03)
    return essay_on(2)


@step
def judge(text: str) -> int:
    """Count the facts in the text."""
    holdfast.state()["text"] = text
    holdfast.annotate(model="judge-1", tokens=50, cost=0.01)
    return sum(fact in text for fact in FACTS.values())


@workflow
def essay() -> int:
    for source in FACTS:
        read(source)
    return judge(write())


# The two agents: plain functions that replace a step


def frugal() -> str:
    holdfast.annotate(model="small-1", tokens=30, cost=0.003)
    return essay_on(1)


def thorough() -> str:
    holdfast.annotate(model="large-1", tokens=400, cost=0.12)
    return essay_on(3)


def essay_on(count: int) -> str:
    """Write with the fake model."""
    facts = list(holdfast.state()["facts"].items())
    return " ".join(f"{source.title()} {fact}." for source, fact in facts[:count])


def main(folder: Path) -> None:
    with holdfast.open(folder / "runs.db") as hf:
        show(hf.run(essay, run_id="base", state={"facts": {}}))
        ready = hf.history("base").versions(step="read")[0]  # the newest: all sources were read
        print(f"Two forks of version {ready.number}, which has the facts, and their own spending:")
        for name, writer in {"frugal": frugal, "thorough": thorough}.items():
            hf.fork(ready, name, overrides={"write": writer}, note=f"A/B test: {name}")
            show(hf.resume(name))

        print("\nCompared step by step:")
        print(hf.compare("frugal", "thorough"))

        print("\nAll runs:")
        for summary in reversed(list(hf.iter_runs())):
            print(f"  {summary.id:9} {summary.status}, {summary.versions} versions", end="")
            print(f", forked from {summary.origin}" if summary.origin else "")


def show(run: Run) -> None:
    tokens, cost = run.totals["tokens"], run.totals["cost"]
    print(f"  {run.id:9} {run.result} of {len(FACTS)} facts {tokens:5} tokens {cost:7.3f} €")


if __name__ == "__main__":
    where = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp(prefix="holdfast-"))
    where.mkdir(parents=True, exist_ok=True)
    if (where / "runs.db").exists():
        sys.exit(f"there are runs in {where} already: name another folder")
    main(where)
