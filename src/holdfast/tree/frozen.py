"""Deeply immutable dicts and lists: what a version's state is made of.

They are real subclasses of `dict` and `list`, physically complete, so `json.dumps`, pydantic and model
clients take them as they are. Every mutator raises and says how to change state instead.

Two private slots tie a container to its storage: `_at`, where it is stored as `(space, version, slot)`,
and `_aux`, the spine of a wide container or the places of its long leaves (see `spine` and `pack`).
A container without `_at` is stored inside its parent, or not yet.

C code can write into a list past its methods (`heapq.heappush`, `list.append(x, 1)`), so the containers of a
version's tree are never handed to a caller. `reveal` gives each reader containers of its own (`Served…`), made when
they are read, and new objects for what could change: a set or a dataclass lies in the tree as a `Box`, its encoded
form, and the containers above a box are of the `Boxed…` kinds. A served container knows which one it was made from;
`source_of` refuses it if its memory was written to.

Invariant: nothing in a version's tree ever changes, whatever a reader does to the containers that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import chain
from operator import is_
from typing import Any, ClassVar, NoReturn, SupportsIndex, TypeAlias

from holdfast.errors import FrozenStateChanged
from holdfast.tree.lazy import LazyDict, LazyList
from holdfast.tree.records import join_error, split_error
from holdfast.tree.values import NATIVE, SIMPLE

#: Where a node is stored: the address space of its run, the version, the slot in the version's pack.
At: TypeAlias = tuple[object, int, int]
#: Places of long leaves: `id` of a value in a container → where it is stored: the `At` of its slot, or
#: `(space, extension)` for one that is kept as an artifact.
Long: TypeAlias = dict[int, Any]

#: Makes a new object of a box.
OpenBox: TypeAlias = "Callable[[Box], Any]"

_HOW = (
    "a version's state is immutable: change it in a step through `holdfast.state()`, in "
    "`with log.edit() as state: …`, or take a copy with `holdfast.thaw(…)` and commit that"
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

    __slots__ = ("__weakref__", "_at", "_aux", "_kinds")
    _plain = list
    _at: At
    _aux: Any
    #: The types of its items, and perhaps of some that it once had.
    _kinds: frozenset[type]

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


class ServedDict(FrozenDict):
    """A reader's own copy of a frozen dict, with values of the reader's own."""

    __slots__ = ("_open", "_source")
    _open: OpenBox
    _source: FrozenDict
    _whole: ClassVar[type[Any]]

    def _open_child(self, value: Any) -> Any:
        return reveal(value, self._open)

    def _put_opened(self, key: Any, opened: Any) -> None:
        dict.__setitem__(self, key, opened)


ServedDict._whole = ServedDict


class LazyServedDict(LazyDict, ServedDict):
    """The same before all its values were read."""

    __slots__ = ()


class ServedList(FrozenList):
    """A reader's own copy of a frozen list, with items of the reader's own."""

    __slots__ = ("_open", "_source")
    _open: OpenBox
    _source: FrozenList
    _whole: ClassVar[type[Any]]
    _opened_kinds: ClassVar[frozenset[type]]

    def _open_child(self, value: Any) -> Any:
        return reveal(value, self._open)

    def _put_opened(self, index: SupportsIndex, opened: Any) -> None:
        list.__setitem__(self, index, opened)

    def _open_at_once(self) -> None:
        source = self._source
        if all(map(is_, list.__iter__(self), source)) and are_records(source):
            records = list(map(ServedDict, source))
            for record, item in zip(records, source, strict=True):
                record._open, record._source = self._open, item
            list.__setitem__(self, slice(None), records)


ServedList._whole = ServedList


class LazyServedList(LazyList, ServedList):
    """The same before all its items were read."""

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
_RECORDS = {FrozenDict}
#: One object for each set of types that items of lists have.
_shared_kinds: dict[frozenset[type], frozenset[type]] = {}
SERVED = frozenset((ServedDict, LazyServedDict, ServedList, LazyServedList))
ServedList._opened_kinds = NATIVE | SERVED


def freeze_dict(items: dict[Any, Any], new: Iterable[Any] | None = None) -> FrozenDict:
    """Wrap a dict whose values are frozen already; only `new` ones, if given, could be boxes."""
    values = items.values() if new is None else new
    return FrozenDict(items) if BOXED.isdisjoint(map(type, values)) else BoxedDict(items)


def freeze_list(items: list[Any], base: FrozenList | None = None, keep: int = 0) -> FrozenList:
    """Wrap a list whose items are frozen already; the first `keep` of them are those of `base`."""
    if type(base) is FrozenList:
        known, kinds = kinds_of(base), frozenset(map(type, items[keep:]))
        kinds = known if known.issuperset(kinds) else known | kinds
    else:
        kinds = frozenset(map(type, items))
    frozen = FrozenList(items) if BOXED.isdisjoint(kinds) else BoxedList(items)
    frozen._kinds = _shared_kinds.setdefault(kinds, kinds)
    return frozen


def kinds_of(value: FrozenList) -> frozenset[type]:
    """The types of the items of a frozen list, and perhaps further ones."""
    kinds: frozenset[type] | None = getattr(value, "_kinds", None)
    if kinds is None:
        kinds = frozenset(map(type, value))
        value._kinds = kinds = _shared_kinds.setdefault(kinds, kinds)
    return kinds


def are_flat(items: Iterable[Any]) -> bool:
    """Are all items dicts that hold nothing which has parts? Most long lists are of such records."""
    return set(map(type, items)) == _RECORDS and NATIVE.issuperset(
        map(type, chain.from_iterable(map(dict.values, items)))
    )


def are_records(value: FrozenList) -> bool:
    """The same of a frozen list; the spine of a long one knows it of most of its items."""
    spine = aux_of(value)
    return bool(spine.is_flat()) if hasattr(spine, "is_flat") else are_flat(value)


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
    if kind in SERVED:
        _check_content(value)
    plain = getattr(kind, "_plain", None)
    if plain is dict:
        return {key: thaw(item) for key, item in dict.items(value)}
    if plain is list:
        return [thaw(item) for item in list.__iter__(value)]
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


def reveal(value: Any, open_box: OpenBox) -> Any:
    """A reader's own form of a value of a version's tree. Costs as much as the container is wide; what lies below is
    opened when it is read, except for boxes."""
    kind = type(value)
    if kind in DICTS:
        simple = SIMPLE.issuperset(map(type, value.values()))
        served: Any = ServedDict(value) if simple else LazyServedDict(value)
        if kind is BoxedDict:
            for key, item in value.items():
                if type(item) in BOXED:
                    dict.__setitem__(served, key, reveal(item, open_box))
    elif kind in LISTS:
        served = ServedList(value) if SIMPLE.issuperset(kinds_of(value)) else LazyServedList(value)
        if kind is BoxedList:
            for index, item in enumerate(value):
                if type(item) in BOXED:
                    list.__setitem__(served, index, reveal(item, open_box))
    elif isinstance(value, tuple):
        return map_tuple(value, lambda item: reveal(item, open_box))
    else:
        return open_box(value) if kind is Box else value
    served._open = open_box
    served._source = value
    return served


def map_tuple(value: tuple[Any, ...], change: Callable[[Any], Any]) -> tuple[Any, ...]:
    """A tuple of the same class with changed items; the very tuple if no item is changed."""
    items = [item if type(item) in NATIVE else change(item) for item in value]
    if all(map(is_, items, value)):
        return value
    return tuple(items) if type(value) is tuple else tuple.__new__(type(value), items)


def source_of(value: Any) -> Any:
    """The frozen container that a served one was made from; other values as they are. `FrozenStateChanged` if its
    memory, or that of a container below it, was written to. A served container with objects in it stays what it is:
    the objects are the reader's own, and may have changed."""
    if type(value) not in SERVED:
        return value
    _check_content(value)
    if type(value._source) in BOXED:
        return value
    for item in dict.values(value) if isinstance(value, dict) else list.__iter__(value):
        if type(item) in SERVED:
            source_of(item)
    return value._source


def _check_content(served: Any) -> None:
    """Refuse a served container if it does not hold what it was made with."""
    source = served._source
    if len(served) == len(source):
        if isinstance(served, dict):
            now, then = dict.values(served), dict.values(source)
            intact = all(map(is_, dict.keys(served), source)) and all(map(_is_copy, now, then))
        else:
            intact = all(map(_is_copy, list.__iter__(served), source))
        if intact:
            return
    raise FrozenStateChanged(
        f"a {served._plain.__name__} of a version's state was written to past its methods (heapq, or "
        f"{served._plain.__name__}'s own methods called on it); {_HOW}"
    )


def _is_copy(item: Any, source: Any) -> bool:
    """Is an item of a served container the one that it was made with, or the reader's own form of that one?"""
    if item is source:
        return True
    if type(item) in SERVED:
        return bool(item._source is source)
    return type(source) is Box or isinstance(source, tuple)
