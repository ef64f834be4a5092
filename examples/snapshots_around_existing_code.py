"""A history around an agent that does not know Holdfast.

    python examples/snapshots_around_existing_code.py [FOLDER]

The agent is a third-party class with an open file and functions among its attributes. A snapshot is saved after each of
its turns, from outside. When a turn fails half-way, the agent gets the last good state back. At the end one version is
copied as JSON to another store.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast import InvalidSnapshot, UnsupportedValue

# The third-party agent


class Agent:
    def __init__(self, transcript: Path) -> None:
        self.messages: list[dict[str, str]] = []
        self.budget = 100
        self.tools: dict[str, Callable[[str], str]] = {"search": lambda question: f"found: {question}"}
        self.transcript = transcript.open("w")

    def turn(self, question: str) -> str:
        self.messages.append({"role": "user", "content": question})
        self.budget -= 10
        answer = self.tools["search"](question)
        self.messages.append({"role": "agent", "content": answer})
        self.transcript.write(f"{question} → {answer}\n")
        return answer


# Our code around it


def main(folder: Path) -> None:
    agent = Agent(folder / "transcript.txt")
    with agent.transcript, holdfast.open(folder / "runs.db") as hf:
        log = hf.history("agent")
        try:
            log.commit(vars(agent))
        except UnsupportedValue as error:
            print(f"A value that cannot be stored exactly is refused:\n  {error}")
        state, replaced = holdfast.sanitize(vars(agent))
        print(f"A sanitized copy replaces {', '.join(replaced)}")
        log.commit(state, note="before the first turn")

        # As a decorator it saves after each call; as a context manager also every `every` seconds.
        turn = holdfast.autosave(agent, log, every=None, sanitize=True)(agent.turn)
        turn("what is kelp?")
        turn("where does it grow?")
        log.tag("head", "good")

        agent.tools["search"] = broken
        try:
            turn("who eats it?")
        except ConnectionError as error:
            print(f"\nA turn fails half-way: {error}")
        show(log)

        print("\nRolled back to the good version, then continued:")
        put_back(agent, log.rollback(to="good", reason="the search engine was down").state)
        agent.tools["search"] = lambda question: "urchins do"
        turn("who eats it?")
        show(log)
        print("  the changes of the failed turn stay in the history:")
        for change in log.diff("good", 4).changes:
            print(f"    {change.summary}")

        print("\nA version as JSON, imported into another store:")
        document = log.export("head")
        (folder / "snapshot.json").write_text(json.dumps(document, indent=2, ensure_ascii=False))
        with holdfast.open(folder / "elsewhere.db") as other:
            try:
                other.import_snapshot({**document, "state": {"budget": 1_000_000}})
            except InvalidSnapshot as error:
                print(f"  {error}")
            copy = other.import_snapshot((folder / "snapshot.json").read_text(), run_id="agent-copy")
            is_equal = copy.state == log.head.state
            print(f"  {copy.run}: {len(copy.state['messages'])} messages, equal: {is_equal}")


def broken(question: str) -> str:
    raise ConnectionError("the search engine does not answer")


def put_back(agent: Agent, state: Any) -> None:
    """Take the data from the version; tools and files stay those of the running agent."""
    agent.messages = holdfast.thaw(state["messages"])
    agent.budget = state["budget"]


def show(log: holdfast.History) -> None:
    for version in reversed(log.versions()):
        line = (
            f"version {version.number}  timeline {version.timeline}  {len(version.get('messages'))} messages"
        )
        print(f"  {line}, budget {version.get('budget'):3}  {version.note or version.step}")


if __name__ == "__main__":
    where = Path(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp(prefix="holdfast-"))
    where.mkdir(parents=True, exist_ok=True)
    if (where / "runs.db").exists():
        sys.exit(f"there are runs in {where} already: name another folder")
    main(where)
