"""Workflows and steps as code defines them.

Invariant: a definition never changes; what differs from run to run is in the session.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from hashlib import sha256
from types import CodeType
from typing import Any

import msgspec

from holdfast.errors import InvalidCall, NotFound
from holdfast.history.advance import Resolver
from holdfast.runtime.policy import Breaker, Retry
from holdfast.runtime.watch import Watch
from holdfast.tree.codec import REDACTED
from holdfast.tree.fold import Redactor

CHANGED = ("warn", "refuse", "allow")
#: What is missing where a process does not know the code of a workflow or a compensation.
_CODE = "code"


class Step(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A unit of work."""

    name: str
    function: Callable[..., Any]
    asynchronous: bool
    retry: Retry | None = None
    timeout: float | None = None
    key: Callable[..., Any] | str | None = None
    compensate: Callable[..., Any] | None = None
    breaker: Breaker | None = None
    on_conflict: Resolver | None = None
    #: Seconds that it may take without a word before it is taken for stuck.
    silent: float | None = None


class Workflow(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A definition in code of what a run does."""

    name: str
    function: Callable[..., Any]
    asynchronous: bool
    #: The event that starts it, and of which workflow's runs; None if only calls do.
    on: str | None = None
    of: str | None = None
    #: What to do if the code is not the code that a run began with.
    changed: str = "warn"
    #: Seconds for the whole run.
    timeout: float | None = None
    version: str | None = None
    #: When its runs are taken for stuck, and what is done then.
    watch: Watch | None = None

    @cached_property
    def signature(self) -> inspect.Signature:
        """What it can be called with."""
        return inspect.signature(self.function)

    @cached_property
    def code(self) -> str:
        """The fingerprint of the code, which comments and layout do not change."""
        return f"={self.version}" if self.version is not None else fingerprint(self.function)


#: By name, the definition that was made last.
_workflows: dict[str, Workflow] = {}
_steps: dict[str, Step] = {}


def define(definition: Step | Workflow) -> None:
    """Make a definition known by its name."""
    if isinstance(definition, Step):
        _steps[definition.name] = definition
    else:
        _workflows[definition.name] = definition


def workflow_of(given: Any) -> Workflow:
    """The definition behind what a caller names: a decorated function, or its name."""
    if isinstance(given, Workflow):
        return given
    found = getattr(given, "holdfast", None)
    if isinstance(found, Workflow):
        return found
    if isinstance(given, str):
        if given in _workflows:
            return _workflows[given]
        raise unknown_here(
            f"workflow {given!r} is not known in this process: import the module that defines it",
            workflow=given,
        )
    what = getattr(given, "__name__", None) or repr(given)[:60]
    raise InvalidCall(f"{what} is no workflow: put @holdfast.workflow on the function")


def unknown_here(message: str, **details: Any) -> NotFound:
    """What others may know: code that was not imported in this process."""
    return NotFound(message, missing=_CODE, **details)


def is_unknown_here(error: BaseException) -> bool:
    """Is it only this process that cannot do something, for want of code that others may know?"""
    return isinstance(error, NotFound) and error.details.get("missing") == _CODE


def step_named(name: str) -> Step | None:
    """The step of a name, if this process knows one."""
    return _steps.get(name)


def workflows() -> list[str]:
    """The names of the workflows that this process knows."""
    return list(_workflows)


def triggered() -> list[Workflow]:
    """The workflows that events start."""
    return [found for found in _workflows.values() if found.on is not None]


def fingerprint(function: Callable[..., Any]) -> str:
    """Short, the same for the same code."""
    import ast
    import textwrap

    from holdfast.tree import syntax

    try:
        tree = syntax.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        code = getattr(function, "__code__", None)
        return sha256(_bytecode(code)).hexdigest()[:12] if code is not None else "?"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.decorator_list = []
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:]
    return sha256(ast.dump(tree).encode()).hexdigest()[:12]


def bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names that the function gives them."""
    given = inspect.signature(function).bind(*args, **kwargs)
    given.apply_defaults()
    return dict(given.arguments)


def without_secrets(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any], redact: Redactor | None
) -> list[Any]:
    """Arguments as they may be stored. Folding hides those with names; those by position have the function's names."""
    if redact is None:
        return [list(args), kwargs]
    kept = [
        REDACTED if redact.hides(each.name) and each.kind is not each.VAR_POSITIONAL else value
        for each, value in zip(signature.parameters.values(), args, strict=False)
    ]
    return [[*kept, *args[len(kept) :]], kwargs]


def _bytecode(code: CodeType) -> bytes:
    parts = [code.co_code, repr(code.co_names).encode()]
    parts += [
        _bytecode(each) if isinstance(each, CodeType) else repr(each).encode() for each in code.co_consts
    ]
    return b"\0".join(parts)
