"""The agent of `holdfast demo`: it researches kelp, and makes a mistake.

`python -m holdfast.demo FILE NOTES [VERSION]` starts its run in a store, or resumes it, or rolls it back to a version
and continues with a corrected step. It prints a line for each event: the event, the step, and a description, separated
by tabs. The folder NOTES holds the state of the outside world: whether the search engine has failed yet, and each
effect of a step.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, TypeVar

import holdfast
from holdfast import Retry, step, workflow

T = TypeVar("T")

RUN = "research"
TOPIC = "kelp forests"
_QUESTIONS = ("what is it", "how fast does it grow", "who lives there")
#: Seconds that a simulated model call takes.
_PACE = 0.1


@step
def plan(topic: str) -> list[str]:
    """Plan. A step changes the state like an ordinary dict."""
    holdfast.state()["topic"] = topic
    return work("plan", f"{len(_QUESTIONS)} questions about {topic}", list(_QUESTIONS))


@step(retry=Retry(3, delay=0.15, jitter=0))
def search(question: str) -> str:
    """Search; the second question fails once and is retried."""
    holdfast.state().setdefault("notes", []).append(question)
    if question == _QUESTIONS[1] and _first_time("offline"):
        say("retry", "search", "the search engine does not answer; once more in a moment")
        raise ConnectionError("the search engine does not answer")
    return work("search", f"{question}?", f"ten pages on “{question}”")


@step
def read(pages: list[str]) -> str:
    return work("read", f"{10 * len(pages)} pages", "what they say")


@step
def extract(text: str) -> dict[str, str]:
    """Extract facts, one of them wrong."""
    facts = {"growth": "60 metres a day", "depth": "down to 40 metres", "guests": "otters, urchins, seals"}
    holdfast.state()["facts"] = facts
    return work("extract", "three facts", facts)


@step
def draft(facts: dict[str, str]) -> str:
    text = f"Kelp grows {facts['growth']}, {facts['depth']}, and is home to {facts['guests']}."
    return work("draft", "a paragraph", text, slow=3)


@step
def publish(text: str) -> str:
    holdfast.state()["report"] = text
    return work("publish", "done", text)


@workflow
def research(topic: str) -> str:
    """Research a topic. Loops, branches and calls are plain Python."""
    pages = [search(question) for question in plan(topic)]
    return publish(draft(extract(read(pages))))


def extract_with_care(text: str) -> dict[str, str]:
    """Extract facts correctly: another implementation of the step `extract`."""
    facts = {
        "growth": "60 centimetres a day",
        "depth": "down to 40 metres",
        "guests": "otters, urchins, seals",
    }
    holdfast.state()["facts"] = facts
    return work("extract", "three facts, units checked", facts)


def work(name: str, what: str, result: T, slow: float = 1) -> T:
    """Simulate a model call, and record its effect."""
    say("begin", name, what)
    time.sleep(_PACE * slow)
    holdfast.annotate(model="pretend-1", tokens=100 + len(str(result)))
    with (_notes() / "effects").open("a") as effects:
        effects.write(f"{holdfast.idempotency_key()} {name}\n")
    say("end", name, what)
    return result


def say(happens: str, name: str, what: str) -> None:
    print(f"{happens}\t{name}\t{what}", flush=True)


def count_repeated(notes: Path) -> int:
    """Return the number of steps that had their effect more than once."""
    keys = [line.split()[0] for line in (notes / "effects").read_text().splitlines()]
    return len(keys) - len(set(keys))


def _first_time(name: str) -> bool:
    flag = _notes() / name
    first = not flag.exists()
    flag.touch()
    return first


def _notes() -> Path:
    return Path(os.environ["HOLDFAST_DEMO_NOTES"])


def main(arguments: list[str]) -> Any:
    """Start the run, resume it, or roll it back."""
    file, os.environ["HOLDFAST_DEMO_NOTES"], *back = arguments
    with holdfast.open(file) as hf:
        if back:
            return hf.rollback(
                RUN, int(back[0]), reason="centimetres, not metres", overrides={"extract": extract_with_care}
            )
        if hf.runs(limit=1):
            return hf.resume(RUN)
        return hf.run(research, TOPIC, run_id=RUN)


if __name__ == "__main__":
    main(sys.argv[1:])
