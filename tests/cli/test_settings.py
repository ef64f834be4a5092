"""Which store a command works on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filled_store import SampleStore
from in_process import call

import holdfast
from holdfast.cli.settings import find_app, find_store
from holdfast.errors import InvalidCall


@pytest.fixture
def four(tmp_path: Path) -> Path:
    """A project whose store is named in four ways, each another."""
    for name in ("given", "env", "project", "holdfast"):
        with holdfast.open(tmp_path / f"{name}.db", durability="fast") as hf:
            hf.history(name).commit({})
    (tmp_path / "pyproject.toml").write_text('[tool.holdfast]\nstore = "project.db"\n')
    return tmp_path


def test_store_setting_precedence(four: Path) -> None:
    assert call("runs", "--store", "given.db", cwd=four, HOLDFAST_STORE="env.db").out.startswith("given\t")
    assert call("runs", cwd=four, HOLDFAST_STORE="env.db").out.startswith("env\t")
    assert call("runs", cwd=four).out.startswith("project\t")
    (four / "pyproject.toml").unlink()
    assert call("runs", cwd=four).out.startswith("holdfast\t")


def test_project_file_is_found_in_parent_folders(four: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = four / "a" / "b"
    below.mkdir(parents=True)
    (below / "pyproject.toml").write_text('[project]\nname = "speaks not of it"\n')
    monkeypatch.chdir(below)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    assert Path(find_store(None).where).resolve() == (four / "project.db").resolve()


@pytest.mark.parametrize(
    "text",
    [
        "not toml at all [",
        "[tool]\nholdfast = 3",
        "[tool.holdfast]\nstore = 3",
        '[tool.holdfast]\nstore = ""',
    ],
)
def test_invalid_project_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    with pytest.raises(InvalidCall, match=r"pyproject\.toml"):
        find_store(None)


def test_app_setting_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.holdfast]\napp = "flows:hf"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_APP", raising=False)
    assert find_app(None) == "flows:hf"
    monkeypatch.setenv("HOLDFAST_APP", "others")
    assert find_app(None) == "others"
    assert find_app("given") == "given"


@pytest.mark.parametrize(
    ("store", "code", "reported"),
    [
        ("nosuch.db", 10, "there is no store at nosuch.db (--store)"),
        ("http://somewhere", 2, "unknown kind of store http://"),
        (".", 10, ""),
        ("nosuch/deep/x.db", 10, "there is no store"),
        ("a\x1b[2J.db", 10, "\\e[2J"),
    ],
)
def test_invalid_store_setting_is_refused(bare: SampleStore, store: str, code: int, reported: str) -> None:
    done = call("runs", "--store", store, cwd=bare.folder)
    assert done.code == code, done
    assert reported in done.err
    assert done.err.count("\n") == 1
    assert "\x1b" not in done.err
    assert os.listdir(bare.folder) == []


def test_store_setting_that_names_another_file_is_refused(bare: SampleStore) -> None:
    (bare.folder / "notes.txt").write_text("these are my notes, which are not a database\n" * 100)
    done = call("runs", "--store", "notes.txt", cwd=bare.folder)
    assert done.code in (6, 10)
    assert done.err.count("\n") == 1
    assert (bare.folder / "notes.txt").read_text().startswith("these are my notes")
