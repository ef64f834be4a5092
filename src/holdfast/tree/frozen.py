"""Deeply immutable dicts and lists: what a version's state is made of.

They are real subclasses of `dict` and `list`, physically complete, so `json.dumps`, pydantic and model
clients take them as they are. Every mutator raises and says how to change state instead.

Two private slots tie a container to its storage: `_at`, where it is stored as `(space, version, slot)`,
and `_aux`, the spine of a wide container or the places of its long leaves (see `spine` and `pack`).
A container without `_at` is stored inside its parent, or not yet.

Invariant: nothing reachable from a frozen container ever changes, except through `dict.__setitem__` and
its like, which no ordinary code calls. Objects that could change (a set, a dataclass) lie in the tree as
a `Box`, their encoded form, and the containers above a box are of the `Boxed…` kinds; `reveal` gives the
caller a copy in which each box has become a fresh object of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, NoReturn, TypeAlias

from holdfast.tree.records import join_error, split_error
from holdfast.tree.values import NATIVE

#: Where a node is stored: the address space of its run, the version, the slot in the version's pack.
At: TypeAlias = tuple[object, int, int]
#: Places of long leaves: `id` of a value in a container → where it is stored: the `At` of its slot, or
#: `(space, extension)` for one that is kept as an artifact.
Long: TypeAlias = dict[int, Any]

_HOW = (
    "a version's state is immutable: change it in a step through `holdfast.state()`, in "
    "`with log.edit() as state: …`, or take a copy with `holdfast.thaw(…)` and commit that "
    "(what a loop over a draft gives is immutable, too: change it by its place, `state['tasks'][3]['done'] = True`)"
)


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError(_HOW)


class FrozenDict(dict[Any, Any]):
    """A dict that refuses to be changed."""

    __slots__ = ("__weakref__", "_at", "_aux")
    _plain = dict
    _at: At
    _aux: Any

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __repr__(self) -> str:
        return dict.__repr__(self)

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: Any) -> dict[Any, Any]:
        copied: dict[Any, Any] = thaw(self)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (thaw(self),)


class FrozenList(list[Any]):
    """A list that refuses to be changed."""

    __slots__ = ("__weakref__", "_at", "_aux")
    _plain = list
    _at: At
    _aux: Any

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __repr__(self) -> str:
        return list.__repr__(self)

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: Any) -> list[Any]:
        copied: list[Any] = thaw(self)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (thaw(self),)


class BoxedDict(FrozenDict):
    """A frozen dict with a box somewhere below it; never handed to a caller."""

    __slots__ = ()


class BoxedList(FrozenList):
    """A frozen list with a box somewhere below it; never handed to a caller."""

    __slots__ = ()


class Box:
    """A value that could change, as an extension code and its encoded bytes."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code = code
        self.data = data


DICTS = (FrozenDict, BoxedDict)
LISTS = (FrozenList, BoxedList)
BOXED = frozenset((Box, BoxedDict, BoxedList))


def freeze_dict(items: dict[Any, Any], new: Iterable[Any] | None = None) -> FrozenDict:
    """Wrap a dict whose values are frozen already; only `new` ones, if given, could be boxes."""
    values = items.values() if new is None else new
    return FrozenDict(items) if BOXED.isdisjoint(map(type, values)) else BoxedDict(items)


def freeze_list(items: list[Any], new: Iterable[Any] | None = None) -> FrozenList:
    """Wrap a list whose items are frozen already; only `new` ones, if given, could be boxes."""
    return (
        FrozenList(items) if BOXED.isdisjoint(map(type, items if new is None else new)) else BoxedList(items)
    )


def stored_at(value: Any) -> At | None:
    """Where a frozen container is stored, if it is."""
    return getattr(value, "_at", None)


def aux_of(value: Any) -> Any:
    """The spine or the long leaves of a frozen container, if it has any."""
    return getattr(value, "_aux", None)


def leaves(aux: Any) -> Long:
    """The places of long leaves that a container without a spine has noted."""
    if type(aux) is tuple:
        return {id(aux[0]): aux[1:]}
    return aux or {}


def note_leaves(container: Any, long: Long) -> None:
    """Have a container without a spine note the places of its long leaves. A single one, as most have, is noted as
    itself and its place: a dict would often be larger than the container."""
    if len(long) == 1:
        ((number, place),) = long.items()
        values = container.values() if isinstance(container, dict) else container
        container._aux = (next(value for value in values if id(value) == number), *place)
    else:
        container._aux = long


def thaw(value: Any) -> Any:
    """A private, ordinary, mutable copy of a frozen tree, or of a draft."""
    kind = type(value)
    if kind in NATIVE:
        return value
    plain = getattr(kind, "_plain", None)
    if plain is dict:
        return {key: thaw(item) for key, item in value.items()}
    if plain is list:
        return [thaw(item) for item in value]
    if isinstance(value, tuple):
        items = [thaw(item) for item in value]
        return tuple(items) if kind is tuple else tuple.__new__(kind, items)
    try:
        if isinstance(value, BaseException):
            # `deepcopy` would run its __init__ again, and forget what Python keeps beside `args`.
            return join_error(kind, *deepcopy(split_error(value)))
        return deepcopy(value)
    except Exception:
        # Not all can be copied: think of a lock in a draft.
        return value


def reveal(value: Any, open_box: Callable[[Box], Any]) -> Any:
    """What a caller may see: each box below `value` as a fresh object. Costs nothing where there is none."""
    kind = type(value)
    if kind is BoxedDict:
        return FrozenDict({key: reveal(item, open_box) for key, item in value.items()})
    if kind is BoxedList:
        return FrozenList([reveal(item, open_box) for item in value])
    if kind is Box:
        return open_box(value)
    return value
