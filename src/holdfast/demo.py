"""The agent of `holdfast demo`: it researches kelp, and makes a mistake.

`python -m holdfast.demo FILE NOTES [VERSION]` begins its run in a store, or goes on with it, or rolls it back to a
version and goes on with more care. It says what it does on standard output, a line each: what happens, the step, and
what it is about, with tabs between. In the folder NOTES it keeps what the world would know of it: whether the search
engine was down already, and each effect that it had.
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
#: Seconds that a pretended call of a model takes.
_PACE = 0.1


@step
def plan(topic: str) -> list[str]:
    """Each step may change the state as if it were an ordinary dict."""
    holdfast.state()["topic"] = topic
    return work("plan", f"{len(_QUESTIONS)} questions about {topic}", list(_QUESTIONS))


@step(retry=Retry(3, delay=0.15, jitter=0))
def search(question: str) -> str:
    """A step that fails the first time, as searches do."""
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
    """The step that goes wrong."""
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
    """Loops, branches and calls are plain Python."""
    pages = [search(question) for question in plan(topic)]
    return publish(draft(extract(read(pages))))


def extract_with_care(text: str) -> dict[str, str]:
    """Another implementation of the step `extract`."""
    facts = {
        "growth": "60 centimetres a day",
        "depth": "down to 40 metres",
        "guests": "otters, urchins, seals",
    }
    holdfast.state()["facts"] = facts
    return work("extract", "three facts, units checked", facts)


def work(name: str, what: str, result: T, slow: float = 1) -> T:
    """Pretend to call a model."""
    say("begin", name, what)
    time.sleep(_PACE * slow)
    holdfast.note(model="pretend-1", tokens=100 + len(str(result)))
    with (_notes() / "effects").open("a") as effects:
        effects.write(f"{holdfast.idempotency_key()} {name}\n")
    say("end", name, what)
    return result


def say(happens: str, name: str, what: str) -> None:
    print(f"{happens}\t{name}\t{what}", flush=True)


def repeated(notes: Path) -> int:
    """How many steps had their effect more than once."""
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
    """The life of the agent's process."""
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
