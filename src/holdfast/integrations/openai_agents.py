"""Sessions of the OpenAI Agents SDK: a conversation is a run, each change of it a version.

Invariant: items of one `add_items` stay together and in order, also with concurrent writers; no item is
deleted: `pop_item` and `clear_session` are versions too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from holdfast import History, Holdfast, InvalidCall, NotFound, StaleVersion, Version, thaw
from holdfast.integrations import missing_extra
from holdfast.integrations.histories import check_not_workflow, check_store, off_loop, run_off_loop

try:
    from agents.memory import SessionSettings
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
except ModuleNotFoundError as error:
    raise missing_extra(__name__, "the OpenAI Agents SDK", error.name) from error

if TYPE_CHECKING:
    from agents import TResponseInputItem

T = TypeVar("T")


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

    # Called by the SDK

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the conversation, or its latest `limit` items, oldest first."""
        most = resolve_session_limit(limit, self.session_settings)
        if most is not None and (type(most) is not int or most < 0):
            raise InvalidCall(f"limit is a number of items, 0 or more, not {most!r:.60}")
        return await run_off_loop(self._read, most)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items to the conversation, as one version."""
        new = list(items) if isinstance(items, list | tuple) else None
        if new is None or not all(isinstance(item, dict) for item in new):
            raise InvalidCall("add_items takes a list of items, each a dict")
        if new:
            await run_off_loop(self._change, "add_items", lambda items: items.extend(new))

    @off_loop
    def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the latest item of the conversation; None if it is empty. The history keeps it."""
        if not self._read(1):
            return None
        return self._change("pop_item", lambda items: thaw(items.pop()) if items else None)

    @off_loop
    def clear_session(self) -> None:
        """Empty the conversation. The history keeps its items."""
        if self._read(1):
            self._change("clear_session", lambda items: items.clear())

    # Added by Holdfast

    @off_loop
    def versions(self, *, limit: int = 100, before: int | None = None) -> list[Version]:
        """Return the versions of the conversation, newest first."""
        try:
            return self.history.versions(limit=limit, before=before)
        except NotFound:
            return []

    @off_loop
    def rollback(
        self, to: int | str | Version, *, reason: str | None = None, actor: str | None = None
    ) -> Version:
        """Continue from an earlier version, on a new timeline. Nothing is deleted."""
        return self.history.rollback(to, reason=reason, actor=actor)

    @off_loop
    def fork(
        self, session_id: str | None = None, *, at: int | str | Version = "head", note: str | None = None
    ) -> HoldfastSession:
        """Return a new conversation that starts as a copy of this one at a version; both are independent
        afterwards."""
        made = self._hf.fork(self.history.at(at), session_id, note=note)
        return HoldfastSession(made.id, self._hf, session_settings=self.session_settings)

    # Internals

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

    def _read(self, limit: int | None) -> list[TResponseInputItem]:
        self._check_run()
        try:
            items = self._items(self.history.head.state)
        except NotFound:
            return []
        start = 0 if limit is None else max(0, len(items) - limit)
        return [cast("TResponseInputItem", thaw(item)) for item in items[start:]]

    def _change(self, step: str, work: Callable[[Any], T]) -> T:
        head = self._head
        while True:
            self._check_run()
            edit = self.history.edit(step=step, expected=head)
            try:
                with edit as state:
                    if not head:
                        state["items"] = []
                    done = work(self._items(state))
            except StaleVersion as error:
                # Another writer committed meanwhile: apply the same change to the new head.
                head = error.details["head"]
                continue
            self._head = edit.number
            return done
