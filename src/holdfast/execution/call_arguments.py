"""Capture of the arguments of a call for the version that will record it, and comparison with an existing run's.

Arguments are captured when the call is made, because a step may change them. A value that a version of the run stores
already is not stored again: texts are found by content, results by identity, and a container is folded against the last
value of the same parameter, with which it shares equal parts. Texts above 64 KiB are artifacts, which the store keeps
once.

Invariant: capturing changes no argument; only where `strict` is set does it fail for one that cannot be stored. A
second call of `run` resumes a run only if it is the call that started it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from holdfast.errors import HoldfastError, InvalidCall, ReplayDiverged, RunMismatch
from holdfast.execution.calls import Call, refuse_as_argument
from holdfast.execution.replay_log import RecordedStep, ReplayLog
from holdfast.history.compare import call_differences, describe_differences, has_placeholders
from holdfast.history.context import StoreContext
from holdfast.history.version import NotStored
from holdfast.model.names import short
from holdfast.model.records import RunRecord
from holdfast.tree.class_names import type_name
from holdfast.tree.codec import REDACTED, decode_frozen, encode, to_bytes, with_current_tags
from holdfast.tree.fold import Folder, Redactor
from holdfast.tree.frozen import (
    DICTS,
    LISTS,
    FrozenList,
    aux_of,
    freeze_dict,
    freeze_list,
    leaves,
    set_leaves,
)
from holdfast.tree.pack import OWN_LEAF, Prepared
from holdfast.tree.values import NATIVE
from holdfast.workflow.definition import Step, Workflow

if TYPE_CHECKING:
    from holdfast.history.committer import VersionDraft

IF_EXISTS = ("error", "resume", "return")


def check_if_exists(if_exists: Any) -> None:
    """Raise `InvalidCall` for a value that `if_exists` does not take."""
    if if_exists not in IF_EXISTS:
        raise InvalidCall(f"if_exists is one of {', '.join(IF_EXISTS)}, not {short(if_exists)}")


def refuse_other_workflow(run: RunRecord, workflow: Workflow) -> None:
    """Raise `RunMismatch` if a run is not a run of this workflow."""
    if run.workflow != workflow.name and run.workflow not in workflow.aliases:
        kind = "a manual run" if run.workflow is None else f"a run of workflow {run.workflow!r}"
        raise RunMismatch(
            f"run {run.id!r} exists and is {kind}, not of {workflow.name!r}: use another run_id",
            run=run.id,
            workflow=run.workflow,
        )


def refuse_other_call(
    context: StoreContext,
    run: RunRecord,
    workflow: Workflow,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    state: Any,
) -> None:
    """Raise `RunMismatch` if a run was started with other arguments, or from another state. Redacted values are not
    stored and not compared; `state` None, and the state of a fork, are not compared either."""
    refuse_other_workflow(run, workflow)
    reader = context.reader(run)
    record = ReplayLog(reader)
    given = record.input(1) if run.origin is None else record.load(run.head).given()
    try:
        then = workflow.signature.bind(*given[0], **given[1])
    except TypeError as error:
        raise RunMismatch(
            f"run {run.id!r} exists, and the arguments that it was started with do not fit workflow {workflow.name!r} "
            f"any more ({error}), so they cannot be compared: hf.resume({run.id!r}) resumes it with those, or use "
            "another run_id",
            run=run.id,
        ) from None
    now = workflow.signature.bind(*args, **kwargs)
    then.apply_defaults()
    now.apply_defaults()
    differing = [name for name in now.arguments if _differ(context, name, then.arguments, now.arguments)]
    if state is not None and run.origin is None:
        differing += ["state"] if _differ(context, "", {"": reader.state(1)}, {"": state}) else []
    if differing:
        raise RunMismatch(
            f"run {run.id!r} exists and was started with other values of {', '.join(differing)}: use another run_id "
            f"for this call, or hf.resume({run.id!r}) to resume that run",
            run=run.id,
            arguments=differing,
        )


def _differ(context: StoreContext, name: str, then: dict[str, Any], now: dict[str, Any]) -> bool:
    redact = context.redact
    if redact is not None and redact.hides(name):
        return False
    return digest_of((then[name],), {}, redact) != digest_of((now[name],), {}, redact)


_TEXTS = (str, bytes)
#: Bytes of a call that is stored as it is; texts in it stay inside their container anyway.
SMALL = OWN_LEAF
LARGE: int = SMALL + 1
#: Levels of containers in such a call.
_LEVELS = 16
#: Results and parameters whose last values are held, and bytes of texts and of a version whose values are.
_RESULTS, _PARAMETERS, _TEXT_BYTES, _VERSION_BYTES = 8, 256, 16 * 1024 * 1024, 4 * 1024 * 1024


class CapturedCall(msgspec.Struct, eq=False):
    """The arguments of a call on their way into a version."""

    #: Positional values, keywords, names (see `history.version`); prepared for a small call.
    root: FrozenList | Prepared
    arrivals: list[Any] | None = None
    #: The containers among them, by step and parameter; None for a small call, to which nothing refers later.
    parameters: dict[Any, Any] | None = None

    @property
    def call(self) -> FrozenList:
        """The call, frozen."""
        if type(self.root) is Prepared:
            found: FrozenList = decode_frozen(to_bytes(self.root.node))
            return found
        assert isinstance(self.root, FrozenList)
        return self.root

    def __holdfast_fold__(self, folder: Folder, base: Any, depth: int) -> Any:
        if self.arrivals:
            folder.arrivals += self.arrivals
        return self.root


def capture_small(
    definition: Step | Workflow, args: tuple[Any, ...], kwargs: dict[str, Any], redact: Redactor | None
) -> CapturedCall | None:
    """Capture a call of few bytes, which is stored as it is; None if it has values other than plain ones."""
    names = definition.known_names.get(len(args))
    if names is None:
        names = definition.names(len(args))
    if redact is None and not kwargs and NATIVE.issuperset(map(type, args)):
        return CapturedCall(Prepared([list(args), {}, names]))
    if not all(map(_is_plain, args)) or not all(map(_is_plain, kwargs.values())):
        return None
    data = encode([_shown(args, names, redact), kwargs, names], None if redact is None else redact.hides)
    return CapturedCall(Prepared(Raw(data)))


def without_secrets(
    workflow: Workflow, args: tuple[Any, ...], kwargs: dict[str, Any], redact: Redactor | None
) -> list[Any]:
    """Return the arguments of a call as they may be stored. Folding hides secrets by keyword; positional ones get their
    parameters' names here."""
    names = workflow.names(len(args))
    return [_shown(args, names, redact), kwargs, names]


def _shown(args: tuple[Any, ...], names: FrozenList, redact: Redactor | None) -> list[Any]:
    """Return positional arguments, those that are secret redacted."""
    if redact is None:
        return list(args)
    return [REDACTED if _is_secret(index, names, redact) else value for index, value in enumerate(args)]


def _is_secret(index: int, names: FrozenList, redact: Redactor | None) -> bool:
    """Return whether the parameter that takes a positional argument is redacted."""
    if redact is None:
        return False
    if index < len(names) and names[index][:1] != "*":
        return redact.hides(str(names[index]))
    return redact.hides(names[-1][1:] if names and names[-1][:1] == "*" else None)


def _is_plain(value: Any, levels: int = _LEVELS) -> bool:
    kind = type(value)
    if kind in NATIVE:
        return True
    plain = kind if kind is dict or kind is list else getattr(kind, "__holdfast_plain__", None)
    if plain is None or levels == 0 or (plain is dict and not NATIVE.issuperset(map(type, value))):
        return False
    items = dict.values(value) if plain is dict else list.__iter__(value)
    return all(_is_plain(item, levels - 1) for item in items)


class StoredValues:
    """Values that the newest versions of a run store, to which later ones refer. Safe to use from many threads."""

    def __init__(self) -> None:
        self._texts: OrderedDict[Any, Any] = OrderedDict()
        self._bytes = 0
        self._results: deque[tuple[Any, Any]] = deque(maxlen=_RESULTS)
        self._parameters: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.Lock()

    def capture(
        self,
        definition: Step | Workflow,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        folder: Folder,
        *,
        strict: bool = False,
    ) -> CapturedCall:
        """Freeze the arguments of a call; `folder` must leave drafts as they are."""
        names = definition.names(len(args))
        redact = folder.redact
        call = _Capture(self, definition.name, folder, strict)
        positional = [
            REDACTED if _is_secret(index, names, redact) else call.value(index, value)
            for index, value in enumerate(args)
        ]
        named = {
            name: REDACTED if redact is not None and redact.hides(name) else call.value(name, value)
            for name, value in kwargs.items()
        }
        given, keywords = freeze_list(positional), freeze_dict(named)
        self._refer(given, positional, folder.space)
        self._refer(keywords, named.values(), folder.space)
        return CapturedCall(freeze_list([given, keywords, names]), folder.arrivals, call.parameters)

    def note(self, draft: VersionDraft, result: Any, captured: CapturedCall | None) -> None:
        """Remember the values that a version which was committed just now stores."""
        assert draft.change.version is not None
        found = list(draft.writer.loose)
        small = captured is None or captured.parameters is None
        if small and not found and type(result) not in (dict, list):
            return
        if draft.change.version.size > _VERSION_BYTES:
            return
        if captured is not None and captured.parameters is not None:
            for owner in captured.call[:2]:
                places = leaves(aux_of(owner))
                values = owner.values() if isinstance(owner, dict) else owner
                found += [(value, places[id(value)]) for value in values if id(value) in places]
        with self._lock:
            if type(result) in (dict, list):
                self._results.append((result, draft.result))
            for text, place in found:
                self._keep_text(text, place)
            if captured is not None and captured.parameters is not None:
                for key, value in captured.parameters.items():
                    self._parameters.pop(key, None)
                    self._parameters[key] = value
                while len(self._parameters) > _PARAMETERS:
                    self._parameters.popitem(last=False)

    def note_result(self, value: Any, frozen: Any) -> None:
        """Remember a result that was replayed, and where it is stored."""
        if type(value) in (dict, list):
            with self._lock:
                self._results.append((value, frozen))

    def base_of(self, key: Any, value: Any) -> Any:
        """Return the stored value that a container is likely to equal in part; None if there is none."""
        with self._lock:
            for result, frozen in self._results:
                if result is value:
                    return frozen
            return self._parameters.get(key)

    def _refer(self, owner: Any, values: Any, space: object) -> None:
        """Make a container of arguments refer to the stored texts in it."""
        long = {}
        for value in values:
            if type(value) in _TEXTS and len(value) > OWN_LEAF:
                place = self._texts.get(value)
                if place is not None and place[0] is space:
                    long[id(value)] = place
        if long:
            set_leaves(owner, long)

    def _keep_text(self, text: Any, place: Any) -> None:
        if type(text) not in _TEXTS or len(text) > _TEXT_BYTES // 4:
            return
        if self._texts.pop(text, None) is None:
            self._bytes += len(text)
        self._texts[text] = place
        while self._bytes > _TEXT_BYTES:
            self._bytes -= len(self._texts.popitem(last=False)[0])


def describe_opaque(
    value: Any,
    redact: Redactor | None = None,
    levels: int = _LEVELS,
    name_of: Callable[[type], str] = type_name,
) -> Any:
    """Return something storable that is equal for equal values, for a value that cannot be stored: its type, with the
    name of an enum's member, the fields of a record, or the content of a subclass of a built-in type."""

    def part(inner: Any, name: Any = None) -> Any:
        is_hidden = redact is not None and redact.hides(name)
        return REDACTED if is_hidden else describe_opaque(inner, redact, levels - 1, name_of)

    kind = type(value)
    if kind in NATIVE or levels == 0:
        return value if kind in NATIVE else name_of(kind)
    name = name_of(kind)
    if isinstance(value, Enum):
        return [name, value.name]
    fields = _fields_of(kind)
    if fields:
        return [name, [[field, part(getattr(value, field, None), field)] for field in fields]]
    if isinstance(value, str):
        return [name, str.__str__(value)]
    if isinstance(value, bytes | int | float):
        return [name, value.hex() if isinstance(value, bytes | float) else int(value)]
    if isinstance(value, Mapping):
        return [name, [[part(key), part(item, key)] for key, item in value.items()]]
    if isinstance(value, list | tuple | deque):
        return [name, [part(item) for item in value]]
    if isinstance(value, set | frozenset):
        return [name, sorted(encode(part(item)) for item in value)]
    return name


def _fields_of(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a record: a dataclass, NamedTuple, msgspec struct, attrs class or pydantic
    model."""
    for names in ("__dataclass_fields__", "_fields", "__struct_fields__", "model_fields", "__fields__"):
        found = getattr(kind, names, None)
        if isinstance(found, dict | tuple) and all(isinstance(name, str) for name in found):
            return tuple(found)
    return tuple(each.name for each in getattr(kind, "__attrs_attrs__", ()))


class _Capture:
    """One call of `capture` that has more than plain values."""

    def __init__(self, stored: StoredValues, step: str, folder: Folder, strict: bool) -> None:
        self._stored = stored
        self._step = step
        self._folder = folder
        self._strict = strict
        self.parameters: dict[Any, Any] = {}

    def value(self, parameter: int | str, value: Any) -> Any:
        if type(value) in NATIVE:
            return value
        key = self._step, parameter
        arrivals = len(self._folder.arrivals)
        try:
            found = self._folder.fold(value, self._stored.base_of(key, value), part=f"argument {parameter}")
        except HoldfastError:
            if self._strict:
                raise
            del self._folder.arrivals[arrivals:]
            return self._folder.fold(NotStored(type_name(type(value))))
        if type(found) in DICTS or type(found) in LISTS:
            self.parameters[key] = found
        return found


def changed_arguments(call: Call[Step] | Call[Workflow], entry: RecordedStep) -> ReplayDiverged | None:
    """Return the refusal to replay a call whose arguments differ from the recorded ones, which it names; None if they
    are the same. Digests made with earlier redaction patterns, or by earlier versions of Holdfast, are compared as
    well, and a parameter may be passed by name now that was passed by position, or vice versa."""
    if not entry.args or not call.digest or entry.args == call.digest:
        return None
    execution = call.frame.execution
    patterns = execution.engine.context.redaction
    if any(
        entry.args
        in (digest_of(call.args, call.kwargs, redact), *former_digests(call.args, call.kwargs, redact))
        for redact in (patterns.redactor, *patterns.earlier)
    ):
        return None
    recorded = execution.replay_log.call(entry)
    if recorded is None:
        found, difference = [], "they were not stored with that version"
    else:
        now = execution.capture(call, patterns.redactor).call
        found = call_differences(recorded, now)
        if found:
            # Earlier versions stored a class of the running program under another tag.
            with suppress(HoldfastError):
                found = call_differences(decode_frozen(with_current_tags(encode(recorded))), now)
        if not found and not has_placeholders(recorded):
            return None
        difference = (
            describe_differences(found) or "the difference is in a value that is not stored, or redacted"
        )
    return ReplayDiverged(
        f"step {entry.address!r} was recorded (version {entry.number}) with other arguments ({difference}): the "
        f"workflow's code or what it depends on has changed; resume with from_address={entry.address!r} to run it "
        "and all after it again",
        address=entry.address,
        version=entry.number,
        recorded={where: was for where, was, _ in found},
        now={where: now for where, _, now in found},
    )


def digest_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], redact: Redactor | None = None) -> bytes:
    """Return the same digest for the same arguments, as they would be stored. Those that cannot be stored count by
    their type, and by their parts if they are enums, records or subclasses of built-in types."""
    return digest_and_size(args, kwargs, redact)[0]


def former_digests(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], redact: Redactor | None
) -> tuple[bytes, ...]:
    """Return the digests that earlier versions of Holdfast recorded: arguments that cannot be stored count by their
    type alone, or a class of the running program is named as one of `__main__`."""
    by_module = partial(describe_opaque, name_of=_module_and_name)
    return tuple(digest_and_size(args, kwargs, redact, describe)[0] for describe in (_type_name, by_module))


def digest_and_size(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    redact: Redactor | None = None,
    describe: Callable[[Any, Redactor | None], Any] = describe_opaque,
) -> tuple[bytes, int]:
    """Return the digest of arguments, and about how many bytes they take."""
    if redact is None and not kwargs and NATIVE.issuperset(map(type, args)):
        data = to_bytes([list(args), []])
        return sha256(data).digest()[:8], len(data)
    given = [list(args), sorted(kwargs.items())]
    try:
        data = encode(given if redact is None else Folder(None, redact).fold([list(args), dict(given[1])]))
    except HoldfastError:
        refuse_as_argument(given)
        data = encode(
            [
                [_storable(value, describe, redact) for value in args],
                [[name, _storable(kwargs[name], describe, redact)] for name in sorted(kwargs)],
            ]
        )
    return sha256(data).digest()[:8], len(data)


def _storable(value: Any, describe: Callable[[Any, Redactor | None], Any], redact: Redactor | None) -> Any:
    try:
        encode(value)
    except HoldfastError:
        return describe(value, redact)
    return value


def _type_name(value: Any, _redact: Redactor | None) -> str:
    return _module_and_name(type(value))


def _module_and_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
