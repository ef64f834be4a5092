"""Workflows and steps as code defines them.

Invariant: a definition never changes; everything that differs from run to run belongs to the execution.
"""

from __future__ import annotations

import inspect
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

import msgspec

from holdfast.errors import InvalidCall, NotFound
from holdfast.model.watchdog import Watchdog
from holdfast.workflow.policy import Breaker, Retry

if TYPE_CHECKING:
    from holdfast.execution.limits import Limits
    from holdfast.history.committer import Resolver
    from holdfast.tree.frozen import FrozenList
    from holdfast.tree.merge import Reducers

CHANGED = ("warn", "refuse", "allow")
#: A further choice for `resume`: drop the records that do not fit the changed code.
ACCEPT = "accept"
#: What is missing where a process does not know the code of a workflow or a compensation.
_CODE = "code"
#: Begins the fingerprint of code whose source is not available.
_BYTECODE = "bytecode-"


class _Definition(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A function under a name."""

    name: str
    function: Callable[..., Any]
    asynchronous: bool

    @cached_property
    def signature(self) -> inspect.Signature | None:
        """The parameters; None for a C function that does not declare them."""
        try:
            return inspect.signature(self.function)
        except (TypeError, ValueError):
            return None

    def names(self, count: int) -> FrozenList:
        """Return the parameters of so many positional arguments, as a version stores them (see `history.version`)."""
        found = self.known_names.get(count)
        if found is None:
            found = self.known_names[count] = _names(self.signature, count)
        return found

    @cached_property
    def implementation(self) -> tuple[str, str]:
        """The qualified name and the fingerprint of its function."""
        return implementation(self.function)

    @cached_property
    def known_names(self) -> dict[int, FrozenList]:
        """The results of `names` so far, by count."""
        return {}


class Step(_Definition, frozen=True, eq=False, dict=True):
    """A unit of work."""

    retry: Retry | None = None
    timeout: float | None = None
    key: Callable[..., Any] | str | None = None
    compensate: Callable[..., Any] | None = None
    breaker: Breaker | None = None
    on_conflict: Resolver | None = None
    #: Seconds without progress after which the monitor calls it stalled.
    heartbeat_timeout: float | None = None
    #: Names under which older code recorded it.
    aliases: tuple[str, ...] = ()


class Workflow(_Definition, frozen=True, eq=False, dict=True):
    """A workflow: the definition, in code, that runs execute."""

    #: The event that starts it, and of which workflow's runs; None if only calls do.
    on: str | None = None
    of: str | None = None
    #: What to do if the code is not the code that a run began with.
    changed: str = "warn"
    #: Seconds for the whole run.
    timeout: float | None = None
    version: str | None = None
    #: The policy by which a monitor calls its runs stalled.
    watchdog: Watchdog | None = None
    #: Names under which older code recorded its runs.
    aliases: tuple[str, ...] = ()
    #: What each of its runs may spend.
    limits: Limits | None = None
    #: How concurrent changes of one place in the state are merged.
    reducers: Reducers | None = None

    @cached_property
    def signature(self) -> inspect.Signature:
        """The parameters."""
        return inspect.signature(self.function)

    @cached_property
    def code(self) -> str:
        """The fingerprint of the code, which comments and layout do not change."""
        return f"={self.version}" if self.version is not None else fingerprint(self.function)


D = TypeVar("D", Step, Workflow)

#: Definitions by name; the first map holds those of the innermost `isolated_definitions` block.
_workflows: ChainMap[str, Workflow] = ChainMap()
_steps: ChainMap[str, Step] = ChainMap()


def define(definition: Step | Workflow) -> None:
    """Register a definition under its name.

    A definition may replace itself: a module that is reloaded, a notebook cell that is run again, a file that is both
    the program and an imported module. Any other definition of the name, or of one of its aliases, is refused: runs are
    resumed and steps are compensated by name, so that one of the two would run in place of the other.
    """
    if isinstance(definition, Step):
        _check_names(definition, _steps.maps[0])
        _steps[definition.name] = definition
    else:
        _check_names(definition, _workflows.maps[0])
        _workflows[definition.name] = definition
        if definition.on is not None:
            for observer in list(_observers):
                observer.trigger_defined()


def _check_names(definition: D, known: Mapping[str, D]) -> None:
    """Refuse a definition whose name, or one of whose aliases, another definition has."""
    what = "step" if isinstance(definition, Step) else "workflow"
    name = definition.name
    replaced = known.get(name)
    if replaced is not None and not _is_same_place(replaced.function, definition.function):
        raise InvalidCall(
            f"{what} {name!r} is defined twice: by {_place(replaced.function)} and by "
            f"{_place(definition.function)}; give one of them another name: @{what}(name=…)",
            name=name,
        )
    others = [each for each in known.values() if each is not replaced]
    for taken in (name, *definition.aliases):
        for other in others:
            if taken == other.name or taken in other.aliases:
                uses = [
                    f"{'the name' if taken == each.name else 'an alias'} of {_place(each.function)}"
                    for each in (other, definition)
                ]
                raise InvalidCall(
                    f"{taken!r} is both {uses[0]} and {uses[1]}: a recorded {what} of that name would belong to two "
                    "definitions; remove the alias, or the older definition (in a notebook, restart the kernel)",
                    name=taken,
                )


@contextmanager
def isolated_definitions() -> Iterator[None]:
    """Forget definitions that are made in the block when it ends. They may replace those made before it."""
    added: tuple[dict[str, Workflow], dict[str, Step]] = ({}, {})
    _workflows.maps.insert(0, added[0])
    _steps.maps.insert(0, added[1])
    try:
        yield
    finally:
        _workflows.maps[:] = [each for each in _workflows.maps if each is not added[0]]
        _steps.maps[:] = [each for each in _steps.maps if each is not added[1]]


def _is_same_place(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Return whether two functions have one qualified name in one module or file."""
    if _qualified(one) != _qualified(other):
        return False
    return one.__module__ == other.__module__ or _file(one) == _file(other) != ""


def _qualified(function: Callable[..., Any]) -> str:
    name: str = getattr(function, "__qualname__", function.__name__)
    return name


def _file(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else code.co_filename


def _place(function: Callable[..., Any]) -> str:
    """Name a function for a message."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{function.__module__}.{_qualified(function)}{where}"


def workflow_of(given: Any) -> Workflow:
    """Return the definition for a decorated function or a name."""
    if isinstance(given, Workflow):
        return given
    found = getattr(given, "holdfast", None)
    if isinstance(found, Workflow):
        return found
    if isinstance(given, str):
        known = _workflows.get(given) or _renamed(_workflows.values(), given)
        if known is not None:
            return known
        raise unknown_here(
            f"workflow {given!r} is not known in this process: import the module that defines it",
            workflow=given,
        )
    what = getattr(given, "__name__", None) or repr(given)[:60]
    raise InvalidCall(f"{what} is not a workflow: put @holdfast.workflow on the function")


def unknown_here(message: str, **details: Any) -> NotFound:
    """Return the error for code that was not imported in this process; other processes may know it."""
    return NotFound(message, missing=_CODE, **details)


def is_unknown_here(error: BaseException) -> bool:
    """Return whether an error means that this process lacks code that others may know."""
    return isinstance(error, NotFound) and error.details.get("missing") == _CODE


def step_named(name: str) -> Step | None:
    """Return the step of a name, if this process knows one."""
    return _steps.get(name) or _renamed(_steps.values(), name)


def workflows() -> list[str]:
    """Return the names of the workflows that this process knows, older names included."""
    return list(
        dict.fromkeys([*_workflows, *(name for each in _workflows.values() for name in each.aliases)])
    )


def _renamed(known: Iterable[D], name: str) -> D | None:
    """Return the definition that was recorded under an older name."""
    return next((each for each in known if name in each.aliases), None)


class TriggerObserver(Protocol):
    """An engine that starts workflows by events."""

    def trigger_defined(self) -> None:
        """Note that a workflow which events start was defined."""


_observers: WeakSet[TriggerObserver] = WeakSet()


def observe_triggers(observer: TriggerObserver) -> None:
    """Notify an engine of each workflow that events start when it is defined, for as long as the engine exists."""
    _observers.add(observer)


def triggered() -> list[Workflow]:
    """Return the workflows that events start."""
    return [found for found in _workflows.values() if found.on is not None]


def implementation(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the qualified name of a function and the fingerprint of its code."""
    bare: Any = function
    while isinstance(bare, partial):
        bare = bare.func
    named = bare if hasattr(bare, "__qualname__") else type(bare)
    name = f"{getattr(named, '__module__', None) or '?'}.{named.__qualname__}"
    return name[:200], fingerprint(bare)


def fingerprint(function: Callable[..., Any]) -> str:
    """Return a short text that is equal for equal code, on every version of Python.

    Comments, layout, docstrings and decorators do not count. Without source, bytecode is hashed, which differs between
    versions of Python: the text names the version then.
    """
    import textwrap
    from hashlib import sha256

    from holdfast.tree import syntax

    try:
        tree = syntax.parse(textwrap.dedent(_source(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        code = getattr(function, "__code__", None)
        if code is None:
            return "?"
        return f"{_BYTECODE}{'.'.join(map(str, sys.version_info[:2]))}-{sha256(_bytecode(code)).hexdigest()[:12]}"
    return sha256(syntax.canonical(tree).encode()).hexdigest()[:12]


def _source(function: Callable[..., Any]) -> str:
    """Return the source of a function; `OSError` if it is not available."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is not None and code.co_filename == "<string>":
        # Since Python 3.13, `inspect` returns the text of `python -c` for all code that `exec` has compiled.
        raise OSError("code that was compiled from a string has no source")
    return inspect.getsource(function)


def is_bytecode(fingerprint: str) -> bool:
    """Return whether a fingerprint holds for one version of Python only."""
    return fingerprint.startswith(_BYTECODE)


def bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by the names of the function's parameters."""
    given = inspect.signature(function).bind(*args, **kwargs)
    given.apply_defaults()
    return dict(given.arguments)


def _names(signature: inspect.Signature | None, count: int) -> FrozenList:
    from holdfast.tree.frozen import FrozenList

    places = []
    for each in () if signature is None else signature.parameters.values():
        if each.kind is each.VAR_POSITIONAL:
            places.append(f"*{each.name}")
        elif each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            places.append(each.name)
    return FrozenList(places[:count])


def _bytecode(code: CodeType) -> bytes:
    parts = [code.co_code, repr(code.co_names).encode()]
    parts += [
        _bytecode(each) if isinstance(each, CodeType) else repr(each).encode() for each in code.co_consts
    ]
    return b"\0".join(parts)
