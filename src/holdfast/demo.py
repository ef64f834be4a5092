"""Holdfast in a few seconds: an agent works, is killed, goes on, makes a mistake, and is put right.

`python -m holdfast.demo [FILE]` keeps the run in a new SQLite file and says in plain words what happens. The agent runs
in a process of its own, which is really killed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import holdfast
from holdfast import Holdfast, Retry, step, workflow

T = TypeVar("T")

RUN = "newsletter"
TOPIC = "kelp forests"


# The agent: ordinary functions, and two decorators


@step
def plan(topic: str) -> list[str]:
    """Each step may change the state as if it were an ordinary dict."""
    return work(
        "plan", f"three questions about {topic}", ["what is it", "who lives there", "what threatens it"]
    )


@step(retry=Retry(3, delay=0.2))
def search(question: str) -> str:
    """A step that fails the first time, as searches do."""
    tried = holdfast.state().setdefault("tried", [])
    flag = Path(sys.argv[2]).with_suffix(".offline")
    if question == "who lives there" and not flag.exists():
        flag.touch()
        tried.append("this is dropped with the attempt that failed")
        say("search", "no connection; once more in a moment")
        raise ConnectionError("the search engine does not answer")
    return work("search", f"{question}?", f"found: {question}")


@step
def outline(notes: list[str]) -> str:
    return work("outline", f"from {len(notes)} notes", "beginning, middle, end")


@step
def draft(shape: str) -> str:
    return work("draft", "writing", f"A letter about {TOPIC}: {shape}.", slow=0.8)


@step
def headline(text: str) -> str:
    return work("headline", "something catchy", "You will NOT BELIEVE what kelp does!!!")


@step
def publish(title: str, text: str) -> str:
    return work("publish", f"“{title}”", f"{title}\n{text}")


@workflow
def newsletter(topic: str) -> str:
    """Eight steps. Loops, branches and calls are plain Python."""
    notes = [search(question) for question in plan(topic)]
    text = draft(outline(notes))
    return publish(headline(text), text)


def sober(text: str) -> str:
    """Another implementation of the step `headline`."""
    return work("headline", "a sober one", "What kelp forests do")


def work(name: str, what: str, result: T, slow: float = 0.15) -> T:
    """Pretend to call a model; what was done can be counted afterwards, in a file."""
    say(name, what)
    time.sleep(slow)
    holdfast.state()[name] = result
    holdfast.note(model="pretend-1", tokens=100 + len(str(result)))
    with Path(sys.argv[2]).with_suffix(".done").open("a") as done:
        done.write(f"{holdfast.idempotency_key()} {name}\n")
    return result


def say(name: str, what: str) -> None:
    print(f"    {name:9} {what}", flush=True)


def agent() -> None:
    """The life of the agent's process: begin, or go on."""
    with holdfast.open(sys.argv[2]) as hf:
        if hf.runs(limit=1):
            hf.resume(RUN)
        else:
            hf.run(newsletter, TOPIC, run_id=RUN)


# The story


def main() -> None:
    """Tell the story on a new file: the one named, or one in a new temporary folder."""
    given = sys.argv[1:]
    path = Path(given[0]) if given else Path(tempfile.mkdtemp(prefix="holdfast-")) / "runs.db"
    if path.exists():
        sys.exit(f"{path} exists, and the demo starts from nothing: name a file that does not")
    sys.argv[1:] = ["story", str(path)]
    tell(
        "An agent of eight steps. Each step is a version, safe on disk when the step ends:",
        "hf.run(newsletter, …)",
    )
    live(path, kill_at="draft")
    before = versions(path)
    print(f"    💥 kill -9 in the middle of “draft”; {before - 1} steps were done")
    tell("A new process goes on where the old one was:", f'hf.resume("{RUN}")')
    live(path)
    done = Counter(line.split()[0] for line in path.with_suffix(".done").read_text().splitlines())
    print(f"    {sum(done.values()) - len(done)} steps repeated, {versions(path)} versions")
    with holdfast.open(path) as hf:
        put_right(hf)
        look(hf)
    print(NEXT.format(python=sys.executable, path=path))


def live(path: Path, kill_at: str | None = None) -> None:
    """Run the agent's process and show what it says; kill it when it comes to a step."""
    command = [sys.executable, "-m", "holdfast.demo", "agent", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - itself
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if kill_at is not None and line.split()[0] == kill_at:
                time.sleep(0.1)
                process.send_signal(signal.SIGKILL)
                return


def versions(path: Path) -> int:
    with holdfast.open(path) as hf:
        return hf.history(RUN).head.number


def put_right(hf: Holdfast) -> None:
    """Roll a bad step back and run it, and what follows, otherwise. Nothing is deleted."""
    log = hf.history(RUN)
    bad = log.versions(step="headline")[0]
    tell(
        f"That headline is a mistake. Back to version {bad.parent}, and on with another implementation of that step:",
        f'hf.rollback("{RUN}", to={bad.parent}, overrides={{"headline": sober}})',
    )
    hf.rollback(RUN, to=bad.parent or 1, reason="too shrill", overrides={"headline": sober})
    for version in reversed(log.versions()):
        mark = "  ← head" if version.number == log.head.number else ""
        print(
            f"    version {version.number:2}  timeline {version.timeline}  {version.address or version.kind}{mark}"
        )


def look(hf: Holdfast) -> None:
    """Both timelines are there, and can be compared."""
    log = hf.history(RUN)
    first = next(version for version in log.versions() if version.timeline == 1 and version.kind == "final")
    comparison = hf.compare(f"{RUN}@{first.number}", RUN)
    tell("The two timelines, step by step:", f'hf.compare("{RUN}@{first.number}", "{RUN}")', [comparison])
    tell("Who wrote that headline?", 'log.blame("headline")', [log.blame("headline")])
    report = hf.verify()
    sound = "every hash is right" if report.ok else "something is damaged"
    tokens = hf.get(RUN).totals["tokens"]
    tell(
        "And what it took:",
        "hf.verify(); run.totals",
        [f"{report.versions} versions, {sound}; {tokens} tokens"],
    )


def tell(what: str, call: str, lines: Iterable[object] = ()) -> None:
    """A sentence, the call that did it, and below it what there is to see."""
    print(f"\n{what}\n  > {call}", flush=True)
    for line in lines:
        print("\n".join(f"    {part}" for part in str(line).splitlines()))


NEXT = """
Your turn, on the same file:
  $ {python}
  >>> import holdfast
  >>> hf = holdfast.open("{path}")
  >>> hf.get("newsletter").result
  >>> print(hf.diff("newsletter@7", "newsletter"))
  >>> hf.history("newsletter").at(3).state"""

if __name__ == "__main__":
    if sys.argv[1:2] == ["agent"]:
        agent()
    else:
        main()
