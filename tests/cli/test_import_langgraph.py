"""`holdfast import-langgraph`: threads of LangGraph's SqliteSaver, copied and compared."""

from __future__ import annotations

import importlib
import json
import sqlite3
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from filled_store import STORE, SampleStore
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

import holdfast
from holdfast.integrations.langgraph import HoldfastSaver


class Keeps(TypedDict):
    parcels: Annotated[list[Any], lambda old, new: old + new]


def graph(saver: Any) -> Any:
    def ask(state: MessagesState) -> Any:
        return {"messages": [HumanMessage(interrupt("more?"))]}

    built = StateGraph(MessagesState)
    built.add_node("say", lambda state: {"messages": [HumanMessage("said", id=str(len(state["messages"])))]})
    built.add_node("ask", ask)
    built.add_edge(START, "say")
    built.add_edge("say", "ask")
    return built.compile(checkpointer=saver)


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Three threads that wait for an answer; one has a branch."""
    file = tmp_path / "old.sqlite"
    with SqliteSaver.from_conn_string(str(file)) as saver:
        built = graph(saver)
        for name in ("a", "b/c", "d"):
            built.invoke({"messages": [HumanMessage("hi", id="h")]}, thread(name), durability="sync")
        past = list(built.get_state_history(thread("d")))
        built.update_state(past[1].config, {"messages": [HumanMessage("edited", id="e")]})
    return file


def test_import_langgraph_copies_threads(bare: SampleStore, old: Path) -> None:
    before = old.read_bytes()
    reported = bare.pipe("import-langgraph", str(old))
    assert reported == "copied 10 checkpoints of 3 threads, all verified\n"
    assert old.read_bytes() == before
    with HoldfastSaver(bare.folder / STORE) as saver, SqliteSaver.from_conn_string(str(old)) as source:
        for name in ("a", "b/c", "d"):
            ours, theirs = list(saver.list(thread(name))), list(source.list(thread(name)))
            assert ours == theirs
        assert len(saver.hf.history("d").timelines()) == 2
        built = graph(saver)
        found = built.invoke(Command(resume="yes"), thread("a"))
        assert [message.content for message in found["messages"]] == ["hi", "said", "yes"]
        assert saver.hf.verify().ok


def test_import_langgraph_can_be_repeated(bare: SampleStore, old: Path) -> None:
    bare.pipe("import-langgraph", str(old))
    with holdfast.open(bare.folder / STORE) as hf:
        before = {run.id: run.versions for run in hf.runs()}
    found = json.loads(bare.pipe("import-langgraph", str(old), "--json"))
    assert found == {"threads": 3, "checkpoints": 10, "writes": found["writes"], "refused": []}
    with holdfast.open(bare.folder / STORE) as hf:
        assert {run.id: run.versions for run in hf.runs()} == before


def test_import_langgraph_completes_an_interrupted_import(
    bare: SampleStore, old: Path, tmp_path: Path
) -> None:
    part = tmp_path / "part.sqlite"
    part.write_bytes(old.read_bytes())
    with sqlite3.connect(part) as db:
        (last,) = db.execute("SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = 'a'").fetchone()
        db.execute("DELETE FROM checkpoints WHERE checkpoint_id = ?", (last,))
        db.execute("DELETE FROM writes WHERE checkpoint_id = ?", (last,))
    bare.pipe("import-langgraph", str(part))
    bare.pipe("import-langgraph", str(old))
    with HoldfastSaver(bare.folder / STORE) as saver, SqliteSaver.from_conn_string(str(old)) as source:
        assert list(saver.list(thread("a"))) == list(source.list(thread("a")))


def test_import_langgraph_allows_classes_by_name(
    bare: SampleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "parcels_of_mine.py"
    module.write_text("from dataclasses import dataclass\n\n\n@dataclass\nclass Parcel:\n    name: str\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    parcels_of_mine = importlib.import_module("parcels_of_mine")

    file = tmp_path / "own.sqlite"
    with SqliteSaver.from_conn_string(str(file)) as saver:
        built = StateGraph(Keeps)
        built.add_node("pack", lambda state: {"parcels": [parcels_of_mine.Parcel("p")]})
        built.add_edge(START, "pack")
        built.compile(checkpointer=saver).invoke({"parcels": []}, thread("p"), durability="sync")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    refused = bare.call("import-langgraph", str(file))
    assert refused.code == 6
    assert "parcels_of_mine.Parcel" in refused.err
    reported = bare.pipe("import-langgraph", str(file), "--allow", "parcels_of_mine.Parcel")
    assert reported == "copied 3 checkpoints of 1 thread, all verified\n"
    sys.modules.pop("parcels_of_mine")


def test_import_langgraph_refuses_other_files(bare: SampleStore, old: Path, tmp_path: Path) -> None:
    assert bare.refused("import-langgraph", "nowhere.sqlite", code=3)
    text = tmp_path / "text.txt"
    text.write_text("no database")
    assert "SqliteSaver" in bare.refused("import-langgraph", str(text), code=2)
    empty = tmp_path / "empty.sqlite"
    with sqlite3.connect(empty) as db:
        db.execute("CREATE TABLE other (x)")
    assert "SqliteSaver" in bare.refused("import-langgraph", str(empty), code=2)
    for name in ("nothing", "no.such.module.Class", "os.path.join"):
        assert bare.refused("import-langgraph", str(old), "--allow", name, code=2)


def test_import_langgraph_reports_damage_and_copies_the_rest(bare: SampleStore, old: Path) -> None:
    with sqlite3.connect(old) as db:
        db.execute("UPDATE checkpoints SET checkpoint = x'c1' WHERE thread_id = 'a'")
        db.execute("UPDATE checkpoints SET type = 'pickle' WHERE thread_id = 'b/c'")
    done = bare.call("import-langgraph", str(old))
    assert done.code == 6
    assert "thread 'a'" in done.err
    assert "pickle" in done.err
    with holdfast.open(bare.folder / STORE) as hf:
        assert sorted(run.id for run in hf.iter_runs()) == ["d"]


@pytest.mark.parametrize(
    ("column", "value"),
    [("metadata", "[1]"), ("metadata", b"\xff"), ("metadata", 7), ("checkpoint", None), ("type", None)],
)
def test_import_langgraph_refuses_an_invalid_thread(
    bare: SampleStore, old: Path, column: str, value: Any
) -> None:
    with sqlite3.connect(old) as db:
        db.execute(f"UPDATE checkpoints SET {column} = ? WHERE thread_id = 'a'", (value,))
    done = bare.call("import-langgraph", str(old))
    assert done.code == 6
    assert "thread 'a': " in done.err
    with holdfast.open(bare.folder / STORE) as hf:
        assert sorted(run.id for run in hf.iter_runs()) == ["b/c", "d"]


def test_import_langgraph_creates_no_store_for_an_unreadable_file(
    bare: SampleStore, old: Path, tmp_path: Path
) -> None:
    torn = tmp_path / "torn.sqlite"
    torn.write_bytes(old.read_bytes()[:9000])
    assert "damaged" in bare.refused("import-langgraph", str(torn), code=6)
    with sqlite3.connect(old, isolation_level=None) as writing:
        writing.execute("PRAGMA journal_mode=DELETE")
        writing.execute("BEGIN EXCLUSIVE")
        assert "another program" in bare.refused("import-langgraph", str(old), code=11)
        writing.execute("ROLLBACK")
    assert not (bare.folder / STORE).exists()
    assert bare.pipe("import-langgraph", str(old))


def test_import_langgraph_copies_threads_beyond_damaged_pages(bare: SampleStore, old: Path) -> None:
    with sqlite3.connect(old) as db:
        db.execute("PRAGMA journal_mode=DELETE")
        (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'writes'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with old.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 100)
    done = bare.call("import-langgraph", str(old))
    assert done.code == 6
    assert "thread 'a': " in done.err
    assert "damaged" in done.err
