"""The position of code in a run: its frame, and the addresses of its calls.

A frame is entered for the workflow's function, for each attempt at a step, and for each branch of what runs in
parallel. It counts the calls made in it, so that the same code, run again, gives every call the same address.

Invariant: within a run no two calls of one execution have the same address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextvars import copy_context
from functools import cache
from hashlib import sha256
from itertools import count
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from holdfast.errors import HoldfastError, InvalidCall, MergeConflict
from holdfast.event_loop import running_task
from holdfast.execution.calls import AwaitableCall, current
from holdfast.execution.limits import add_figure, check_figures, is_sum
from holdfast.execution.state_view import BranchView, ViewedState
from holdfast.execution.stop_control import StopExecution
from holdfast.model.names import MAX_STEP
from holdfast.tree.codec import encode
from holdfast.tree.draft import draft, end_draft
from holdfast.tree.merge import merge

if TYPE_CHECKING:
    from holdfast.execution.execution import Execution
    from holdfast.execution.replay_cursor import ExpectedCalls, Path
    from holdfast.history.committer import Resolver
    from holdfast.history.reader import BaseState, Head

#: Characters of a key that an address shows.
_KEY = 80

_OVER = (
    "this attempt is over (it failed, or took too long and was abandoned): its further changes of the state are "
    "discarded"
)


class Frame(msgspec.Struct, eq=False):
    """A workflow's function, an attempt at a step, or a branch of one of them."""

    execution: Execution
    address: str
    #: The state that its branch sees.
    view: BranchView
    #: The recorded calls that a replay must make in it; None if there are none.
    expected: ExpectedCalls | None = None
    asynchronous: bool = False
    #: The number of the attempt at its step; 0 if it is not an attempt.
    attempt: int = 0
    #: Of a branch: the attempt that it is in; None in the workflow's own function.
    outer: Frame | None = None
    #: Of an attempt: the attempt in which its step was called.
    caller: Frame | None = None
    #: The index of its call within its frame, after those of the calls around it; None if their order is not known.
    path: Path | None = ()
    #: The start of the attempt and its last sign of life; the seconds that it may give none, and that it may take.
    began: int = 0
    beat: int = 0
    heartbeat_timeout: float | None = None
    timeout: float | None = None
    #: The base of the attempt's draft, and the draft, once it was requested.
    base: Head | BaseState | None = None
    held: Any = None
    #: Resolves conflicts of the draft with concurrent changes.
    resolve: Resolver | None = None
    #: The state with the changes of steps that it called; None if there are none.
    newer: Head | ViewedState | BranchView | None = None
    notes: dict[str, Any] | None = None
    #: What the steps that it called, and attempts at its step that failed, have spent.
    spent: dict[str, Any] | None = None
    over: bool = False
    #: The asyncio task and the thread in which it runs.
    home: Any = None
    thread: int = 0
    #: How many calls, and how many tasks, were made in it.
    calls: int = 0
    tasks: int = 0
    _counts: dict[str, Iterator[int]] = {}
    _branches: WeakKeyDictionary[Any, Frame] | None = None
    #: How often older names of steps were used; branches of tasks in which something is recorded.
    _aliased: dict[str, int] | None = None
    _opened: list[Frame] | None = None

    @classmethod
    def enter(
        cls,
        execution: Execution,
        address: str = "",
        *,
        asynchronous: bool = False,
        attempt: int = 0,
        outer: Frame | None = None,
        view: BranchView | None = None,
    ) -> Frame:
        """Return a frame at an address, which expects the calls that are recorded there."""
        expected = execution.replay.frames.get(address)
        return cls(execution, address, view or execution.state.main, expected, asynchronous, attempt, outer)

    @property
    def owner(self) -> Frame | None:
        """The attempt that this is, or is a branch of; None in the workflow's own function."""
        return self if self.attempt else self.outer

    def report_alive(self, now: int) -> None:
        """Note a sign of life of the attempt that this is, or is in, and of those around it."""
        attempt = self if self.attempt else self.outer
        while attempt is not None:
            attempt.beat = now
            attempt = attempt.caller

    def place(self, name: str, key: Any = None) -> str:
        """Return the address of the next call of this name."""
        owner = self if self.attempt else self.outer
        if owner is not None:
            owner.refuse_if_over()
        local = name if key is None else f"{name}[{_key_text(key)}]"
        number = next(self._counts.get(local) or self._counts.setdefault(local, count(1)))
        if number > 1:
            local = f"{local}#{number}"
        address = f"{self.address}/{local}" if self.address else local
        if len(address) > MAX_STEP:
            raise InvalidCall(
                f"the address {address[:60]}… is too long: nest steps less deeply, or shorten names"
            )
        return address

    def call(self, name: str, key: Any = None, aliases: Sequence[str] = ()) -> str:
        """Return the address of the next call of this name; end the execution if another is recorded in its place."""
        address = self.place(name, key)
        if aliases:
            address = self._known_as(address, key, aliases)
        execution = self.execution
        expected = self.expected
        is_next = expected is not None and expected.is_next(address)
        if is_next and address in execution.replay_log.steps:
            self.calls += 1
            return address
        if self.path is None or (self.home is None and self.thread not in (0, get_ident())):
            # In a thread of the application: the order of such calls differs from run to run.
            return address
        index = self.calls
        self.calls = index + 1
        execution.replay.paths[address] = (*self.path, index)
        if expected is not None and not is_next:
            execution.replay.expect(
                self, address, index, "" if key is None else f"{address.rpartition('[')[0]}["
            )
        return address

    def _known_as(self, address: str, key: Any, aliases: Sequence[str]) -> str:
        """Return the address of a call, with an older name of its step if it was recorded under that."""
        is_recorded = self.execution.replay.is_recorded
        if is_recorded(address):
            return address
        if self._aliased is None:
            self._aliased = {}
        found: dict[str, str] = {}
        for alias in aliases:
            local = alias if key is None else f"{alias}[{_key_text(key)}]"
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
        """End the execution if calls are recorded that the code of this frame has not made before it returned."""
        if self.expected is not None:
            self.execution.replay.refuse_leftover(self)

    def leave(self) -> None:
        """Note that the code of this frame has ended: it makes no further calls."""
        if self.execution.order is not None:
            self.execution.order.leave(self)

    def ended_branches(self) -> list[Frame]:
        """Return the branches of tasks that have returned since the last call, if something is recorded in them."""
        if not self._opened:
            return []
        done = [branch for branch in self._opened if has_ended(branch.home)]
        self._opened = [branch for branch in self._opened if not has_ended(branch.home)]
        return [branch for branch in done if error_of_task(branch.home) is None]

    def here(self) -> Frame:
        """Return this frame, or, in an asyncio task that was started in it, the branch of that task."""
        if self.home is None:
            return self
        task = running_task()
        if task is self.home or task is None:
            return self
        branch = None if self._branches is None else self._branches.get(task)
        return self._add_task(task) if branch is None else branch

    def _add_task(self, task: Any) -> Frame:
        """Return a new branch for a task that the task factory did not see."""
        branch = self.next_branch()
        self.bind(task, branch)
        return branch

    def bind(self, task: Any, branch: Frame) -> None:
        """Make a frame the branch of a task."""
        if self._branches is None:
            self._branches = WeakKeyDictionary()
        self._branches[task] = branch
        branch.home = task
        self.execution.in_parallel().add_task(task)
        if branch.expected is not None:
            if self._opened is None:
                self._opened = []
            self._opened.append(branch)
            task.add_done_callback(lambda _: branch.leave())

    def has_tasks(self) -> bool:
        """Return whether tasks that were started in this frame are still running."""
        return self._branches is not None and not all(task.done() for task in list(self._branches))

    def next_branch(self) -> Frame:
        """Return a branch for the next task that is started in this frame."""
        self.execution.failures.note_progress(self.address)
        # The counter gives concurrent threads different numbers.
        self.tasks = number = next(self._counts.get("") or self._counts.setdefault("", count(1)))
        return self.branch(f"[{number}]", self.path)

    def branch(self, name: str, path: Path | None) -> Frame:
        """Return a frame for code that runs in parallel. `path` is that of the call that it belongs to."""
        address = f"{self.address}/{name}" if self.address else name
        branch = Frame.enter(
            self.execution, address, asynchronous=self.asynchronous, outer=self.owner, view=self.view.branch()
        )
        branch.path = path
        return branch

    def join(self) -> None:
        """Let the code around this branch see its changes."""
        newer = self.view.join()
        if newer is not None and self.owner is not None:
            self.owner.newer = newer

    def driver(self) -> Frame:
        """Return the frame of the running task, whose code waits for a call made in this one."""
        if self.home is None:
            return self
        task = running_task()
        if task is self.home or task is None:
            return self
        frame = current.get()
        return self if frame is None else frame.here()

    def state(self) -> Any:
        """Return the state for the code in this frame: in a step a draft, else frozen."""
        owner = self if self.attempt else self.outer
        if owner is None:
            return self.execution.state.show(self.view)
        owner.refuse_if_over()
        if owner.held is None:
            if owner.newer is not None:
                owner.base = self.execution.state.as_base(owner.newer)
            assert owner.base is not None
            owner.held = draft(owner.base.root)
        elif owner.newer is not None:
            owner.rebase()
        owner.newer = None
        return owner.held

    def refuse_if_over(self) -> None:
        """Raise `InvalidCall` if this attempt, or one around it, is over."""
        attempt: Frame | None = self
        while attempt is not None:
            if attempt.over:
                raise InvalidCall(_OVER)
            attempt = attempt.caller

    def rebase(self) -> None:
        """Merge the changes of the steps that this one called into its draft."""
        assert self.base is not None
        assert self.newer is not None
        execution = self.execution
        head = execution.state.as_base(self.newer)
        folder = execution.state.folder()
        mine = folder.fold(self.held, self.base.root)
        end_draft(self.held)
        try:
            root = merge(
                self.base.root,
                mine,
                head.root,
                resolve=self.resolve,
                reducers=execution.state.reducers,
                fold=folder.fold,
            )
        except MergeConflict as error:
            raise execution.explain(error, self.base.number, self.address) from None
        self.base = head
        self.held = draft(root)
        self.newer = None

    def count(self, spent: Mapping[str, Any]) -> None:
        """Add to the spending within this attempt."""
        self.spent = add_spending(self.spent or {}, spent)

    def annotate(self, facts: dict[str, Any]) -> None:
        """Add annotations to the version that this attempt will record."""
        owner = self.owner
        if owner is None:
            raise InvalidCall("annotate belongs to a step: call it inside one")
        check_figures(facts)
        notes = owner.notes = owner.notes or {}
        for name, value in facts.items():
            known = notes.get(name)
            notes[name] = add_figure(known, value) if is_sum(name, value) and is_sum(name, known) else value


def add_spending(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums of cost, tokens and steps."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def number_tasks() -> None:
    """Have the event loop make tasks that are started in a frame branches of it."""
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
            # Set in the context of the task, which its threads inherit. Tasks are numbered in the order of their
            # creation, which does not depend on their speed.
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
            frame.here().bind(task, branch)
            if before is not None:
                task.add_done_callback(lambda _: branch.join())
        return task

    vars(make)["holdfast"] = True
    loop.set_task_factory(make)


def has_ended(task: Any) -> bool:
    """Return whether a task has ended, without joining its branch to the code that is running."""
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
    """Return the class of the tasks that are started in a run. Code that learns that a task has ended sees the changes
    of its steps from that point on, whenever the task ended."""
    import asyncio

    class BranchTask(asyncio.Task[Any]):
        joins: Frame | None = None
        #: The error in place of a `GeneratorExit`, once it was requested.
        _exit: RuntimeError | None = None

        def _join(self) -> None:
            if self.joins is not None and has_ended(self):
                self.joins.join()

        def _instead_of(self, error: GeneratorExit) -> RuntimeError:
            """Return the error for the code that awaits this task. asyncio throws the error of a task into that code,
            and Python closes a coroutine into which `GeneratorExit` is thrown; so, like `StopIteration`, it becomes
            the cause of a `RuntimeError`."""
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
            if isinstance(getattr(self, "_exception", None), StopExecution):
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


def _key_text(key: Any) -> str:
    """Return a key as part of an address: the same for the same data, in every process."""
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
