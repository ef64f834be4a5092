"""An LLM agent calls tools, is killed just after it paid, and other processes finish its work.

    python examples/tool_calling_agent.py [FOLDER]

The loop is that of any tool-calling agent: ask the model, run the tools that it names, append the results to the
conversation. Each model call and each tool call is a step, and the conversation is the run's state. The model is a
fake that replies like a chat API, so the example needs no key and no network; `complete` is the one function to
replace.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast import LimitExceeded, Limits, Retry, step, workflow

RUN = "ferry"
Message = dict[str, Any]


# The model and the tools: everything outside the agent


def complete(messages: list[Message]) -> Message:
    """Return the model's next message. A real client goes here."""
    turn = sum(message["role"] == "assistant" for message in messages)
    if turn == 0:
        return call("find_ferries", island="Mull", after="15:00")
    if turn == 1:
        return call("pay", amount=12, ferry=json.loads(messages[-1]["content"])[0])
    return {"role": "assistant", "content": f"Done. {messages[-1]['content']}"}


def call(name: str, **arguments: Any) -> Message:
    return {"role": "assistant", "tool_calls": [{"name": name, "arguments": arguments}]}


def find_ferries(island: str, after: str) -> str:
    return json.dumps([time for time in ("14:25", "16:10", "18:00") if time > after])


def pay(amount: int, ferry: str) -> str:
    """Pay once per idempotency key, as payment services do."""
    ledger, key = Path(sys.argv[1]) / "payments.txt", holdfast.idempotency_key()
    if not (ledger.exists() and key in ledger.read_text()):
        with ledger.open("a") as file:
            file.write(f"{key} {amount}\n")
    if sys.argv[2:] == ["killed"]:
        os._exit(1)  # like kill -9, after the payment and before Holdfast could record it
    return f"Paid {amount} € for the {ferry} ferry."


TOOLS: dict[str, Callable[..., str]] = {"find_ferries": find_ferries, "pay": pay}


# The agent: a loop and two kinds of steps


@step(retry=Retry(3), timeout=60)
def ask_model() -> Message:
    messages = holdfast.state()["messages"]
    reply = complete(messages)
    messages.append(reply)
    holdfast.annotate(model="fake-1", tokens=200, cost=0.01)
    print(f"  model → {reply.get('content') or reply['tool_calls'][0]['name']}", flush=True)
    return reply


@step
def call_tool(name: str, arguments: dict[str, Any]) -> str:
    result = TOOLS[name](**arguments)
    holdfast.state()["messages"].append({"role": "tool", "name": name, "content": result})
    print(f"  {name} → {result}", flush=True)
    return result


@workflow(limits=Limits(steps=4))  # an agent that loops stops here
def agent() -> str:
    while "tool_calls" in (reply := ask_model()):
        for each in reply["tool_calls"]:
            call_tool(each["name"], each["arguments"])
    return str(reply["content"])


def execute(folder: Path) -> None:
    """Start the run, or resume it: the same call in every process."""
    question = {"role": "user", "content": "Book me a ferry to Mull after 15:00."}
    with holdfast.open(folder / "runs.db") as hf:
        try:
            hf.run(agent, run_id=RUN, state={"messages": [question]}, if_exists="resume")
        except LimitExceeded as error:
            print(f"  stopped: {error.spent:g} of {error.allowed:g} {error.limit} are used up", flush=True)


def main(folder: Path) -> None:
    for fate in ("killed", "continued"):
        print(f"Process, {fate}:", flush=True)
        subprocess.run([sys.executable, __file__, folder, fate], check=False)

    with holdfast.open(folder / "runs.db") as hf:
        print("With a higher limit:")
        run = hf.resume(RUN, limits=Limits(steps=20))
        print(f"{run.status}: {run.result}  ({run.totals['tokens']} tokens, {run.totals['cost']:.2f} €)")
        payments = (folder / "payments.txt").read_text().splitlines()
        print(f"Payments: {len(payments)}. Versions:")
        for version in reversed(run.history().versions()):
            print(f"  {version.number}  {version.address or version.kind}")


if __name__ == "__main__":
    sys.argv[1:] = sys.argv[1:] or [tempfile.mkdtemp(prefix="holdfast-")]
    where = Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    if sys.argv[2:]:
        execute(where)
    elif (where / "runs.db").exists():
        sys.exit(f"there are runs in {where} already: name another folder")
    else:
        main(where)
