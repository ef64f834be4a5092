"""A run that waits is on disk: without secrets, for any process that knows its workflow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import waiting_flows
from waiting_flows import CALLS, prompt_of, wait_ask, wait_event, wait_second

import holdfast
from holdfast import InvalidAnswer

no_calls = waiting_flows.no_calls


def test_secrets_in_answers_and_signals_are_never_stored(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db", durability="fast", redact=["*password*"]) as hf:
        for way in ("answer", "answers", "send", "early"):
            secret = {"password": f"hunter-{way}", "user": "ada"}
            if way in ("answer", "answers"):
                run = hf.run(wait_ask)
                if way == "answer":
                    hf.answer(prompt_of(run), secret)
                else:
                    hf.resume(run.id, answers={"ask": secret})
            else:
                run = hf.run(wait_event if way == "send" else wait_second)
                hf.signal(run.id, "paid", secret)
                if way == "early":
                    hf.signal(run.id, "first")
            assert run.status == "completed"
            (found,) = run.result
            assert found["user"] == "ada"
            assert "hunter" not in found["password"]
            assert "hunter" not in repr(CALLS)
            assert "hunter" not in repr(run.events())
    data = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"ada" in data or data
    assert b"hunter" not in data


PROGRAM = """
import json, sys
import holdfast
from holdfast import step, workflow

@step
def effect(name):
    with open(sys.argv[1] + ".effects", "a") as file:
        file.write(name + "\\n")
    return name

@workflow
def leaves_and_waits(topic):
    effect("first")
    answer = holdfast.ask(f"{topic}?", schema=bool)
    effect("second")
    amount = holdfast.wait_for("paid")
    effect("third")
    holdfast.sleep(0.01)
    return [topic, answer, amount]

@workflow
async def aleaves_and_waits(topic):
    effect("first")
    answer = await holdfast.ask(f"{topic}?", schema=bool)
    effect("second")
    amount = await holdfast.wait_for("paid")
    effect("third")
    await holdfast.sleep(0.01)
    return [topic, answer, amount]

with holdfast.open(sys.argv[1], durability="fast") as hf:
    do, rest = sys.argv[2], sys.argv[3:]
    if do == "run":
        run = hf.run(rest[0], "cats", run_id="a-b-c")
    elif do == "answer":
        run = hf.answer("a-b-c#1", json.loads(rest[0]))
    elif do == "send":
        run = hf.signal("a-b-c", "paid", json.loads(rest[0]))
    elif do == "wait":
        run = hf.get("a-b-c").wait(30)
    print(json.dumps([run.status, run.result if run.status == "completed" else None]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["leaves_and_waits", "aleaves_and_waits"])
def test_waiting_run_survives_the_end_of_its_process(tmp_path: Path, name: str) -> None:
    file = tmp_path / "runs.db"

    def process(*arguments: str) -> Any:
        command = [sys.executable, "-c", PROGRAM, str(file), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert process("run", name) == ["suspended", None]
    # This process does not know the workflow: it leaves the answer for one that does.
    with holdfast.open(file, durability="fast") as hf:
        (prompt,) = hf.inbox()
        assert (prompt.id, prompt.text) == ("a-b-c#1", "cats?")
        with pytest.raises(InvalidAnswer):
            hf.answer(prompt.id, "yes")
        assert hf.answer(prompt.id, False).status == "suspended"
        hf.signal("a-b-c", "paid", 0)
    assert process("wait") == ["completed", ["cats", False, 0]]
    assert Path(f"{file}.effects").read_text().split() == ["first", "second", "third"]
