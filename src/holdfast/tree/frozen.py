"""Deeply immutable dicts and lists, of which a version's state consists, and the copies that readers get.

Frozen containers subclass `dict` and `list` and are complete in memory, so `json.dumps`, pydantic and model clients
accept them. Their slot `at` is the place of a stored container as `(space, version, slot)`; `aux` is the spine of a
wide container or the places of its long leaves (see `containers` and `pack`).

C code can write into a list past its methods (`heapq.heappush`), so a reader never gets a container of a version's
tree: `reveal` returns a copy (`Served…`). A value that could change, such as a set or a dataclass, is in the tree as a
`Box`, its encoded form; the containers above a box are `Boxed…`.

A copy opens its children lazily: it starts with the frozen children and replaces each by the reader's own when it is
read. Reading all of them (a loop, `values()`) changes the class of the copy to one that reads at the speed of a plain
dict or list. C code that reads the memory directly sees frozen children, which are complete. One lock for the process
makes sure that all threads get the same child.

Invariant: nothing in a version's tree ever changes, whatever a reader does with its copy. No method of a copy returns a
child that is not opened, or a different one than before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import wraps
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, SupportsIndex, TypeAlias, TypeVar, cast

from holdfast.errors import FrozenStateChanged
from holdfast.operating_system import fork_safe_lock
from holdfast.tree.values import NATIVE, SIMPLE, join_error, split_error

if TYPE_CHECKING:
    _Dict = dict[Any, Any]
    _List = list[Any]
else:
    _Dict = _List = object

M = TypeVar("M", bound=Callable[..., Any])

#: Held while a child is opened, replaced or moved. Reentrant: methods that hold it call others.
opening = fork_safe_lock()


def alone(method: M) -> M:
    """Return the method, run under the lock `opening`."""

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        with opening:
            return method(*args, **options)

    return cast("M", call)


def _after(open_all: Callable[[Any], None], method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of `dict` or `list`, called after all children were opened."""

    @wraps(method)
    def call(self: Any, *args: Any) -> Any:
        open_all(self)
        return method(self, *args)

    return call


class LazyDict(_Dict):
    """Reading methods of a dict whose values are not all opened. Another thread may open the last value and change the
    class in the middle of a method, so methods use only attributes that both classes have."""

    __slots__ = ()

    if TYPE_CHECKING:
        #: The class of the container once all values are opened.
        opened_type: type[Any]

        def _open_child(self, value: Any) -> Any: ...
        def _put_opened(self, key: Any, opened: Any) -> None: ...

    def open_all(self) -> None:
        with opening:
            for key, value in list(dict.items(self)):
                if type(value) not in NATIVE:
                    opened = self._open_child(value)
                    if opened is not value:
                        self._put_opened(key, opened)
            self.__class__ = self.opened_type

    def __getitem__(self, key: Any) -> Any:
        value = dict.__getitem__(self, key)
        if type(value) in NATIVE:
            return value
        with opening:
            value = dict.__getitem__(self, key)
            opened = self._open_child(value)
            if opened is not value:
                self._put_opened(key, opened)
            return opened

    def get(self, key: Any, default: Any = None) -> Any:
        value = dict.get(self, key, default)
        if type(value) in NATIVE:
            return value
        with opening:
            return LazyDict.__getitem__(self, key) if key in self else default

    def __iter__(self) -> Iterator[Any]:
        # C code that copies a dict (`dict(x)`, `{**x}`) reads its memory unless iteration is overridden.
        return dict.__iter__(self)

    values: Any = _after(open_all, dict.values)
    items: Any = _after(open_all, dict.items)
    copy: Any = _after(open_all, dict.copy)
    __or__: Any = _after(open_all, dict.__or__)
    __ror__: Any = _after(open_all, dict.__ror__)


class LazyList(_List):
    """Reading methods of a list whose items are not all opened; as with `LazyDict`, threads may change the class."""

    __slots__ = ()

    if TYPE_CHECKING:
        #: The class of the container once all items are opened.
        opened_type: type[Any]
        #: Types of items that need not be opened.
        opened_kinds: frozenset[type]

        def _open_child(self, value: Any) -> Any: ...
        def _put_opened(self, index: SupportsIndex, opened: Any) -> None: ...
        def _open_at_once(self) -> None: ...

    def open_all(self) -> None:
        with opening:
            self._open_at_once()
            open_child, opened_already = self._open_child, self.opened_kinds
            for index, value in enumerate(list.__getitem__(self, slice(None))):
                if type(value) not in opened_already:
                    opened = open_child(value)
                    if opened is not value:
                        list.__setitem__(self, index, opened)
            self.__class__ = self.opened_type

    def __getitem__(self, index: Any) -> Any:
        value = list.__getitem__(self, index)
        if type(value) in NATIVE:
            return value
        with opening:
            if isinstance(index, slice):
                return [LazyList.__getitem__(self, at) for at in range(*index.indices(len(self)))]
            value = list.__getitem__(self, index)
            opened = self._open_child(value)
            if opened is not value:
                self._put_opened(index, opened)
            return opened

    __iter__: Any = _after(open_all, list.__iter__)
    __reversed__: Any = _after(open_all, list.__reversed__)
    copy: Any = _after(open_all, list.copy)
    __add__: Any = _after(open_all, list.__add__)
    __mul__: Any = _after(open_all, list.__mul__)
    __rmul__: Any = __mul__

    def __radd__(self, other: Any) -> Any:
        if not isinstance(other, list):
            return NotImplemented
        LazyList.open_all(self)
        return list.__add__(other, self)


#: The place of a node: the address space of its run, the version, the slot in the version's pack.
At: TypeAlias = tuple[object, int, int]
#: Places of long leaves by `id` of the value: the `At` of a slot, or `(space, extension)` for an artifact.
Long: TypeAlias = dict[int, Any]

#: Returns a new object from a box.
OpenBox: TypeAlias = "Callable[[Box], Any]"

_HOW = (
    "a version's state is immutable: change it in a step through `holdfast.state()`, in "
    "`with log.edit() as state: …`, or take a copy with `holdfast.thaw(…)` and commit that"
)


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError(_HOW)


class Copyable:
    """Copies of a container, and its pickle, are ordinary and mutable."""

    __slots__ = ()
    #: `dict` or `list`. Looked up in classes of the application as well, which have no attribute of this name.
    __holdfast_plain__: ClassVar[type[Any]]

    def __copy__(self) -> Any:
        return self.__holdfast_plain__(self)

    def __deepcopy__(self, memo: Any) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__holdfast_plain__, (thaw(self),)


class FrozenDict(Copyable, dict[Any, Any]):
    """A dict that refuses to be changed."""

    __slots__ = ("__weakref__", "at", "aux")
    __holdfast_plain__ = dict
    at: At
    aux: Any

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


class FrozenList(Copyable, list[Any]):
    """A list that refuses to be changed."""

    __slots__ = ("__weakref__", "at", "aux", "kinds")
    __holdfast_plain__ = list
    at: At
    aux: Any
    #: The types of its items, and perhaps of items of earlier versions.
    kinds: frozenset[type]

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse


class BoxedDict(FrozenDict):
    """A frozen dict with a box somewhere below it."""

    __slots__ = ()


class BoxedList(FrozenList):
    """A frozen list with a box somewhere below it."""

    __slots__ = ()


class ServedDict(FrozenDict):
    """A reader's copy of a frozen dict."""

    __slots__ = ("box_opener", "served_from")
    box_opener: OpenBox
    served_from: FrozenDict
    opened_type: ClassVar[type[Any]]

    def _open_child(self, value: Any) -> Any:
        return reveal(value, self.box_opener)

    def _put_opened(self, key: Any, opened: Any) -> None:
        dict.__setitem__(self, key, opened)


ServedDict.opened_type = ServedDict


class LazyServedDict(LazyDict, ServedDict):
    """A reader's copy of a frozen dict before all its values were read."""

    __slots__ = ()


class ServedList(FrozenList):
    """A reader's copy of a frozen list."""

    __slots__ = ("box_opener", "served_from")
    box_opener: OpenBox
    served_from: FrozenList
    opened_type: ClassVar[type[Any]]
    opened_kinds: ClassVar[frozenset[type]]

    def _open_child(self, value: Any) -> Any:
        return reveal(value, self.box_opener)

    def _put_opened(self, index: SupportsIndex, opened: Any) -> None:
        list.__setitem__(self, index, opened)

    def _open_at_once(self) -> None:
        source = self.served_from
        if all(map(is_, list.__iter__(self), source)) and are_records(source):
            records = list(map(ServedDict, source))
            for record, item in zip(records, source, strict=True):
                record.box_opener, record.served_from = self.box_opener, item
            list.__setitem__(self, slice(None), records)


ServedList.opened_type = ServedList


class LazyServedList(LazyList, ServedList):
    """A reader's copy of a frozen list before all its items were read."""

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
#: One object for each set of types of list items.
_shared_kinds: dict[frozenset[type], frozenset[type]] = {}
SERVED = frozenset((ServedDict, LazyServedDict, ServedList, LazyServedList))
ServedList.opened_kinds = NATIVE | SERVED


def freeze_dict(items: dict[Any, Any], new: Iterable[Any] | None = None) -> FrozenDict:
    """Freeze a dict of frozen values; only `new` values, if given, could be boxes."""
    values = items.values() if new is None else new
    return FrozenDict(items) if BOXED.isdisjoint(map(type, values)) else BoxedDict(items)


def freeze_list(items: list[Any], base: FrozenList | None = None, keep: int = 0) -> FrozenList:
    """Freeze a list of frozen items; the first `keep` of them are those of `base`."""
    if type(base) is FrozenList:
        known, kinds = kinds_of(base), frozenset(map(type, items[keep:]))
        kinds = known if known.issuperset(kinds) else known | kinds
    else:
        kinds = frozenset(map(type, items))
    frozen = FrozenList(items) if BOXED.isdisjoint(kinds) else BoxedList(items)
    frozen.kinds = _shared_kinds.setdefault(kinds, kinds)
    return frozen


def kinds_of(value: FrozenList) -> frozenset[type]:
    """Return the types of the items of a frozen list, and perhaps further ones."""
    kinds: frozenset[type] | None = getattr(value, "kinds", None)
    if kinds is None:
        kinds = frozenset(map(type, value))
        value.kinds = kinds = _shared_kinds.setdefault(kinds, kinds)
    return kinds


def are_flat(items: Iterable[Any]) -> bool:
    """Return whether all items are records: frozen dicts of native values, as in most long lists."""
    return set(map(type, items)) == _RECORDS and NATIVE.issuperset(
        map(type, chain.from_iterable(map(dict.values, items)))
    )


def are_records(value: FrozenList) -> bool:
    """Return whether all items of a frozen list are records; the spine of a long list caches the answer."""
    spine = aux_of(value)
    return bool(spine.is_flat()) if hasattr(spine, "is_flat") else are_flat(value)


def stored_at(value: Any) -> At | None:
    """Return the place of a frozen container; None if it is not stored in a slot of its own, and for other values."""
    # A value of the application may have an attribute of this name.
    return getattr(value, "at", None) if isinstance(value, Copyable) else None


def aux_of(value: Any) -> Any:
    """Return the spine or the places of long leaves of a frozen container; None if it has neither."""
    return getattr(value, "aux", None)


def leaves(aux: Any) -> Long:
    """Return the places of long leaves from the `aux` of a container without a spine."""
    if type(aux) is tuple:
        return {id(aux[0]): aux[1:]}
    return aux or {}


def set_leaves(container: Any, long: Long) -> None:
    """Set the places of long leaves of a container without a spine. A single leaf, the usual case, is stored as a tuple
    of itself and its place: a dict would often be larger than the container."""
    if len(long) == 1:
        ((number, place),) = long.items()
        values = container.values() if isinstance(container, dict) else container
        container.aux = (next(value for value in values if id(value) == number), *place)
    else:
        container.aux = long


def thaw(value: Any) -> Any:
    """Return an ordinary, mutable copy of a frozen tree or of a draft."""
    kind = type(value)
    if kind in NATIVE:
        return value
    if kind in SERVED:
        _check_content(value)
    plain = getattr(kind, "__holdfast_plain__", None)
    if plain is dict:
        return {key: thaw(item) for key, item in dict.items(value)}
    if plain is list:
        return [thaw(item) for item in list.__iter__(value)]
    if isinstance(value, tuple):
        items = [thaw(item) for item in value]
        return tuple(items) if kind is tuple else tuple.__new__(kind, items)
    try:
        if isinstance(value, BaseException):
            # `deepcopy` would call __init__ again and lose attributes outside of `args`.
            return join_error(kind, *deepcopy(split_error(value)))
        return deepcopy(value)
    except Exception:
        # Not everything can be copied, such as a lock in a draft.
        return value


def reveal(value: Any, open_box: OpenBox) -> Any:
    """Return a reader's copy of a value of a version's tree. The cost follows the width of the container: children
    are opened when they are read, except for boxes."""
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
    served.box_opener = open_box
    served.served_from = value
    return served


def map_tuple(value: tuple[Any, ...], change: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return a tuple of the same class with changed items; the tuple itself if no item is changed."""
    items = [item if type(item) in NATIVE else change(item) for item in value]
    if all(map(is_, items, value)):
        return value
    return tuple(items) if type(value) is tuple else tuple.__new__(type(value), items)


def source_of(value: Any) -> Any:
    """Return the frozen container of a reader's copy; other values unchanged. Raise `FrozenStateChanged` if C code
    wrote into the copy or into one below it. A copy with opened boxes is returned itself: the reader may have changed
    those objects."""
    if type(value) not in SERVED:
        return value
    _check_content(value)
    if type(value.served_from) in BOXED:
        return value
    for item in dict.values(value) if isinstance(value, dict) else list.__iter__(value):
        if type(item) in SERVED:
            source_of(item)
    return value.served_from


def _check_content(served: Any) -> None:
    """Raise `FrozenStateChanged` if C code wrote into a reader's copy."""
    source = served.served_from
    if len(served) == len(source):
        if isinstance(served, dict):
            now, then = dict.values(served), dict.values(source)
            intact = all(map(is_, dict.keys(served), source)) and all(map(_is_copy, now, then))
        else:
            intact = all(map(_is_copy, list.__iter__(served), source))
        if intact:
            return
    raise FrozenStateChanged(
        f"a {served.__holdfast_plain__.__name__} of a version's state was changed past its methods (by heapq, or by "
        f"methods of {served.__holdfast_plain__.__name__} called on it); {_HOW}"
    )


def _is_copy(item: Any, source: Any) -> bool:
    """Return whether an item of a reader's copy is the original item or was opened from it."""
    if item is source:
        return True
    if type(item) in SERVED:
        return bool(item.served_from is source)
    return type(source) is Box or isinstance(source, tuple)
