"""Fingerprints of code: equal for equal code on every version of Python, different for different code."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CodeChanged, workflow
from holdfast.testing import isolated_definitions
from holdfast.tree import syntax
from holdfast.workflow.definition import fingerprint
from pythons import other_pythons

#: Code in which the syntax trees of Python's versions differ: functions, classes, calls, f-strings, texts.
_SOURCE = '''
@decorated(1)
async def plan(topic: str, /, *rest, depth=3, **more) -> "list[str]":
    """Its docstring."""
    class Local(Base, metaclass=Meta):
        """Its own."""
        x: int = 1
    def inner(): return f"{topic!r:>{depth}}" f"a{{b}}" "c" f"{depth=}" f"" f"{topic:}"
    text = u"é\\u0378\\U0001fae8" b"".decode() if not rest else ""
    async with open(topic) as file, other():
        found = [x async for x in file if x] + [*rest] or {**more}
    match found:
        case {"a": [1, *_], **others} if others: pass
        case Local(x=1) | None: del found
    try:
        return lambda: (yield)
    except* ValueError as error:
        raise RuntimeError from error
    finally:
        global seen; seen = 1_000 if (n := depth) else 1e10j
'''


def test_fingerprint_is_equal_on_every_python() -> None:
    pythons = other_pythons()
    if not pythons:
        pytest.skip("no other version of Python is installed")
    source = _SOURCE.replace('b"".decode() if', "if")
    here = syntax.canonical(syntax.parse(source))
    program = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('syntax', {str(Path(syntax.__file__))!r})\n"
        "syntax = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(syntax)\n"
        "sys.stdout.write(syntax.canonical(syntax.parse(sys.stdin.read())))\n"
    )
    for python in pythons:
        done = subprocess.run(
            [python, "-X", "utf8", "-c", program],
            input=source,
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
        assert done.stdout == here, python


def test_ast_dump_differs_between_pythons() -> None:
    """The positive control: why `canonical` exists."""
    dumps = {ast.dump(ast.parse(_CONTROL))}
    program = f"import ast; print(ast.dump(ast.parse({_CONTROL!r})))"
    for python in other_pythons():
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
        dumps.add(done.stdout.strip())
    if len(other_pythons()) < 2:
        pytest.skip("fewer than three versions of Python are installed")
    assert len(dumps) > 1


_CONTROL = "def f(): pass"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "x = 2"),
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = True"),
        ("x = None", "x = ..."),
        ("x = 'a'", "x = b'a'"),
        ("f(a, b)", "f(b, a)"),
        ("f(a)", "f(*a)"),
        ("x = f'{a}b'", "x = f'b{a}'"),
        ("x = f'{a}'", "x = f'{a!r}'"),
        ("def f(): pass", "async def f(): pass"),
        ("def f(a): pass", "def f(a=None): pass"),
        ("def f(a, b): pass", "def f(a, *, b): pass"),
        ("while a: b()", "if a: b()"),
        ("x[1:]", "x[:1]"),
        ("a = (b, c)", "a = [b, c]"),
        ("return_ = a if b else c", "return_ = c if b else a"),
    ],
    ids=lambda source: source.replace("/", "_"),
)
def test_fingerprint_differs_for_different_code(one: str, other: str) -> None:
    assert syntax.canonical(syntax.parse(one)) != syntax.canonical(syntax.parse(other))


def test_fingerprint_ignores_layout_comments_docstrings_and_decorators() -> None:
    one = 'def f(a):\n    """Say one."""\n    return a  # one\n'
    other = "@decorated\ndef f(a) :\n\n    return (a)\n"
    assert syntax.canonical(syntax.parse(one)) == syntax.canonical(syntax.parse(other))


def test_code_of_a_string_has_no_source_in_a_program_of_a_string() -> None:
    """Since Python 3.13, `inspect` returns the text of `python -c` as the source of both."""
    program = """
from holdfast.workflow.definition import fingerprint
names = {}
exec("def f(): return 1", names)
print(fingerprint(names["f"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("bytecode-")


def test_code_without_source_names_the_python_in_its_fingerprint() -> None:
    names: dict[str, Any] = {}
    exec("def f(): return 1", names)
    assert fingerprint(names["f"]).startswith(f"bytecode-{sys.version_info[0]}.{sys.version_info[1]}-")
    with holdfast.open(":memory:") as hf:
        run = hf.run(workflow(name="print_no_source")(names["f"]))
        hf.fork(f"{run.id}@1", "again")
        exec("def f(): return 2", names)
        with isolated_definitions():
            workflow(name="print_no_source")(names["f"])
            with pytest.raises(CodeChanged, match=r"source is not available.*version="):
                hf.resume("again", changed="refuse")
