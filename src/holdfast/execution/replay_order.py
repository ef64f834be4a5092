"""The order in which code gets the results of parallel steps: the order in which they were recorded.

Tasks get one result at a time, of steps that run as of steps that are replayed: the next one follows when the code that
got the last one, and all code that it has woken, waits for something else. So a replay shows the code what it saw
before, and `asyncio.as_completed`, `asyncio.wait`, queues and races end as they did. Threads of `parallel` get recorded
results in that order, too: the next one follows when the thread that got the last one makes its next call, ends its
branch, or had time to act.

A result is held back while an earlier one is expected. Code may wait for something else before it asks for that earlier
one, such as a lock that another branch holds: after `_PATIENCE` seconds its results are not expected any more, with a
warning. A call that does not fit the log is refused all the same.

Invariant: two recorded results are returned in the order of their versions, unless a warning names the earlier one.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from heapq import heappop, heappush
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from holdfast.event_loop import running_loop
from holdfast.log import warn

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from holdfast.execution.execution import Execution
    from holdfast.execution.frame import Frame
    from holdfast.execution.replay_log import RecordedStep

#: The place of a result in the order: its version and 0. A failure is recorded later than code gets it, and a result of
#: a replay that is under way may reach code before others that were recorded earlier: their place is the version that
#: code got before, and a number that grows.
Place = tuple[int, int]

#: Iterations of an event loop after which code has acted on a result, at most: fewer if nothing is left to run.
_ITERATIONS = 32
#: Seconds that a thread has, at first and at least, to act on its result before another thread gets the next one. It
#: may be blocked until then.
_GRACE = 0.25
_LEAST_GRACE = 0.005
#: Seconds for which results are held back while an earlier one is not requested, and seconds between checks of that.
_PATIENCE = 30.0
_LOOK = 1.0


class ResultTurn(msgspec.Struct, eq=False):
    """Effect: wait for the turn to return a result to code."""

    _order: ResultOrder
    place: Place
    #: Of a recorded call; None of one that is not.
    address: str | None = None
    #: Does nothing wait for it any more?
    is_gone: bool = False
    #: The future or thread that waits.
    waiter: Any = None
    must_finish: ClassVar[bool] = False

    def __lt__(self, other: ResultTurn) -> bool:
        return self.place < other.place

    def block(self) -> None:
        """Wait in this thread."""
        self._order.block(self)

    def wait(self) -> Awaitable[None]:
        """Wait in this task."""
        return self._order.wait(self)

    def end(self) -> None:
        """End the turn: the result is returned to the code."""
        self._order.end(self)

    def cancel(self) -> None:
        """Cancel the turn: there is no result to return."""
        self._order.cancel(self)


class AwaitReplay(msgspec.Struct, eq=False):
    """Effect: wait until no recorded result can be returned, before a call that is not recorded starts."""

    _order: ResultOrder
    must_finish: ClassVar[bool] = False

    def block(self) -> None:
        """Wait in this thread."""
        self._order.block_start()

    def wait(self) -> Awaitable[None]:
        """Wait in this task."""
        return self._order.wait_start()


class ResultOrder:
    """The results that one execution has still to return, in their order."""

    __slots__ = (
        "_at", "_execution", "_is_open", "_last", "_lock", "_moves", "_newest", "_order", "_sequence", "_waiting",
        "left", "running",
    )  # fmt: skip

    def __init__(self, execution: Execution, newest: int) -> None:
        """`newest` is the last version that was recorded before this execution."""
        self._execution = execution
        #: Entered again if a signal handler ends the execution.
        self._lock = threading.RLock()
        self._newest = newest
        #: How many tasks, or blocks of threads, run in parallel.
        self.running = 0
        #: The recorded results that were not returned yet: places by address, and all in order.
        self.left: dict[str, Place] = {}
        self._order: list[tuple[Place, str]] = []
        self._at = 0
        #: Results that are held back: a heap.
        self._waiting: list[ResultTurn] = []
        self._is_open = False
        #: The version in the place of the result that was returned last, and the number of the last other place.
        self._last = newest
        self._sequence = newest
        #: How many recorded results were requested or returned.
        self._moves = 0
        self._expect()

    # From the code that runs

    def turn_at(self, entry: RecordedStep) -> ResultTurn | None:
        """Return the turn that a recorded result must wait for; None if it may be returned at once."""
        address = entry.address
        place = (
            place_of(entry) if self.running and entry.number <= self._newest and not self._is_open else None
        )
        if place is not None:
            return ResultTurn(self, place, address)
        self.drop(address)
        return None

    def reserve(self) -> ResultTurn | None:
        """Return the turn of a result that is about to be recorded, if recorded results are left: it comes before them,
        as their code may wait for it."""
        return self._reserve() if self.left and self.running else None

    def _reserve(self) -> ResultTurn:
        with self._lock:
            turn = ResultTurn(self, self._new_place())
            heappush(self._waiting, turn)
        return turn

    def turn_after(self, number: int) -> ResultTurn | None:
        """Return the turn that the result of a version that was written must wait for, if it must."""
        return None

    def turn_of_failure(self) -> ResultTurn | None:
        """Return the turn that the failure of a step must wait for, if it must."""
        return None

    @property
    def is_replaying(self) -> bool:
        """Return whether recorded results are still to be returned to code that runs in parallel."""
        return bool(self.left)

    def add_task(self, task: Any) -> None:
        """Note a task that was started in the run."""

    def start_threads(self) -> None:
        """Note that threads are started in the run."""

    def end_threads(self) -> None:
        """Note that threads have ended."""

    def leave(self, frame: Frame) -> None:
        """Drop the calls that the code of a frame, which has ended, has not made."""
        calls = frame.expected
        if self.left and calls is not None and (calls.left or calls.branches > frame.tasks):
            with self._lock:
                self._forget(f"{frame.address}/")
                self._advance()

    def drop(self, address: str) -> None:
        """Stop waiting for a recorded result: it is returned out of turn, or its call is never made."""
        if address in self.left:
            with self._lock:
                self.left.pop(address, None)
                self._advance()

    def open(self) -> None:
        """Hold nothing back any more."""
        with self._lock:
            self._is_open = True
            self.left.clear()
            self._advance()

    def block(self, turn: ResultTurn) -> None:
        """Wait for a turn in this thread. Where tasks run in parallel, threads are not ordered: they may block the
        event loop, or the pool of threads, that an earlier result needs."""
        self.cancel(turn)

    async def wait(self, turn: ResultTurn) -> None:
        """Wait for a turn in this task. Where threads run in parallel, tasks are not ordered."""
        self.cancel(turn)

    def cancel(self, turn: ResultTurn) -> None:
        """Cancel a turn that nothing waits for any more."""
        with self._lock:
            turn.is_gone = True
            if turn.address is not None:
                self.left.pop(turn.address, None)
            self._advance()

    def end(self, turn: ResultTurn) -> None:
        """End the turn of a result that is returned to the code."""

    def block_start(self) -> None:
        """Wait in this thread until no recorded result can be returned."""

    async def wait_start(self) -> None:
        """Wait in this task until no recorded result can be returned."""

    # With the lock held

    def _expect(self) -> None:
        """Collect the recorded results that are left to return."""
        returned = set(self._execution.returned)
        for entry in self._execution.replay_log.to_return():
            place = place_of(entry) if entry.number <= self._newest else None
            if place is not None:
                self._sequence = max(self._sequence, place[1])
                if entry.address not in returned:
                    self._order.append((place, entry.address))
        if self._order:
            self._order.sort()
            self.left = {address: place for place, address in self._order}
            self._last = self._order[0][0][0] - 1

    def _first(self) -> Place | None:
        """Return the place of the first recorded result that was not returned yet."""
        while self._at < len(self._order):
            place, address = self._order[self._at]
            if self.left.get(address) == place:
                return place
            self._at += 1
        return None

    def _new_place(self) -> Place:
        """Return a place after that of the last result that was returned."""
        self._sequence += 1
        return (self._last, self._sequence)

    def _push(self, turn: ResultTurn) -> None:
        """Let a turn wait, and give it at once if it comes next."""
        if turn.address is not None:
            self._moves += 1
        if turn.address is not None or not turn.place[1]:
            heappush(self._waiting, turn)
        self._advance()

    def _advance(self) -> None:
        """Give the next turns."""
        while self._waiting:
            turn = self._waiting[0]
            if not turn.is_gone:
                if self._is_early(turn):
                    break
                if turn.waiter is None or not self._give(turn):
                    return
                self._last = max(self._last, turn.place[0])
                if turn.address is not None:
                    self.left.pop(turn.address, None)
                self._moves += 1
            heappop(self._waiting)
        self._let_start()

    def _is_early(self, turn: ResultTurn) -> bool:
        """Return whether a recorded result is expected before a turn."""
        first = self._first() if self.running else None
        return first is not None and first < turn.place

    def _give(self, turn: ResultTurn) -> bool:
        """Give the turn to return a result; False if the code must act on the last one first."""
        return True

    def _let_start(self) -> None:
        """Let calls that are not recorded start: no recorded result can be returned."""

    def _forget(self, within: str) -> None:
        """Do not expect results of calls that were not made at addresses with this prefix."""
        frames = self._execution.replay.frames
        for address in list(self.left):
            if address.startswith(within):
                calls = frames.get(_frame_of(address))
                if calls is None or address in calls.left:
                    del self.left[address]

    def _wait_no_longer(self) -> None:
        """Do not expect the results that the first turn waits for, nor others of the same frames."""
        turn = min(each for each in self._waiting if not each.is_gone)
        late = [(place, address) for place, address in self._order[self._at :] if address in self.left]
        late = [(place, address) for place, address in late if place < turn.place]
        if not late:
            return
        frames = {_frame_of(address) for _, address in late}
        asked = {each.address for each in self._waiting}
        for address in list(self.left):
            if _frame_of(address) in frames and address not in asked:
                del self.left[address]
        (number, _), address = late[0]
        warn(
            "replay of run %r: %r (version %d) has not been called for %g s, perhaps because the code before it waits "
            "for another branch: results that were recorded after it are returned before it now",
            self._execution.id,
            address,
            number,
            _PATIENCE,
        )
        self._advance()


class TaskOrder(ResultOrder):
    """The order of results in a workflow whose tasks run in parallel, in one event loop."""

    __slots__ = ("_holder", "_iterations", "_known", "_looks", "_loop", "_replays", "_starts")

    def __init__(self, execution: Execution, newest: int) -> None:
        super().__init__(execution, newest)
        self._loop: Any = None
        #: The turn whose result is being returned, and how many iterations are left for the code to act on the last.
        self._holder: ResultTurn | None = None
        self._iterations = 0
        #: Are recorded results left, or being acted on?
        self._replays = True
        #: Calls that are not recorded and wait to start.
        self._starts: list[Any] = []
        #: How often it was looked whether anything moves since something did; -1 if nothing waits.
        self._looks = -1
        self._known = 0

    @property
    def is_replaying(self) -> bool:
        return self._replays and self.running > 0

    def turn_after(self, number: int) -> ResultTurn | None:
        return ResultTurn(self, (number, 0)) if self.running and not self._is_open else None

    def turn_of_failure(self) -> ResultTurn | None:
        return self._reserve() if self.running and not self._is_open else None

    def add_task(self, task: Any) -> None:
        with self._lock:
            if self._loop is None:
                self._loop = running_loop()
            if not self._is_here():
                return
            self.running += 1
            if self.running == 1:
                self._settle()
        task.add_done_callback(self._end_task)

    def _end_task(self, _: Any) -> None:
        with self._lock:
            self.running -= 1
            self._advance()

    def _is_here(self) -> bool:
        """Return whether the event loop of the workflow's tasks runs this code, and not one in another thread."""
        return running_loop() is self._loop

    async def wait(self, turn: ResultTurn) -> None:
        if not self._is_here():
            self.cancel(turn)
            return
        turn.waiter = self._loop.create_future()
        with self._lock:
            self._push(turn)
            if not turn.waiter.done() and self._looks < 0:
                self._looks = 0
                self._loop.call_later(_LOOK, self._look)
        try:
            await turn.waiter
        except BaseException:
            self.cancel(turn)
            self.end(turn)
            raise

    def end(self, turn: ResultTurn) -> None:
        with self._lock:
            if self._holder is turn:
                self._holder = None
                self._settle()

    async def wait_start(self) -> None:
        if not self._is_here():
            return
        waiter = self._loop.create_future()
        with self._lock:
            self._starts.append(waiter)
            if self._holder is None:
                # Tasks that were started before it have their turn first.
                self._settle()
        await waiter

    def _give(self, turn: ResultTurn) -> bool:
        if self.running and not self._is_open:
            if self._holder is not None or self._iterations:
                return False
            self._holder = turn
        self._wake(turn.waiter)
        return True

    def _let_start(self) -> None:
        if self._holder is None and not self._iterations:
            self._replays = self._replays and bool(self.left)
            starts, self._starts = self._starts, []
            for waiter in starts:
                self._wake(waiter)

    def _wake(self, waiter: Any) -> None:
        if self._is_here():
            _end(waiter)
            return
        # A closed loop has no task that waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_end, waiter)

    def _settle(self) -> None:
        """Let the code act on what it got before anything else is returned to it."""
        if not self._iterations:
            self._loop.call_soon(self._iterate)
        self._iterations = _ITERATIONS

    def _iterate(self) -> None:
        """Count an iteration of the event loop."""
        with self._lock:
            self._iterations -= 1
            if self._iterations and _is_busy(self._loop):
                self._loop.call_soon(self._iterate)
                return
            self._iterations = 0
            self._advance()

    def _look(self) -> None:
        """Stop waiting for a result that was not requested for `_PATIENCE` seconds. Counts its own calls: an event loop
        that was stopped or blocked has not waited."""
        with self._lock:
            if not any(not turn.is_gone for turn in self._waiting):
                self._looks = -1
                return
            self._looks = self._looks + 1 if self._known == self._moves else 1
            self._known = self._moves
            if self._looks * _LOOK >= _PATIENCE and self._holder is None and not self._iterations:
                self._wait_no_longer()
                self._looks = 0
            self._loop.call_later(_LOOK, self._look)


class ThreadOrder(ResultOrder):
    """The order of recorded results in a workflow whose threads, those of `parallel`, run in parallel."""

    __slots__ = ("_grace", "_known", "_owner", "_since", "_starts")

    def __init__(self, execution: Execution, newest: int) -> None:
        super().__init__(execution, newest)
        #: The thread that got the last result and has not acted on it yet; 0 if there is none.
        self._owner = 0
        self._grace = _GRACE
        #: Threads whose calls are not recorded and wait to start.
        self._starts: list[_BlockedThread] = []
        #: How many moves there were, and when, when that was looked at last.
        self._known = -1
        self._since = 0.0

    def turn_at(self, entry: RecordedStep) -> ResultTurn | None:
        self._act()
        return super().turn_at(entry)

    def start_threads(self) -> None:
        self._act()
        with self._lock:
            self.running += 1

    def end_threads(self) -> None:
        with self._lock:
            self.running -= 1
            self._advance()

    def leave(self, frame: Frame) -> None:
        self._act()
        super().leave(frame)

    def _act(self) -> None:
        """Note that this thread acts on its result: it makes a call, or ends its branch."""
        if self._owner == get_ident():
            with self._lock:
                self._owner = 0
                self._advance()

    def block(self, turn: ResultTurn) -> None:
        thread = turn.waiter = _BlockedThread(self._lock)
        try:
            with self._lock:
                self._push(turn)
                while not thread.is_released:
                    is_next = self._is_next(turn)
                    if thread.condition.wait(self._grace if is_next else _LOOK):
                        continue
                    if is_next and self._is_next(turn):
                        # The owner may be blocked until this thread continues.
                        self._grace = max(self._grace / 2, _LEAST_GRACE)
                        self._owner = 0
                        self._advance()
                    elif self._is_stuck():
                        self._wait_no_longer()
        finally:
            if not thread.is_released:
                self.cancel(turn)

    def block_start(self) -> None:
        self._act()
        thread = _BlockedThread(self._lock)
        with self._lock:
            self._starts.append(thread)
            self._advance()
            while not thread.is_released and thread.condition.wait(self._grace):
                pass  # Others got their results.
            if not thread.is_released:
                self._starts.remove(thread)

    def _is_next(self, turn: ResultTurn) -> bool:
        """Return whether a turn is given as soon as the owner of the last one has acted."""
        waiting = min((each for each in self._waiting if not each.is_gone), default=None)
        return waiting is turn and not self._is_early(turn)

    def _give(self, turn: ResultTurn) -> bool:
        thread: _BlockedThread = turn.waiter
        if turn.address is not None and self.running and not self._is_open:
            if self._owner not in (0, thread.me):
                thread.condition.notify()
                return False
            self._owner = thread.me
        thread.release()
        return True

    def _let_start(self) -> None:
        starts, self._starts = self._starts, []
        for thread in starts:
            thread.release()

    def _is_stuck(self) -> bool:
        """Return whether no recorded result was requested or returned for long."""
        now = time.monotonic()
        if self._known != self._moves:
            self._known, self._since = self._moves, now
        return now - self._since > _PATIENCE


class _BlockedThread:
    """A thread that waits."""

    __slots__ = ("condition", "is_released", "me")

    def __init__(self, lock: threading.RLock) -> None:
        self.me = get_ident()
        self.condition = threading.Condition(lock)
        self.is_released = False

    def release(self) -> None:
        """Let it continue."""
        self.is_released = True
        self.condition.notify()


def place_of(entry: RecordedStep) -> Place | None:
    """Return the place of a recorded call in the order; None if it has none."""
    if "call" not in entry.detail:
        return None
    after = entry.detail.get("after")
    if after is None:
        return None if entry.failed else (entry.number, 0)
    # Runs that were forked count the versions before that otherwise.
    return (after[0] + entry.number - entry.version.number, after[1])


def _frame_of(address: str) -> str:
    return address.rpartition("/")[0]


def _is_busy(loop: Any) -> bool:
    """Return whether an event loop has anything left to run. Assumed of loops that do not say, such as uvloop."""
    return bool(getattr(loop, "_ready", True))


def _end(future: Any) -> None:
    if not future.done():
        future.set_result(None)
