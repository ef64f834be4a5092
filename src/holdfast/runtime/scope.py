"""Where in a run the code that is running stands: its frame, and the addresses of what it calls.

A frame is entered for the workflow's function, for each attempt at a step, and for each branch of what runs in
parallel. It counts the calls made in it, so that the same code, run again, gives every call the same address.

Invariant: within a run no two calls of one execution have the same address.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextvars import ContextVar, copy_context
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from holdfast.errors import HoldfastError, InvalidCall
from holdfast.model.names import MAX_STEP
from holdfast.tree.codec import encode
from holdfast.tree.draft import draft
from holdfast.tree.merge import merge

if TYPE_CHECKING:
    from holdfast.history.advance import Resolver
    from holdfast.history.reader import Head
    from holdfast.runtime.session import Session

#: Characters of a key that an address shows.
_KEY = 80

_OVER = (
    "this attempt is over (it failed, or took too long and was given up): what it still does to the state is "
    "not kept"
)


class Frame:
    """A workflow's function, an attempt at a step, or a branch of one of them."""

    __slots__ = (
        "_branches", "_counts", "_of", "address", "asynchronous", "attempt", "base", "beat", "began", "held", "home",
        "newer", "notes", "over", "resolve", "session", "silent", "thread", "timeout", "within",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        address: str = "",
        *,
        asynchronous: bool = False,
        attempt: int = 0,
        owner: Frame | None = None,
    ) -> None:
        self.session = session
        self.address = address
        self.asynchronous = asynchronous
        #: Which attempt at its step it is; 0 if it is none.
        self.attempt = attempt
        self._of = owner
        #: The asyncio task that it began in.
        self.home: Any = None
        self._counts: dict[str, Iterator[int]] = {}
        self._branches: WeakKeyDictionary[Any, Frame] | None = None
        #: What the attempt's draft began from, and the draft, once asked for.
        self.base: Head | None = None
        self.held: Any = None
        #: The version that brought what steps which it called have changed since; None if there is none.
        self.newer: Head | int | None = None
        self.over = False
        #: The attempt in which this one was called.
        self.within: Frame | None = None
        self.notes: dict[str, Any] | None = None
        self.began = 0
        #: Its last sign of life, how long it may give none, and how long it may take; the thread that runs it.
        self.beat = 0
        self.silent: float | None = None
        self.timeout: float | None = None
        self.thread = 0
        #: Decides conflicts with what others changed meanwhile.
        self.resolve: Resolver | None = None

    @property
    def owner(self) -> Frame | None:
        """The attempt that this is a branch of; itself for an attempt; None in the workflow's own function."""
        return self if self.attempt else self._of

    def sign(self, now: int) -> None:
        """The attempt that this is, or is in, is alive, and so are those around it."""
        attempt = self.owner
        while attempt is not None:
            attempt.beat = now
            attempt = attempt.within

    def place(self, name: str, key: Any = None) -> str:
        """The address of the next call of this name."""
        owner = self.owner
        if owner is not None:
            owner.refuse_if_over()
        local = name if key is None else f"{name}[{_shown(key)}]"
        number = self._next(local)
        if number > 1:
            local = f"{local}#{number}"
        address = f"{self.address}/{local}" if self.address else local
        if len(address) > MAX_STEP:
            raise InvalidCall(
                f"the address {address[:60]}… is too long: nest steps less deeply, or shorten names"
            )
        return address

    def here(self) -> Frame:
        """This frame, or, in an asyncio task that was started in it, the branch of that task."""
        if self.home is None:
            return self
        task = running_task()
        if task is self.home or task is None:
            return self
        branch = None if self._branches is None else self._branches.get(task)
        return self.expect(task) if branch is None else branch

    def expect(self, task: Any) -> Frame:
        """A task that nobody told of calls from this frame: it is a branch of it."""
        branch = self.next_branch()
        self.know(task, branch)
        return branch

    def know(self, task: Any, branch: Frame) -> None:
        """A task has its branch."""
        if self._branches is None:
            self._branches = WeakKeyDictionary()
        self._branches[task] = branch
        branch.home = task

    def next_branch(self) -> Frame:
        """A branch for the next task that is started in this frame."""
        self.session.failures.moved_on(self.address)
        return self.branch(f"[{self._next('')}]")

    def _next(self, name: str) -> int:
        """The next number of a name; threads that count at once get different ones."""
        counter = self._counts.get(name)
        return next(self._counts.setdefault(name, count(1)) if counter is None else counter)

    def branch(self, name: str) -> Frame:
        """A frame for a part that runs beside others."""
        address = f"{self.address}/{name}" if self.address else name
        return Frame(self.session, address, asynchronous=self.asynchronous, owner=self.owner)

    def state(self) -> Any:
        """The state as the code in this frame may see it: in a step a draft, else frozen."""
        owner = self.owner
        if owner is None:
            return self.session.seen()
        owner.refuse_if_over()
        newer = self.session.at(owner.newer) if isinstance(owner.newer, int) else owner.newer
        if owner.held is None:
            owner.base = newer or owner.base
            assert owner.base is not None
            owner.held = draft(owner.base.root)
        elif newer is not None:
            owner.rebase(newer)
        owner.newer = None
        return owner.held

    def refuse_if_over(self) -> None:
        """Refuse what an attempt does that was given up, or that was called by one."""
        attempt: Frame | None = self
        while attempt is not None:
            if attempt.over:
                raise InvalidCall(_OVER)
            attempt = attempt.within

    def rebase(self, head: Head) -> None:
        """Bring in what the steps that this one called have changed."""
        assert self.base is not None
        folder = self.session.folder()
        mine = folder.fold(self.held, self.base.root)
        root = merge(self.base.root, mine, head.root, resolve=self.resolve, fold=folder.fold)
        self.base = head
        self.held = draft(root)

    def note(self, facts: dict[str, Any]) -> None:
        """Keep what shaped the behaviour of this attempt."""
        owner = self.owner
        if owner is None:
            raise InvalidCall("note belongs to a step: call it inside one")
        notes = owner.notes = owner.notes or {}
        for name, value in facts.items():
            known = notes.get(name)
            notes[name] = known + value if is_sum(name, value) and is_sum(name, known) else value


def running_task() -> Any:
    """The asyncio task that is running; None where there is no event loop."""
    loop = running_loop()
    return None if loop is None else sys.modules["asyncio"].current_task(loop)


def number_tasks() -> None:
    """Have the event loop tell frames of the tasks that are started in them."""
    import asyncio

    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    if getattr(before, "holdfast", False):
        return

    def make(loop: Any, coroutine: Any, **how: Any) -> Any:
        frame = current.get()
        branch = None
        if frame is not None and frame.home is not None:
            # Known in the task's own context, which threads that it starts take over. Tasks are counted as they are
            # made, which is the same each time, however fast they are.
            branch = frame.here().next_branch()
            if how.get("context") is None:
                how["context"] = copy_context()
                how["context"].run(current.set, branch)
        task = asyncio.Task(coroutine, loop=loop, **how) if before is None else before(loop, coroutine, **how)
        if branch is not None and frame is not None:
            frame.here().know(task, branch)
        return task

    vars(make)["holdfast"] = True
    loop.set_task_factory(make)


def running_loop() -> Any:
    """The event loop that calls this code; None where there is none."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


def in_event_loop() -> bool:
    """Is this code called by an event loop?"""
    return running_loop() is not None


def is_sum(name: Any, value: Any) -> bool:
    """Is this a figure that adds up, as tokens and cost do?"""
    return (
        isinstance(name, str)
        and ("token" in name or "cost" in name)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    )


def _shown(key: Any) -> str:
    """A key as an address shows it: the same for the same data, in whatever process."""
    if isinstance(key, str):
        text = key
    else:
        try:
            encode(key)
        except HoldfastError:
            raise InvalidCall(
                f"a key names a call by its data: give a string, a number or another plain value, not {key!r:.60}"
            ) from None
        text = str(key)
    if len(text) > _KEY or any(sign in text for sign in "/#[]\n"):
        return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return text


#: The frame of the code that is running; None outside a run.
current: ContextVar[Frame | None] = ContextVar("holdfast.frame", default=None)
