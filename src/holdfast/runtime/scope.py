"""Where in a run the code that is running stands: its frame, and the addresses of what it calls.

A frame is entered for the workflow's function, for each attempt at a step, and for each branch of what runs in
parallel. It counts the calls made in it, so that the same code, run again, gives every call the same address.

Invariant: within a run no two calls of one execution have the same address.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar, copy_context
from functools import cache
from hashlib import sha256
from itertools import count
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from holdfast.errors import HoldfastError, InvalidCall, MergeConflict
from holdfast.event_loop import running_task
from holdfast.model.names import MAX_STEP
from holdfast.runtime.awaitable import AwaitableCall
from holdfast.runtime.boundary import Halt
from holdfast.runtime.limits import check_figures, is_sum, plus
from holdfast.runtime.view import Seen, View, start_of
from holdfast.tree.codec import encode
from holdfast.tree.draft import draft, end_draft
from holdfast.tree.merge import merge

if TYPE_CHECKING:
    from holdfast.history.advance import Resolver
    from holdfast.history.reader import Head, Start
    from holdfast.runtime.expected import Calls, Path
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
        "_aliased", "_branches", "_counts", "_of", "_opened", "address", "asynchronous", "attempt", "base", "beat",
        "began", "calls", "expected", "held", "home", "newer", "notes", "over", "path", "resolve", "session", "silent",
        "spent", "tasks", "thread", "timeout", "view", "within",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        address: str = "",
        *,
        asynchronous: bool = False,
        attempt: int = 0,
        owner: Frame | None = None,
        view: View | None = None,
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
        self.base: Head | Start | None = None
        self.held: Any = None
        #: The state with what steps which it called have changed since; None if there are none.
        self.newer: Head | Seen | View | None = None
        #: What its line of execution sees of the state.
        self.view = session.main if view is None else view
        self.over = False
        #: The attempt in which this one was called.
        self.within: Frame | None = None
        self.notes: dict[str, Any] | None = None
        #: What the steps that it called, and attempts at its step that failed, have spent.
        self.spent: dict[str, Any] | None = None
        self.began = 0
        #: Its last sign of life, how long it may give none, and how long it may take; the thread that runs it.
        self.beat = 0
        self.silent: float | None = None
        self.timeout: float | None = None
        self.thread = 0
        #: Decides conflicts with what others changed meanwhile.
        self.resolve: Resolver | None = None
        #: How many calls, and how many tasks, were made in it; its own path (see `expected`), if its order is known.
        self.calls = 0
        self.tasks = 0
        self.path: Path | None = ()
        #: The recorded calls that a replay must make in it; None if there are none.
        frames = session.replay.frames
        self.expected: Calls | None = frames.get(address) if frames and attempt < 2 else None
        #: How often older names of steps were used; branches of tasks in which something is recorded.
        self._aliased: dict[str, int] | None = None
        self._opened: list[Frame] | None = None

    @property
    def owner(self) -> Frame | None:
        """The attempt that this is a branch of; itself for an attempt; None in the workflow's own function."""
        return self if self.attempt else self._of

    def sign(self, now: int) -> None:
        """The attempt that this is, or is in, is alive, and so are those around it."""
        attempt = self if self.attempt else self._of
        while attempt is not None:
            attempt.beat = now
            attempt = attempt.within

    def place(self, name: str, key: Any = None) -> str:
        """The address of the next call of this name."""
        owner = self if self.attempt else self._of
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

    def call(self, name: str, key: Any = None, aliases: Sequence[str] = ()) -> str:
        """The address of the next call of this name. Ends the execution if the record has another call in its place."""
        address = self.place(name, key)
        if aliases:
            address = self._known_as(address, key, aliases)
        session = self.session
        expected = self.expected
        is_next = expected is not None and expected.is_next(address)
        if is_next and address in session.record.steps:
            self.calls += 1
            return address
        if self.path is None or (self.home is None and self.thread not in (0, get_ident())):
            # In a thread of the application's own: the order of such calls is not the same each time.
            return address
        index = self.calls
        self.calls = index + 1
        session.replay.paths[address] = (*self.path, index)
        if expected is not None and not is_next:
            session.replay.expect(
                self, address, index, "" if key is None else f"{address.rpartition('[')[0]}["
            )
        return address

    def _known_as(self, address: str, key: Any, aliases: Sequence[str]) -> str:
        """The address under which a call was recorded, if that was under an older name of its step."""
        is_recorded = self.session.replay.is_recorded
        if is_recorded(address):
            return address
        if self._aliased is None:
            self._aliased = {}
        found: dict[str, str] = {}
        for alias in aliases:
            local = alias if key is None else f"{alias}[{_shown(key)}]"
            number = self._aliased.get(local, 0) + 1
            old = local if number == 1 else f"{local}#{number}"
            old = f"{self.address}/{old}" if self.address else old
            if is_recorded(old):
                found[old] = local
        if not found:
            return address
        first = self.expected.first if self.expected else None
        old = first if first in found else next(iter(found))
        self._aliased[found[old]] = self._aliased.get(found[old], 0) + 1
        return old

    def finish(self) -> None:
        """The code of this frame has returned. Ends the execution if calls are recorded that it has not made."""
        if self.expected is not None:
            self.session.replay.refuse_leftover(self)

    def leave(self) -> None:
        """The code of this frame has ended, one way or the other: it makes no further calls."""
        if self.session.order is not None:
            self.session.order.leave(self)

    def ended_branches(self) -> list[Frame]:
        """The branches of tasks that have returned since this was last asked, if they have something recorded."""
        if not self._opened:
            return []
        done = [branch for branch in self._opened if has_ended(branch.home)]
        self._opened = [branch for branch in self._opened if not has_ended(branch.home)]
        return [branch for branch in done if error_of_task(branch.home) is None]

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
        self.session.in_parallel().add_task(task)
        if branch.expected is not None:
            if self._opened is None:
                self._opened = []
            self._opened.append(branch)
            task.add_done_callback(lambda _: branch.leave())

    def has_tasks(self) -> bool:
        """Are tasks that were started in this frame still running?"""
        return self._branches is not None and not all(task.done() for task in list(self._branches))

    def next_branch(self) -> Frame:
        """A branch for the next task that is started in this frame."""
        self.session.failures.moved_on(self.address)
        self.tasks = number = self._next("")
        return self.branch(f"[{number}]", self.path)

    def _next(self, name: str) -> int:
        """The next number of a name; threads that count at once get different ones."""
        counter = self._counts.get(name)
        return next(self._counts.setdefault(name, count(1)) if counter is None else counter)

    def branch(self, name: str, path: Path | None) -> Frame:
        """A frame for a part that runs beside others. `path` is that of the call that it is a part of."""
        address = f"{self.address}/{name}" if self.address else name
        branch = Frame(
            self.session, address, asynchronous=self.asynchronous, owner=self.owner, view=self.view.branch()
        )
        branch.path = path
        return branch

    def join(self) -> None:
        """Let the line that this frame branched off from see what was changed in it."""
        newer = self.view.join()
        if newer is not None and self.owner is not None:
            self.owner.newer = newer

    def driver(self) -> Frame:
        """The frame whose code waits for what was called in this one: that of the task that is running."""
        if self.home is None:
            return self
        task = running_task()
        if task is self.home or task is None:
            return self
        frame = current.get()
        return self if frame is None else frame.here()

    def state(self) -> Any:
        """The state as the code in this frame may see it: in a step a draft, else frozen."""
        owner = self.owner
        if owner is None:
            return self.session.seen(self.view)
        owner.refuse_if_over()
        if owner.held is None:
            if owner.newer is not None:
                owner.base = start_of(self.session, owner.newer)
            assert owner.base is not None
            owner.held = draft(owner.base.root)
        elif owner.newer is not None:
            owner.rebase()
        owner.newer = None
        return owner.held

    def refuse_if_over(self) -> None:
        """Refuse what an attempt does that was given up, or that was called by one."""
        attempt: Frame | None = self
        while attempt is not None:
            if attempt.over:
                raise InvalidCall(_OVER)
            attempt = attempt.within

    def rebase(self) -> None:
        """Bring in what the steps that this one called have changed."""
        assert self.base is not None
        assert self.newer is not None
        session = self.session
        head = start_of(session, self.newer)
        folder = session.folder()
        mine = folder.fold(self.held, self.base.root)
        end_draft(self.held)
        try:
            root = merge(
                self.base.root,
                mine,
                head.root,
                resolve=self.resolve,
                reducers=session.reducers,
                fold=folder.fold,
            )
        except MergeConflict as error:
            raise session.explained(error, self.base.number, self.address) from None
        self.base = head
        self.held = draft(root)
        self.newer = None

    def count(self, spent: Mapping[str, Any]) -> None:
        """Add to what was spent within this attempt."""
        known = self.spent or {}
        self.spent = {name: known.get(name, 0) + spent.get(name, 0) for name in {**known, **spent}}

    def note(self, facts: dict[str, Any]) -> None:
        """Keep what shaped the behaviour of this attempt."""
        owner = self.owner
        if owner is None:
            raise InvalidCall("note belongs to a step: call it inside one")
        check_figures(facts)
        notes = owner.notes = owner.notes or {}
        for name, value in facts.items():
            known = notes.get(name)
            notes[name] = plus(known, value) if is_sum(name, value) and is_sum(name, known) else value


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
        if isinstance(coroutine, AwaitableCall):
            coroutine.hand_to_task()
        if frame is not None and frame.home is not None:
            # Known in the task's own context, which threads that it starts take over. Tasks are counted as they are
            # made, which is the same each time, however fast they are.
            branch = frame.here().next_branch()
            if how.get("context") is None:
                how["context"] = copy_context()
                how["context"].run(current.set, branch)
        if before is None and branch is not None:
            task: Any = _branch_task()(coroutine, loop=loop, **how)
            task.joins = branch
        elif before is None:
            task = asyncio.Task(coroutine, loop=loop, **how)
        else:
            task = before(loop, coroutine, **how)
        if branch is not None and frame is not None:
            frame.here().know(task, branch)
            if before is not None:
                task.add_done_callback(lambda _: branch.join())
        return task

    vars(make)["holdfast"] = True
    loop.set_task_factory(make)


def has_ended(task: Any) -> bool:
    """Has a task ended? Asked on behalf of the machine, which does not join it for the code that is running."""
    from asyncio import Task

    return Task.done(task) if isinstance(task, Task) else bool(task.done())


def error_of_task(task: Any) -> BaseException | None:
    """Return the error that a task has ended with, as its code raised it; None if it returned a value."""
    from asyncio import CancelledError, Task

    kind: Any = Task if isinstance(task, Task) else type(task)
    try:
        error: BaseException | None = kind.exception(task)
    except CancelledError as cancelled:
        return cancelled
    return error


@cache
def _branch_task() -> Any:
    """The class of the tasks that are started in a run. Code that learns that a task has ended sees, from then on, what
    steps in it have changed: at that point of the code, whenever the task ended."""
    import asyncio

    class BranchTask(asyncio.Task[Any]):
        joins: Frame | None = None
        #: The error in place of a `GeneratorExit`, once it was asked for.
        _exit: RuntimeError | None = None

        def _join(self) -> None:
            if self.joins is not None and has_ended(self):
                self.joins.join()

        def _instead_of(self, error: GeneratorExit) -> RuntimeError:
            """What is raised in the code that awaits this task. asyncio throws the error of a task into that code, and
            Python closes a coroutine into which `GeneratorExit` is thrown; so, as of `StopIteration`, it becomes the
            cause of a `RuntimeError`."""
            if self._exit is None:
                self._exit = RuntimeError("a task raised GeneratorExit")
                self._exit.__cause__ = error
            return self._exit

        def done(self) -> bool:
            self._join()
            return super().done()

        def cancelled(self) -> bool:
            self._join()
            return super().cancelled()

        def result(self) -> Any:
            self._join()
            try:
                return super().result()
            except GeneratorExit as error:
                raise self._instead_of(error) from error

        def exception(self, /) -> BaseException | None:
            self._join()
            error = super().exception()
            return self._instead_of(error) if isinstance(error, GeneratorExit) else error

        def __await__(self) -> Any:
            if not has_ended(self):
                try:
                    return (yield from super().__await__())
                finally:
                    self._join()
            return self.result()

        __iter__ = __await__

        def __del__(self) -> None:
            # The end of an execution is not an error that the code has failed to retrieve.
            if isinstance(getattr(self, "_exception", None), Halt):
                self._log_traceback = False
            super().__del__()

    return BranchTask


def refuse_in_loop(name: str, otherwise: str = "") -> None:
    """Raise `InvalidCall` if a method of `Holdfast` that may execute a workflow is called by a task of an event loop.

    A loop without a task is that of a library which hides it from its callers, as Playwright's synchronous API does.
    """
    if running_task() is not None:
        raise InvalidCall(
            f"hf.{name}(…) would block the event loop that runs here: await hf.a{name}(…){otherwise}"
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


#: Executions that are under way in this process, of whatever engine.
executing: set[Session] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=executing.clear)
#: The frame of the code that is running; None outside a run.
current: ContextVar[Frame | None] = ContextVar("holdfast.frame", default=None)
