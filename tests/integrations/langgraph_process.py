"""A process that runs a graph on a store, reports what was acknowledged, and may be killed.

    python langgraph_process.py PATH THREAD DURABILITY STEPS [--gate] [--die NUMBER]

It resumes the thread if that has fewer than STEPS messages, otherwise it starts it. Each line of its output is JSON:
`ran` when a node starts, `writes` and `put` when the saver has returned, `end` with the messages of the last state.
With `--gate`, it starts another branch, reports `read` when the saver has read the thread, and waits for its input to
end. With `--die`, it kills itself when the write of that message, or of a later one, is acknowledged.
"""

from __future__ import annotations

import json
import operator
import os
import signal
import sys
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from holdfast.integrations.langgraph import HoldfastSaver


class Count(TypedDict):
    messages: Annotated[list[str], operator.add]
    goal: int


def report(**what: Any) -> None:
    # In one piece: threads share the stream.
    os.write(1, json.dumps(what).encode() + b"\n")


class ReportingSaver(HoldfastSaver):
    gate = False
    last_message: int | None = None

    def get_tuple(self, config: Any) -> Any:
        found = super().get_tuple(config)
        if self.gate:
            self.gate = False
            report(read=None if found is None else found.config["configurable"]["checkpoint_id"])
            sys.stdin.read()
        return found

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        done = super().put(config, checkpoint, metadata, new_versions)
        report(put=checkpoint["id"], count=len(checkpoint["channel_values"].get("messages", ())))
        return done

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        super().put_writes(config, writes, task_id, task_path)
        for channel, value in writes:
            if channel == "messages" and value:
                report(writes=value[0])
                if self.last_message is not None and int(value[0]) >= self.last_message:
                    os.kill(os.getpid(), signal.SIGKILL)


def build(saver: Any, name: str = "") -> Any:
    """A graph that says a message in each step, up to a goal."""

    def say(state: Count) -> Any:
        text = f"{name}{len(state['messages'])}"
        report(ran=text)
        return {"messages": [text]}

    graph = StateGraph(Count)
    graph.add_node("say", say)
    graph.add_edge(START, "say")
    graph.add_conditional_edges("say", lambda state: "say" if len(state["messages"]) < state["goal"] else END)
    return graph.compile(checkpointer=saver)


def main(path: str, thread: str, durability: Any, steps: int, *options: str) -> None:
    config: Any = {"configurable": {"thread_id": thread}, "recursion_limit": steps + 10}
    saver = ReportingSaver(path)
    with saver:
        saver.last_message = int(options[-1]) if "--die" in options else None
        # The next nodes that LangGraph names are only those without pending writes.
        stored = saver.get_tuple(config)
        is_unfinished = stored and len(stored.checkpoint["channel_values"].get("messages", ())) < steps
        saver.gate = "--gate" in options
        given = None if is_unfinished and not saver.gate else {"messages": [], "goal": steps}
        graph = build(saver, f"{os.getpid()}-" if saver.gate else "")
        found = graph.invoke(given, config, durability=durability)
        report(end=found["messages"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
