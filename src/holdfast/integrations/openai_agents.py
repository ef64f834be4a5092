"""Sessions of the OpenAI Agents SDK: a conversation is a run, each change of it a version.

Invariant: items of one `add_items` stay together and in order, also with concurrent writers; a compaction
replaces only items of the version that it has read; no item is deleted: `pop_item`, `clear_session` and a
compaction are versions too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from holdfast import History, Holdfast, InvalidCall, NotFound, StaleVersion, UnsupportedValue, Version, thaw
from holdfast.integrations import missing_extra
from holdfast.integrations.histories import check_not_workflow, check_store
from holdfast.off_loop import run_off_loop
from holdfast.tree import adapter
from holdfast.tree.class_names import type_name

try:
    from agents.memory import SessionSettings
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
    from agents.memory.sqlite_session import SQLiteSession
except ModuleNotFoundError as error:
    raise missing_extra(__name__, "the OpenAI Agents SDK", error.name) from error

if TYPE_CHECKING:
    from agents import TResponseInputItem

P = ParamSpec("P")
T = TypeVar("T")

#: The session that this task reads for a compaction, and the head that it has read (see `_head_items`).
_compacting: ContextVar[tuple[HoldfastSession, Version | int] | None] = ContextVar(
    "_compacting", default=None
)

#: Methods of the SDK's and OpenAI's objects that return an item, and how they are called.
_CONVERSIONS = (
    ("to_input_item", "to_input_item()"),
    ("model_dump", "model_dump(exclude_unset=True)"),
)


class SessionClosed(InvalidCall, RuntimeError):
    """The session is closed (a RuntimeError, as in the SDK's sessions)."""

    code = "session_closed"


class UnsupportedItem(UnsupportedValue, TypeError):
    """An item has a value that cannot be stored (a TypeError, as in the SDK's sessions)."""


class _JsonValues:
    """Stores values of unregistered subclasses of JSON's types (`StrEnum`, `defaultdict`, a named tuple) as plain
    ones, as the SDK's sessions do."""

    def replace(self, value: Any) -> Any:
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, dict):
            return dict(value)
        return list(value) if isinstance(value, list | tuple) else NotImplemented

    def simplify(self, value: Any) -> Any:
        return NotImplemented

    def provide(self, tag: str) -> None:
        """Register nothing: an unknown tag is read as `Opaque`."""


_JSON_VALUES = _JsonValues()


@dataclass(frozen=True)
class _CompactionSnapshot:
    """The latest items of a conversation, for the SDK's compaction."""

    items: list[TResponseInputItem]
    #: Whether these are all items of the conversation.
    complete: bool
    #: Replace the items from an index on; return False, and change nothing, if the conversation has changed.
    replace_suffix: Callable[[int, list[TResponseInputItem]], Awaitable[bool]]


def _in_thread(
    method: Callable[Concatenate[HoldfastSession, P], T],
) -> Callable[Concatenate[HoldfastSession, P], Coroutine[Any, Any, T]]:
    """Make a blocking method of a session asynchronous: it is called in another thread. The session must be open
    when the call starts."""

    @wraps(method)
    async def call(self: HoldfastSession, /, *args: P.args, **options: P.kwargs) -> T:
        self._check_open()
        return await run_off_loop(method, self, *args, **options)

    return call


class HoldfastSession:
    """A conversation of an agent, for `Runner.run(agent, …, session=…)`. It is stored as the run
    `session_id`."""

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        hf: Holdfast,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        #: The whole history of the conversation: `diff`, `blame`, `tag`, `timelines`, …
        self.history: History = check_store(hf).history(session_id)
        self.session_id = self.history.id
        settings = SessionSettings() if session_settings is None else session_settings
        self.session_settings = coerce_session_settings(settings)
        self._hf = hf
        #: Expected number of the head; a commit fails if it is outdated.
        self._head = 0
        #: Whether the run is known not to belong to a workflow.
        self._is_checked = False
        self._is_closed = False

    # Called by the SDK

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the conversation, or its latest `limit` items, oldest first. A negative limit means no limit, as
        in `SQLiteSession`."""
        self._check_open()
        return (await run_off_loop(self._read, self._resolve_limit(limit)))[1]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items to the conversation, as one version."""
        self._check_open()
        if new := _check_items(items):
            await run_off_loop(self._change, "add_items", lambda items: items.extend(new))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the latest item of the conversation; None if it is empty. The history keeps it."""
        return await self._pop_item_with_validation()

    @_in_thread
    def clear_session(self) -> None:
        """Empty the conversation. The history keeps its items."""
        self._remove("clear_session", lambda items: items.clear())

    def close(self) -> None:
        """Close the session: later calls raise `SessionClosed`. Calls that have started are completed. The store
        stays open; the application closes it."""
        self._is_closed = True

    # Called by `OpenAIResponsesCompactionSession` and `EncryptedSession`, which look for these names

    @_in_thread
    def _pop_item_with_validation(
        self, validate: Callable[[TResponseInputItem], None] | None = None
    ) -> TResponseInputItem | None:
        """Remove and return the latest item, unless `validate` raises an exception for it."""

        def pop(items: Any) -> TResponseInputItem:
            item = _plain(items.pop())
            if validate is not None:
                validate(item)
            return item

        return self._remove("pop_item", pop)

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[TResponseInputItem], bool] | None = None
    ) -> _CompactionSnapshot | None:
        """Return the latest `limit` items and the function that replaces their end, and removes the items at
        the start of the conversation that `prune_prefix` is true for. None if a subclass changes items."""
        self._check_open()
        if not self._stores_items_as_given():
            return None
        head, items = await run_off_loop(self._head_items)
        hidden = max(0, len(items) - limit)

        async def replace_suffix(start: int, output: list[TResponseInputItem]) -> bool:
            self._check_open()
            first = hidden + start
            return first < len(items) and await run_off_loop(replace, first, output)

        def replace(first: int, output: list[TResponseInputItem]) -> bool:
            pruned = 0
            if prune_prefix is not None:
                kept = (_plain(items[index]) for index in range(first))
                pruned = sum(1 for _ in takewhile(prune_prefix, kept))

            def change(items: Any) -> None:
                items[first:] = output
                if pruned:
                    del items[:pruned]

            try:
                self._change("compact", change, expected=head)
            except StaleVersion:
                return False
            return True

        shown = await run_off_loop(lambda: [_plain(item) for item in items[hidden:]])
        return _CompactionSnapshot(shown, hidden == 0, replace_suffix)

    @property
    def _read_compaction_items(self) -> Callable[[int | None], Awaitable[tuple[list[Any], bool]]] | None:
        """The function that reads the items for a compaction; None if a subclass changes items."""
        return self._read_to_compact if self._stores_items_as_given() else None

    async def _read_to_compact(self, limit: int | None) -> tuple[list[TResponseInputItem], bool]:
        """Return items as `get_items` does, and whether these are known to be all."""
        self._check_open()
        head, items = await run_off_loop(self._read, self._resolve_limit(limit))
        _compacting.set((self, head))
        return items, limit is not None and len(items) < limit

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace the items of the version that `_read_to_compact` has read, also those beyond its limit, or all
        if it was not called; items that were appended since then follow. Return False if a subclass changes
        items."""
        self._check_open()
        if not self._stores_items_as_given():
            return False
        session, head = _compacting.get() or (None, None)
        _compacting.set(None)
        await run_off_loop(self._replace, head if session is self else None, items)
        return True

    # Added by Holdfast

    @_in_thread
    def versions(self, *, limit: int = 100, before: int | None = None) -> list[Version]:
        """Return the versions of the conversation, newest first."""
        try:
            return self.history.versions(limit=limit, before=before)
        except NotFound:
            return []

    @_in_thread
    def rollback(
        self, to: int | str | Version, *, reason: str | None = None, actor: str | None = None
    ) -> Version:
        """Continue from an earlier version, on a new timeline. Nothing is deleted."""
        return self.history.rollback(to, reason=reason, actor=actor)

    @_in_thread
    def fork(
        self, session_id: str | None = None, *, at: int | str | Version = "head", note: str | None = None
    ) -> HoldfastSession:
        """Return a new conversation that starts as a copy of this one at a version; both are independent
        afterwards."""
        made = self._hf.fork(self.history.at(at), session_id, note=note)
        return HoldfastSession(made.id, self._hf, session_settings=self.session_settings)

    # Internals

    def _check_open(self) -> None:
        if self._is_closed:
            raise SessionClosed(
                f"{type(self).__name__} is closed: create another with session_id {self.session_id!r}",
                run=self.session_id,
            )

    def _check_run(self) -> None:
        if not self._is_checked:
            self._is_checked = check_not_workflow(self._hf, self.session_id)

    def _items(self, state: Any) -> Any:
        items = state.get("items") if isinstance(state, dict) else None
        if not isinstance(items, list):
            raise InvalidCall(
                f"run {self.session_id!r} is not a conversation: choose another session_id",
                run=self.session_id,
            )
        return items

    def _resolve_limit(self, limit: int | None) -> int | None:
        most = resolve_session_limit(limit, self.session_settings)
        if most is not None and type(most) is not int:
            raise InvalidCall(f"limit is a number of items, not {most!r:.60}")
        return most

    def _stores_items_as_given(self) -> bool:
        """Return False for a subclass with methods of its own for items, which a compaction must call."""
        names = ("get_items", "add_items", "pop_item", "clear_session")
        return all(getattr(type(self), name) is getattr(HoldfastSession, name) for name in names)

    def _head_items(self) -> tuple[Version | int, Any]:
        """Return the head and its items, frozen; 0 and none if there is no conversation yet."""
        self._check_run()
        try:
            head = self.history.head
        except NotFound:
            return 0, []
        return head, self._items(head.state)

    def _read(self, limit: int | None) -> tuple[Version | int, list[TResponseInputItem]]:
        head, items = self._head_items()
        start = 0 if limit is None or limit < 0 else max(0, len(items) - limit)
        return head, [_plain(item) for item in items[start:]]

    def _items_of(self, seen: Version | int) -> Any:
        """Return the items of a head that was read earlier; None if it was removed since. The run may have been
        created again, with another version of that number."""
        if not isinstance(seen, Version):
            return []
        try:
            found = self.history.at(seen)
            return self._items(found.state) if found.hash == seen.hash else None
        except NotFound:
            return None

    def _replace(self, seen: Version | int | None, output: list[TResponseInputItem]) -> None:
        """Replace the items of the head that was `seen`, or of the present one, by others."""
        while True:
            head, items = self._head_items()
            replaced = items
            if seen is not None and _hash_of(seen) != _hash_of(head):
                replaced = self._items_of(seen)
                if replaced is None or items[: len(replaced)] != replaced:
                    removed = "versions" if replaced is None else "items"
                    raise StaleVersion(
                        f"{removed} of conversation {self.session_id!r} were removed while it was compacted, so "
                        "it was left as it is: call run_compaction again",
                        run=self.session_id,
                        expected=_number_of(seen),
                        head=_number_of(head),
                    )
            change = partial(_replace_start, len(replaced), output)
            try:
                return self._change("compact", change, expected=head)
            except StaleVersion:
                continue

    def _remove(self, step: str, work: Callable[[Any], T]) -> T | None:
        """Commit a removal of items; return None, and commit nothing, if there are none."""
        while True:
            head, items = self._head_items()
            if not items:
                return None
            try:
                return self._change(step, work, expected=head)
            except StaleVersion:
                continue

    def _change(self, step: str, work: Callable[[Any], T], *, expected: Version | int | None = None) -> T:
        """Commit a change of the head's items; with `expected`, only if the head is that version."""
        head = self._head if expected is None else expected
        while True:
            self._check_run()
            edit = self.history.edit(step=step, expected=head)
            try:
                with adapter.use(_JSON_VALUES), edit as state:
                    if head == 0:
                        state["items"] = []
                    done = work(self._items(state))
            except StaleVersion as error:
                if expected is not None:
                    raise
                # Another writer committed meanwhile: apply the same change to the new head.
                head = error.details["head"]
                continue
            except UnsupportedValue as error:
                raise UnsupportedItem(str(error), **error.details) from None
            self._head = edit.number
            return done


if hasattr(SQLiteSession, "_pop_item_with_validation"):
    # `EncryptedSession` checks the key of an item before the item is removed only in a SQLiteSession with this
    # method, which calls `_pop_item_with_validation`. With a wrong key it would empty any other conversation.
    SQLiteSession.register(HoldfastSession)
    HoldfastSession.pop_item = SQLiteSession.pop_item  # type: ignore[method-assign,assignment]


def _check_items(items: Any) -> list[TResponseInputItem]:
    """Return a copy of a list of items, or raise `UnsupportedItem`."""
    if not isinstance(items, list | tuple):
        raise UnsupportedItem(f"add_items takes a list of items, each a dict, not {type_name(type(items))}")
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            advice = next(
                (f": add item.{call}" for name, call in _CONVERSIONS if callable(getattr(item, name, None))),
                "",
            )
            raise UnsupportedItem(
                f"add_items takes a list of items, each a dict; item {index} is of type "
                f"{type_name(type(item))}{advice}",
                path=f"items[{index}]",
            )
    return list(items)


def _plain(item: Any) -> TResponseInputItem:
    return cast("TResponseInputItem", thaw(item))


def _hash_of(head: Version | int) -> str:
    return head.hash if isinstance(head, Version) else ""


def _number_of(head: Version | int) -> int:
    return head.number if isinstance(head, Version) else head


def _replace_start(end: int, output: list[TResponseInputItem], items: Any) -> None:
    items[:end] = output
