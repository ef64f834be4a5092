"""A program (`python agent.py`) and a process that imports it (`holdfast --app agent`) share their classes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Starts runs that end in a question.
AGENT = """
from dataclasses import dataclass

import pydantic

import holdfast
from holdfast import step, workflow


@holdfast.register
@dataclass
class Offer:
    price: int


class Form(pydantic.BaseModel):
    ok: bool


class Unavailable(Exception):
    pass


class Client:
    pass


@step
def find() -> Offer:
    return Offer(30)


@step
def fail() -> None:
    raise Unavailable


@step
def call(client: Client) -> None:
    pass


@workflow
def value() -> int:
    offer = find()
    holdfast.ask("Book?", schema=bool)
    return offer.price


@workflow
def error() -> str:
    try:
        fail()
    except Unavailable:
        holdfast.ask("Continue?", schema=bool)
    return "continued"


@workflow
def argument() -> str:
    call(Client())
    holdfast.ask("Continue?", schema=bool)
    return "continued"


@workflow
def schema() -> bool:
    return holdfast.ask("Sign", schema=list[Form])[0].ok


if __name__ == "__main__":
    with holdfast.open("runs.db") as hf:
        for flow in (value, error, argument, schema):
            print(hf.run(flow, run_id=flow.__name__).status)
"""

ANSWERS = """
import agent
import holdfast

with holdfast.open("runs.db") as hf:
    for question in hf.inbox():
        print(hf.answer(question.id, [{"ok": True}] if question.run == "schema" else True).result)
    assert not hf.inbox()
"""


def python(folder: Path, *arguments: str) -> list[str]:
    """Run Python in a folder; return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_run_of_a_program_resumes_where_the_program_is_imported(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    assert python(tmp_path, "agent.py") == ["suspended"] * 4
    assert python(tmp_path, "-c", ANSWERS) == ["30", "continued", "continued", "True"]


NAMES = """
from dataclasses import dataclass
from multiprocessing import get_context

import holdfast
from holdfast.tree.values import kind_of


@holdfast.register
@dataclass
class Offer:
    price: int


def show() -> None:
    print(kind_of(Offer(1)).tag, flush=True)


if __name__ == "__main__":
    show()
    process = get_context("spawn").Process(target=show)
    process.start()
    process.join()
"""


@pytest.mark.parametrize(
    ("arguments", "tag"),
    # multiprocessing starts no process for `python -m package`.
    [
        (["agent.py"], "agent.Offer"),
        (["package/inner/agent.py"], "package.inner.agent.Offer"),
        (["-m", "package.inner.agent"], "package.inner.agent.Offer"),
        (["-m", "package"], "package.__main__.Offer"),
        (["my-agent.py"], "__main__.Offer"),
    ],
)
def test_tag_is_the_same_in_every_process(tmp_path: Path, arguments: list[str], tag: str) -> None:
    (tmp_path / "package/inner").mkdir(parents=True)
    for name in ("package/__init__.py", "package/inner/__init__.py"):
        (tmp_path / name).touch()
    for name in ("agent.py", "my-agent.py", "package/__main__.py", "package/inner/agent.py"):
        (tmp_path / name).write_text(NAMES)
    assert set(python(tmp_path, *arguments)) == {tag}


ITSELF = """
from dataclasses import dataclass

import holdfast
from holdfast.tree.codec import decode, encode

{first}

@holdfast.register
@dataclass
class Offer:
    price: int


if __name__ == "__main__":
    import agent

    assert decode(encode(Offer(1))) == Offer(1)
    assert decode(encode(agent.Offer(1))) == agent.Offer(1)
    assert Offer is not agent.Offer
    print("fine")
"""


@pytest.mark.parametrize("first", ["", 'if __name__ == "__main__":\n    import agent'])
def test_classes_of_a_program_that_imports_itself_stay_apart(tmp_path: Path, first: str) -> None:
    (tmp_path / "agent.py").write_text(ITSELF.format(first=first))
    assert python(tmp_path, "agent.py") == ["fine"]


FORMER = """
import sys
from dataclasses import dataclass

import holdfast
from holdfast import step, workflow
from holdfast.tree import class_names

if sys.argv[1] == "start":
    # As earlier versions named the classes of a program.
    class_names._import_name = lambda program: program


@holdfast.register
@dataclass
class Offer:
    price: int


@dataclass
class Client:
    name: str


@step
def book(offers: dict[str, list[Offer]]) -> int:
    return offers["best"][0].price


@step
def call(client: Client) -> int:
    return 1


@workflow
def agent() -> int:
    total = book({"best": [Offer(int(sys.argv[2]))]}) + call(Client("a"))
    return total if holdfast.ask("Pay?", schema=bool) else 0


with holdfast.open("runs.db") as hf:
    if sys.argv[1] == "start":
        print(hf.run(agent, run_id="r").status)
    elif sys.argv[1] == "answer":
        print(hf.answer(hf.inbox()[0].id, True).result)
    else:
        print(hf.resume("r").result)
"""


def test_run_whose_classes_were_named_by_an_earlier_version_resumes(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(FORMER)
    assert python(tmp_path, "agent.py", "start", "30") == ["suspended"]
    with pytest.raises(AssertionError, match="ReplayDiverged"):
        python(tmp_path, "agent.py", "answer", "29")
    assert python(tmp_path, "agent.py", "resume", "30") == ["31"]
