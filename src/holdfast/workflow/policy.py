"""Policies: when a failed attempt is tried again, and when a step is not called any more.

`Retry` and `Breaker` belong to a step; callers wait and store. Errors of other packages are recognised by class names
and attributes: none of those packages is imported. The policy for stalled runs is in `model/watchdog.py`.

Invariant: nothing here reads a clock or a random number, and a question about an error never raises.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

import msgspec

from holdfast.errors import BadData, BreakerOpen, DecisionNeeded, InvalidCall, TryAgain
from holdfast.model.checks import check_integer, check_number, check_seconds, check_text
from holdfast.model.names import MAX_STEP, short

#: Which errors are tried again: of these classes, or those for which a function says so.
On = type[Exception] | tuple[type[Exception], ...] | Callable[[BaseException], bool] | Literal["transient"]

#: A delay that a server requests is respected up to this many seconds.
LONGEST_ASKED = 3600.0

_HEADERS = (("retry-after-ms", 0.001), ("Retry-After", 1.0), ("retry-after", 1.0))
_BACKOFFS = ("exponential", "constant", "fibonacci")
#: Trying again would do the same again.
_MISTAKES = (
    TypeError,
    NameError,
    AttributeError,
    SyntaxError,
    ImportError,
    AssertionError,
    NotImplementedError,
    RecursionError,
)
_PERMANENT = (*_MISTAKES, InvalidCall, DecisionNeeded, BadData)
#: Errors about a value: the same value causes them again. Some libraries derive errors that pass from `ValueError`.
_VALUES = (ValueError, LookupError, ArithmeticError)
_TRANSIENT_STATUS = frozenset((408, 425, 429, 500, 502, 503, 504, 529))
#: Of the statuses that blame the request, these may pass.
_MAY_PASS = frozenset((408, 409, 425, 429))
_ERRNOS = """EAGAIN EWOULDBLOCK EINTR EBUSY EPIPE ETIMEDOUT EMFILE ENFILE ENOBUFS ECONNABORTED ECONNREFUSED
    ECONNRESET ENOTCONN EHOSTDOWN EHOSTUNREACH ENETDOWN ENETRESET ENETUNREACH ESTALE"""
_TRANSIENT_ERRNO = frozenset(getattr(errno, name, None) for name in _ERRNOS.split()) - {None}
#: What AWS calls a request that came too often or too slowly, often with the HTTP status 400.
_AWS_NAMES = """Throttling ThrottlingException ThrottledException RequestThrottled RequestThrottledException SlowDown
    TooManyRequestsException ProvisionedThroughputExceededException RequestLimitExceeded BandwidthLimitExceeded
    PriorRequestNotComplete EC2ThrottledException RequestTimeout RequestTimeoutException"""
_AWS_CODES = frozenset(_AWS_NAMES.split())
#: Names that httpx, requests, urllib3, aiohttp, model clients and database drivers give to what may pass.
_NAMES = """Timeout TimeoutError TimeoutException APITimeoutError DeadlineExceeded PoolTimeout ConnectTimeout
    ReadTimeout WriteTimeout ConnectTimeoutError ReadTimeoutError ConnectionError APIConnectionError ConnectError
    NetworkError ReadError WriteError RemoteProtocolError ProtocolError NewConnectionError ClientConnectionError
    ServerDisconnectedError ConnectionClosedError EndpointConnectionError IncompleteRead ChunkedEncodingError
    RemoteDisconnected IncompleteReadError SSLEOFError TimeoutExpired gaierror RateLimitError TooManyRequests
    ServiceUnavailable ServiceUnavailableError
    InternalServerError OverloadedError DeadlockDetected DeadlockDetectedError SerializationFailure
    SerializationError"""
_TRANSIENT_NAMES = frozenset(_NAMES.split())
_DATABASES = ("psycopg", "psycopg2", "pymysql", "MySQLdb", "mysql")


class Retry(msgspec.Struct, frozen=True):
    """How often, when and for which errors a step is tried again."""

    #: Tries in all, the first one included.
    attempts: int = 3
    #: How delays grow: "exponential", "constant" or "fibonacci".
    backoff: str = "exponential"
    #: Seconds before the second attempt.
    delay: float = 0.5
    #: By how much an exponential delay grows each time.
    factor: float = 2.0
    #: The most seconds before any attempt, unless the server asked for more.
    max_delay: float = 60.0
    #: Share of the delay by which chance lengthens or shortens it.
    jitter: float = 0.1
    #: Seconds since the start of the first attempt after which no other starts.
    budget: float | None = None
    #: Which errors to try again after: a class, a tuple of them, a function of the error, or "transient" (timeouts,
    #: lost connections, busy servers). None: every error but mistakes in the program, errors about a value
    #: (`ValueError`, `LookupError`, `ArithmeticError`), and requests that a server refused for good. A model's output
    #: that could not be parsed is a `ValueError`: to ask the model again, use `on=(ValueError,)`. An exception group is
    #: tried again after if each of its errors is.
    on: On | None = None

    def __post_init__(self) -> None:
        check_integer("attempts", self.attempts, 1)
        if self.backoff not in _BACKOFFS:
            raise InvalidCall(f"backoff is one of {_BACKOFFS}, not {self.backoff!r}", field="backoff")
        check_seconds("delay", self.delay)
        check_number("factor", self.factor, least=1)
        check_seconds("max_delay", self.max_delay, least=self.delay)
        check_number("jitter", self.jitter, most=1)
        if self.budget is not None:
            check_seconds("budget", self.budget)
        _check_on(self.on)

    def delay_before(self, attempt: int, chance: float, asked: float | None = None) -> float:
        """Return the seconds to wait before `attempt` (2, 3, …), with `chance` in [0, 1) for the jitter; not fewer than
        the server `asked` for, even beyond `max_delay`."""
        if attempt < 2 or not 0 <= chance < 1:
            raise InvalidCall(f"a delay is before attempt 2 or later, not {attempt!r} by {chance!r}")
        spread = 1 + self.jitter * (2 * chance - 1)
        return float(max(min(self._steady(attempt - 2) * spread, self.max_delay), asked or 0.0))

    def wants(self, error: BaseException) -> bool:
        """Return whether to try again after an error, if attempts are left."""
        return _matches(self.on, error, "not tried again: Retry.on")

    def allows(self, spent: float, wait: float) -> bool:
        """Return whether a wait may start, `spent` seconds after the first attempt started."""
        return self.budget is None or spent + wait <= self.budget

    def next_delay(
        self, error: BaseException, attempt: int, spent: float, chance: Callable[[], float]
    ) -> float | None:
        """Return the seconds to wait after an attempt that failed, `spent` seconds after the first one started; None if
        no other is made."""
        if attempt >= self.attempts or not self.wants(error):
            return None
        delay = self.delay_before(attempt + 1, chance(), asked_delay(error))
        return delay if self.allows(spent, delay) else None

    def _steady(self, step: int) -> float:
        if self.backoff == "constant" or self.delay == 0:
            return self.delay
        if self.backoff == "exponential":
            with suppress(OverflowError):
                return min(self.delay * float(self.factor) ** step, self.max_delay)
            return self.max_delay
        this, following = self.delay, self.delay
        while step and this < self.max_delay:
            step, this, following = step - 1, following, this + following
        return min(this, self.max_delay)


def transient(error: BaseException) -> bool:
    """Return whether an error passes by itself: a timeout, a lost connection, a busy server. Also true of an error that
    was raised from such a one, unless it has an HTTP status of its own."""
    with suppress(Exception):
        own = _transient(error)
        return bool(_transient(error.__cause__) if own is None and error.__cause__ is not None else own)
    return False


def asked_delay(error: BaseException) -> float | None:
    """Return the seconds that the server asked to wait (`Retry-After` in seconds, `retry-after-ms`, `retry_after`);
    for a group of errors, the longest of them."""
    if issubclass(type(error), BaseExceptionGroup):
        return max((asked for asked in map(asked_delay, _leaves(error)) if asked is not None), default=None)
    response = _read(error, "response")
    for holder in (error, response):
        found = [(_read(holder, "retry_after"), 1.0)]
        with suppress(Exception):
            headers = _aws(response).get("HTTPHeaders") or _read(holder, "headers")
            found += [(headers.get(name), unit) for name, unit in _HEADERS]
        for value, unit in found:
            with suppress(Exception):
                seconds = float(value) * unit
                if seconds >= 0:
                    return min(seconds, LONGEST_ASKED)
    return None


class Breaker(msgspec.Struct, frozen=True):
    """A circuit breaker. After so many failures in a row it opens: calls of the step are refused for `reset` seconds.
    Then it is half open: one call at a time is let through, until enough of them have succeeded to close it."""

    #: Failures in a row that open it.
    failures: int = 5
    #: Seconds before one call is let through again.
    reset: float = 30.0
    #: Calls let through that must succeed, in a row, to close it.
    successes: int = 1
    #: Which errors count as failures; as for `Retry`. None: those that a `Retry` without `on` tries again after. Other
    #: errors, such as a refused request (HTTP 400, 401, 403, 404) or a mistake in the program, change nothing.
    on: On | None = None
    #: Its name; None for that of the step. Steps whose breakers have the same name share one.
    name: str | None = None

    def __post_init__(self) -> None:
        check_integer("failures", self.failures, 1)
        check_seconds("reset", self.reset)
        check_integer("successes", self.successes, 1)
        _check_on(self.on)
        if self.name is not None:
            check_breaker_name(self.name)

    def counts(self, error: BaseException) -> bool:
        """Return whether an error is a failure. The refusal of another breaker, also in a group, is not."""
        if all(issubclass(type(leaf), BreakerOpen) for leaf in _leaves(error)):
            return False
        return _matches(self.on, error, "not counted: Breaker.on")


class BreakerState(msgspec.Struct, frozen=True):
    """The state of a breaker: open `since` then, half open with a `probe` that started then (microseconds)."""

    status: Literal["closed", "open", "half_open"] = "closed"
    failures: int = 0
    since: int = 0
    #: When the call that was let through started; 0 if none is under way.
    probe: int = 0
    #: Calls let through that have succeeded in a row.
    passed: int = 0
    #: Microseconds that it stays open; 0 in a state that an older version wrote.
    reset: int = 0
    #: When the waiting run that came last is to try again.
    turn: int = 0
    #: The last error that counted, and the run whose call opened the breaker, or was let through last.
    error: str = ""
    run: str = ""


CLOSED = BreakerState()


def breaker_admits(policy: Breaker, state: BreakerState, now: int) -> tuple[bool, BreakerState]:
    """Return whether a call may start, and the state then; the same object where nothing is to be stored."""
    if state.status == "closed":
        return True, state
    # A probe that takes longer than that was made by a process that died. A moment far ahead of now was
    # written by a clock that was wrong.
    is_free = state.status == "half_open" and not state.probe
    began = state.since if state.status == "open" else state.probe
    if not is_free and abs(now - began) < (state.reset or _microseconds(policy)):
        return False, state
    passed = state.passed if state.status == "half_open" else 0
    return True, msgspec.structs.replace(state, status="half_open", probe=max(1, now), passed=passed)


def after_success(policy: Breaker, state: BreakerState, now: int, probe: int = 0) -> BreakerState:
    """Return the state after a call succeeded that was let through as this `probe`, 0 if the breaker was closed. A call
    that started before the breaker opened does not close it."""
    if state.status == "closed":
        return msgspec.structs.replace(CLOSED, since=state.since) if state.failures else state
    if not _is_probe(state, probe):
        return state
    if state.passed + 1 < policy.successes:
        left = 0 if probe == state.probe else state.probe
        return msgspec.structs.replace(state, probe=left, passed=state.passed + 1)
    return msgspec.structs.replace(CLOSED, since=now)


def after_failure(
    policy: Breaker, state: BreakerState, now: int, probe: int = 0, *, error: str = "", run: str = ""
) -> BreakerState:
    """Return the state after a call of a run failed. One that started before the breaker opened does not keep it
    open."""
    if state.status != "closed" and not _is_probe(state, probe):
        return state
    failures = state.failures + 1
    if state.status == "closed" and failures < policy.failures:
        return msgspec.structs.replace(state, failures=failures, error=error)
    return BreakerState(
        "open", failures, now, reset=_microseconds(policy), turn=state.turn, error=error, run=run
    )


def after_neither(state: BreakerState, probe: int) -> BreakerState:
    """Return the state after a call ended with an error that does not count: another may be let through."""
    if state.status != "half_open" or not probe or probe != state.probe:
        return state
    return msgspec.structs.replace(state, probe=0)


def _is_probe(state: BreakerState, probe: int) -> bool:
    """Return whether a call was let through since the breaker opened. It counts, too, if another was let through
    meanwhile: otherwise calls that take longer than the breaker stays open would never close it."""
    return state.status == "half_open" and probe != 0 and (probe == state.probe or probe >= state.since)


def breaker_retry_at(policy: Breaker | None, state: BreakerState, now: int) -> int | None:
    """Return when the next call is let through at the latest, unless one that is under way reopens the breaker; None if
    the breaker is closed, or that is not known."""
    reset = state.reset or (0 if policy is None else _microseconds(policy))
    if state.status == "closed" or not (reset or policy is not None):
        return None
    is_free = state.status == "half_open" and not state.probe
    began = state.since if state.status == "open" else state.probe
    return now if is_free or abs(now - began) >= reset else began + reset


def check_breaker_name(name: Any) -> str:
    """Return a valid name of a breaker."""
    if not check_text("the name of a breaker", name, MAX_STEP) or "\0" in name:
        raise InvalidCall(
            f"the name of a breaker is a text of 1 to {MAX_STEP} characters without NUL, not {short(name)}"
        )
    return str.__str__(name)


def _microseconds(policy: Breaker) -> int:
    return int(policy.reset * 1_000_000)


def _check_on(on: Any) -> None:
    classes = on if isinstance(on, tuple) else (on,)
    fits = all(isinstance(each, type) and issubclass(each, Exception) for each in classes)
    function = callable(on) and not isinstance(on, type)
    if not (fits or function or on in (None, "transient")):
        wanted = 'an Exception class, a tuple of them, a function or "transient"'
        raise InvalidCall(f"on is {wanted}, not {on!r}", field="on")


def _matches(on: On | None, error: BaseException, refused: str) -> bool:
    """Return whether `on` means an error; `refused` starts the note on the error if that raises."""
    leaves = list(_leaves(error))
    if any(issubclass(type(leaf), KeyboardInterrupt | SystemExit) for leaf in leaves):
        return False
    if on is None or on == "transient":
        # The tasks of a group are tried again together: one error that stays is enough not to.
        return all(_passes_by_default(leaf) if on is None else transient(leaf) for leaf in leaves)
    if isinstance(on, type | tuple):
        return issubclass(type(error), on) or all(issubclass(type(leaf), on) for leaf in leaves)
    try:
        return bool(on(error))
    except Exception as problem:
        with suppress(Exception):
            error.add_note(f"{refused} raised {problem!r}")
        return False


def _passes_by_default(error: BaseException) -> bool:
    """Return whether an error, not a group, is tried again after without `on`."""
    cls, status = type(error), _status(error) or 500
    if (status < 500 and status not in _MAY_PASS) or issubclass(cls, _PERMANENT):
        return False
    return not issubclass(cls, _VALUES) or _passes(error)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group and of the groups in it; of another error, itself."""
    left = [error]
    while left:
        one = left.pop()
        if issubclass(type(one), BaseExceptionGroup):
            left += BaseExceptionGroup.exceptions.__get__(one)
        else:
            yield one


def _passes(error: BaseException) -> bool:
    """Return whether an error itself, not its cause, says that it passes."""
    with suppress(Exception):
        return bool(_transient(error))
    return False


def _transient(error: BaseException) -> bool | None:
    """Return None if the error itself does not say."""
    status = _status(error)
    if status is not None:
        return status in _TRANSIENT_STATUS
    cls = type(error)
    by_number = issubclass(cls, OSError) and _read(error, "errno") in _TRANSIENT_ERRNO
    if by_number or issubclass(cls, TimeoutError | ConnectionError | TryAgain):
        return True
    for base in cls.__mro__:
        if base.__name__ in _TRANSIENT_NAMES:
            return True
        if base.__name__ == "URLError" and isinstance(reason := _read(error, "reason"), OSError):
            return _transient(reason)
        if base.__name__ == "OperationalError":
            root = base.__module__.partition(".")[0]
            return root in _DATABASES or (root == "sqlite3" and "locked" in str(error)) or None
    return None


def _status(error: BaseException) -> int | None:
    holders, names = (error, _read(error, "response")), ("status_code", "status", "code")
    for found in [_read(holder, name) for holder in holders for name in names]:
        with suppress(Exception):
            if isinstance(found, int) and 400 <= found < 600:
                return int(found)
    with suppress(Exception):
        response = holders[1]
        status = _aws(response).get("HTTPStatusCode")
        if isinstance(status, int) and 400 <= status < 600:
            return 429 if response.get("Error", {}).get("Code") in _AWS_CODES else int(status)
    return None


def _aws(response: Any) -> Mapping[str, Any]:
    """Return what boto3 says of an answer, in the dict that its errors have as `response`."""
    found = response.get("ResponseMetadata") if isinstance(response, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _read(holder: Any, name: str) -> Any:
    with suppress(Exception):
        return getattr(holder, name, None)
    return None
