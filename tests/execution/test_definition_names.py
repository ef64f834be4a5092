"""One name, one definition: another one is refused where it is made, a definition may replace itself."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import InvalidCall, NotFound, step, workflow
from holdfast.testing import isolated_definitions

_MODULE = """
import holdfast

@holdfast.step
def charge() -> str:
    return "{result}"

@holdfast.workflow
def order() -> str:
    return charge()
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("names_shop", "names_other"):
        (tmp_path / f"{name}.py").write_text(_MODULE.format(result=name))
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def load(name: str) -> Any:
    """Import a module that the test wrote."""
    importlib.invalidate_caches()
    return importlib.import_module(name)


@pytest.mark.parametrize("decorator", [step, workflow])
def test_definition_of_a_taken_name_is_refused(decorator: Any) -> None:
    def first() -> None: ...
    def second() -> None: ...

    what = decorator.__name__
    decorator(name="names_taken")(first)
    with pytest.raises(InvalidCall) as refused:
        decorator(name="names_taken")(second)
    message = str(refused.value)
    assert f"{what} 'names_taken' is defined twice" in message
    assert "first" in message
    assert "second" in message
    assert f"@{what}(name=" in message
    assert refused.value.details == {"name": "names_taken"}


@pytest.mark.parametrize("decorator", [step, workflow])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"name": "names_new", "aliases": ["names_old"]}, {"name": "names_old"}),
        ({"name": "names_a", "aliases": ["names_old"]}, {"name": "names_b", "aliases": ["x", "names_old"]}),
    ],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_alias_of_a_taken_name_is_refused(decorator: Any, one: Any, other: Any, is_turned: bool) -> None:
    def first() -> None: ...
    def second() -> None: ...

    with isolated_definitions():
        decorator(**(other if is_turned else one))(first)
        with pytest.raises(InvalidCall, match=r"'names_old' is both .*first .* and .*second ") as refused:
            decorator(**(one if is_turned else other))(second)
    assert refused.value.details == {"name": "names_old"}


def test_definition_with_aliases_may_replace_itself() -> None:
    def define(result: str, *aliases: str) -> None:
        @workflow(name="names_again", aliases=aliases)
        def again() -> str:
            return result

    with isolated_definitions(), holdfast.open(":memory:") as hf:
        define("first", "names_before", "names_again")
        define("second", "names_before", "names_long_before")
        assert hf.run("names_before").result == "second"
        define("third")
        with pytest.raises(NotFound):
            hf.run("names_before")


def test_definition_in_another_module_is_refused(modules: Path) -> None:
    load("names_shop")
    with pytest.raises(InvalidCall, match=r"names_shop\.charge .* names_other\.charge"):
        load("names_other")


def test_refused_definition_replaces_nothing(modules: Path, tmp_path: Path) -> None:
    load("names_shop")
    with pytest.raises(InvalidCall):
        load("names_other")
    with holdfast.open(":memory:") as hf:
        assert hf.run("order").result == "names_shop"


def test_reloaded_module_replaces_its_definitions(modules: Path) -> None:
    shop = load("names_shop")
    (modules / "names_shop.py").write_text("\n\n" + _MODULE.format(result="reloaded"))
    importlib.reload(shop)
    with holdfast.open(":memory:") as hf:
        assert hf.run("order").result == "reloaded"


def test_notebook_cell_run_again_replaces_its_definitions() -> None:
    names = {"__name__": "__main__"}
    for cell, result in (("<cell 1>", "first"), ("<cell 2>", "second")):
        exec(compile(_MODULE.format(result=result), cell, "exec"), names)
    with holdfast.open(":memory:") as hf:
        assert hf.run("order").result == "second"


def test_program_that_imports_itself_defines_its_names_once(tmp_path: Path) -> None:
    program = (
        _MODULE.format(result="main") + "\nif __name__ == '__main__':\n    import itself\n    print('fine')\n"
    )
    (tmp_path / "itself.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "itself.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_step_and_workflow_may_share_a_name() -> None:
    step(name="names_shared")(lambda: None)
    workflow(name="names_shared")(lambda: None)


def test_methods_of_two_classes_need_two_names() -> None:
    class One:
        @step(name="names_method")
        def call(self) -> None: ...

    with pytest.raises(InvalidCall, match=r"One\.call .*Two\.call"):

        class Two:
            @step(name="names_method")
            def call(self) -> None: ...


def test_isolated_definitions_end_with_their_block() -> None:
    @workflow(name="names_isolated")
    def outer() -> str:
        return "outer"

    with holdfast.open(":memory:") as hf:
        with isolated_definitions():

            @workflow(name="names_isolated")
            def inner() -> str:
                return "inner"

            assert hf.run("names_isolated").result == "inner"
        assert hf.run("names_isolated").result == "outer"
