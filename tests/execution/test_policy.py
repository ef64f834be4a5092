"""Policies of retries and circuit breakers: when to try again, how long to wait, when to stop calling."""

from __future__ import annotations

import asyncio
import errno
import http
import json
import math
import socket
import sqlite3
import ssl
import subprocess
import urllib.error
from email.message import Message
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import (
    BreakerOpen,
    CorruptVersion,
    HoldfastError,
    InvalidCall,
    MergeConflict,
    NotFound,
    StaleVersion,
)
from holdfast.workflow.policy import (
    CLOSED,
    LONGEST_ASKED,
    Breaker,
    BreakerState,
    Retry,
    after_failure,
    after_neither,
    after_success,
    asked_delay,
    breaker_admits,
    breaker_retry_at,
    transient,
)

SECOND = 1_000_000


class Answer:
    def __init__(self, status_code: Any = None, headers: Any = None) -> None:
        self.status_code = status_code
        self.headers = headers


class HttpError(Exception):
    def __init__(self, **attributes: Any) -> None:
        super().__init__("http")
        vars(self).update(attributes)


class Hostile(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError


class OddNumber(int):
    def __le__(self, other: Any) -> bool:
        raise RuntimeError

    __ge__ = __lt__ = __gt__ = __eq__ = __hash__ = __float__ = __le__  # type: ignore[assignment]


def named(name: str, module: str = "somewhere", base: type[Exception] = Exception) -> Exception:
    made: Exception = type(name, (base,), {"__module__": module})("text")
    return made


def aws_error(code: str, status: int) -> HttpError:
    """Return an error as boto3 raises it."""
    facts = {"HTTPStatusCode": status, "HTTPHeaders": {"retry-after": "7"}}
    return HttpError(response={"Error": {"Code": code, "Message": ""}, "ResponseMetadata": facts})


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(),
        BrokenPipeError(),
        OSError(errno.EHOSTUNREACH, "no route"),
        socket.gaierror(-3, "try again"),
        sqlite3.OperationalError("database is locked"),
        StaleVersion(),
        named("ReadTimeout", "httpx"),
        type("Mine", (type(named("ConnectError", "httpx")),), {})(),
        named("OperationalError", "psycopg"),
        named("DeadlockDetected", "psycopg.errors", type(named("OperationalError", "psycopg"))),
        urllib.error.HTTPError("u", 503, "busy", Message(), None),
        *(HttpError(status_code=status) for status in (408, 425, 429, 500, 502, 503, 504, 529)),
        HttpError(status=429),
        HttpError(code=http.HTTPStatus.SERVICE_UNAVAILABLE),
        HttpError(response=Answer(502)),
        aws_error("ServiceUnavailable", 503),
        aws_error("ThrottlingException", 429),
        aws_error("ThrottlingException", 400),
        urllib.error.URLError(ConnectionRefusedError(errno.ECONNREFUSED, "refused")),
        urllib.error.URLError(socket.gaierror(-2, "unknown")),
        urllib.error.URLError(TimeoutError()),
        subprocess.TimeoutExpired("tool", 1),
        asyncio.IncompleteReadError(b"", 1),
        ssl.SSLEOFError(),
    ],
    ids=lambda error: f"{type(error).__name__} {error}",
)
def test_error_is_transient(error: Exception) -> None:
    assert transient(error)
    assert Retry(on="transient").wants(error)
    assert Retry().wants(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("flaky"),
        ValueError(),
        FileNotFoundError(errno.ENOENT, "no"),
        PermissionError(errno.EACCES, "no"),
        sqlite3.OperationalError("no such table: x"),
        named("OperationalError", "elsewhere"),
        *(HttpError(status_code=status) for status in (400, 401, 404, 409, 422, 501)),
        HttpError(status_code="503"),
        HttpError(status_code=True),
        HttpError(code=1),
        HttpError(response=Answer(None)),
        HttpError(response={"status": 503}),
        HttpError(response={"ResponseMetadata": 3, "Error": 3}),
        HttpError(response={"ResponseMetadata": {"HTTPStatusCode": "503"}}),
        aws_error("AccessDeniedException", 403),
        aws_error("ValidationException", 400),
        urllib.error.URLError("unknown url type: x"),
        urllib.error.URLError(ssl.SSLCertVerificationError()),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_is_not_transient(error: Exception) -> None:
    assert not transient(error)
    assert not Retry(on="transient").wants(error)


def test_error_is_transient_if_its_direct_cause_is() -> None:
    wrapped, twice, in_context = RuntimeError("wrapped"), RuntimeError("twice"), RuntimeError("in_context")
    wrapped.__cause__ = TimeoutError()
    twice.__cause__ = wrapped
    in_context.__context__ = TimeoutError()
    assert transient(wrapped)
    assert not transient(twice)
    assert not transient(in_context)
    refused = HttpError(status_code=404)
    refused.__cause__ = TimeoutError()
    assert not transient(refused)


def test_retry_by_default_excludes_only_permanent_errors() -> None:
    retry = Retry(3)
    for error in (
        RuntimeError("flaky"),
        OSError(),
        HoldfastError(),
        StaleVersion(),
    ):
        assert retry.wants(error)
    for status in (408, 409, 425, 429, 500, 501, 503):
        assert retry.wants(HttpError(status_code=status))
    for permanent in (
        *(TypeError(), NameError(), AttributeError(), SyntaxError(), ImportError(), AssertionError()),
        *(
            NotImplementedError(),
            RecursionError(),
            InvalidCall(),
            NotFound(),
            MergeConflict(),
            CorruptVersion(),
        ),
    ):
        assert not retry.wants(permanent)
    for status in (400, 401, 403, 404, 410, 422):
        assert not retry.wants(HttpError(status_code=status))
        assert not retry.wants(HttpError(response=Answer(status)))


def test_retry_by_default_excludes_errors_about_a_value() -> None:
    retry = Retry(3)
    for error in (
        *(ValueError(), KeyError(), IndexError(), ZeroDivisionError(), OverflowError()),
        *(json.JSONDecodeError("no", "x", 0), UnicodeDecodeError("utf-8", b"x", 0, 1, "no")),
    ):
        assert not retry.wants(error)
        assert Retry(3, on=(ValueError, LookupError, ArithmeticError)).wants(error)
    # Some clients derive errors that pass from it.
    assert retry.wants(named("RateLimitError", "some_client", ValueError))
    assert retry.wants(type("Busy", (ValueError,), {"status_code": 503})())
    wrapped = ValueError()
    wrapped.__cause__ = TimeoutError()
    assert not retry.wants(wrapped)


def test_group_is_tried_again_if_each_of_its_errors_is() -> None:
    lost, mistake, wrong = ConnectionError(), TypeError(), ValueError()
    refused = HttpError(status_code=401)
    for stays in (mistake, wrong, refused):
        for group in (
            ExceptionGroup("tasks", [stays]),
            ExceptionGroup("tasks", [lost, stays]),
            ExceptionGroup("tasks", [lost, ExceptionGroup("inner", [lost, stays])]),
        ):
            assert not Retry(3).wants(group)
            assert not Retry(on="transient").wants(group)
            assert not Breaker().counts(group)
    group = ExceptionGroup("tasks", [lost, ExceptionGroup("inner", [TimeoutError()])])
    assert Retry(3).wants(group)
    assert Retry(on="transient").wants(group)
    assert Breaker().counts(group)
    assert Retry(on=OSError).wants(group)
    assert Retry(on=ExceptionGroup).wants(ExceptionGroup("tasks", [mistake]))
    assert not Retry(on=ConnectionError).wants(group)
    assert not Retry(on=lambda _: True).wants(BaseExceptionGroup("tasks", [lost, KeyboardInterrupt()]))
    busy = ExceptionGroup("tasks", [HttpError(retry_after=7), HttpError(retry_after=3), lost])
    assert asked_delay(busy) == 7
    deep: Exception = lost
    for _ in range(5_000):
        deep = ExceptionGroup("deep", [deep])
    assert Retry(3).wants(deep)


def test_retry_on_takes_classes_or_a_function() -> None:
    assert Retry(on=LookupError).wants(KeyError())
    assert not Retry(on=LookupError).wants(ValueError())
    assert Retry(on=TypeError).wants(TypeError())
    assert Retry(on=(ValueError, KeyError)).wants(KeyError())
    assert not Retry(on=()).wants(KeyError())
    assert Retry(on=lambda error: "again" in str(error)).wants(TypeError("again"))
    assert not Retry(on=lambda error: "again" in str(error)).wants(TypeError("no"))


def test_retry_never_follows_an_error_that_ends_the_process() -> None:
    for retry in (Retry(), Retry(on="transient"), Retry(on=lambda _: True)):
        for error in (KeyboardInterrupt(), SystemExit()):
            assert not retry.wants(error)


def test_retry_follows_base_exceptions_of_a_step() -> None:
    for error in (asyncio.CancelledError(), GeneratorExit()):
        assert Retry().wants(error)
        assert Retry(on=lambda _: True).wants(error)
        assert not Retry(on="transient").wants(error)


def test_retry_function_that_raises_means_no_and_adds_a_note() -> None:
    error = ValueError("x")
    assert not Retry(on=lambda _: 1 / 0 > 0).wants(error)
    assert "ZeroDivisionError" in error.__notes__[0]
    assert not Retry(on=lambda _: 1 / 0 > 0).wants(Hostile())


def test_hostile_errors_do_not_raise_in_the_policy() -> None:
    for error in (
        Hostile("x"),
        HttpError(
            status_code=OddNumber(503), headers=Hostile(), response=Hostile(), retry_after=OddNumber(1)
        ),
        HttpError(code=object(), headers=3, response=3),
    ):
        assert not transient(error)
        assert asked_delay(error) is None
        assert Retry().wants(error)
        assert not Retry(on="transient").wants(error)
    odd = OSError()
    odd.errno = []  # type: ignore[assignment]
    assert not transient(odd)
    locked = type("OperationalError", (Hostile,), {"__module__": "sqlite3"})()
    assert not transient(locked)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (HttpError(retry_after=7), 7),
        (HttpError(headers={"Retry-After": "3"}), 3),
        (HttpError(headers={"retry-after": "0.5"}), 0.5),
        (HttpError(response=Answer(429, {"Retry-After": "12"})), 12),
        (HttpError(response=Answer(429, {"retry-after-ms": "1500", "Retry-After": "2"})), 1.5),
        (aws_error("ThrottlingException", 429), 7),
        (HttpError(retry_after=0), 0),
        (HttpError(retry_after=10**9), LONGEST_ASKED),
        (HttpError(retry_after=math.inf), LONGEST_ASKED),
        (HttpError(retry_after=math.nan), None),
        (HttpError(retry_after=-1), None),
        (HttpError(retry_after=10**400), None),
        (HttpError(headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}), None),
        (HttpError(headers=["Retry-After"]), None),
        (ValueError(), None),
    ],
)
def test_retry_delay_is_read_from_the_servers_answer(error: Exception, seconds: float | None) -> None:
    assert asked_delay(error) == seconds


def test_retry_delay_is_read_from_a_standard_library_http_error() -> None:
    headers = Message()
    headers["RETRY-AFTER"] = "4"
    assert asked_delay(urllib.error.HTTPError("u", 503, "busy", headers, None)) == 4


def delays(retry: Retry, count: int = 6) -> list[float]:
    return [retry.delay_before(attempt, 0.5) for attempt in range(2, 2 + count)]


def test_retry_backoffs_grow_as_declared() -> None:
    assert delays(Retry(delay=1, max_delay=10)) == [1, 2, 4, 8, 10, 10]
    assert delays(Retry(delay=1, factor=3)) == [1, 3, 9, 27, 60, 60]
    assert delays(Retry(delay=2, backoff="constant")) == [2] * 6
    assert delays(Retry(delay=1, backoff="fibonacci")) == [1, 1, 2, 3, 5, 8]
    assert delays(Retry(delay=0, backoff="fibonacci")) == [0] * 6


@pytest.mark.parametrize("backoff", ["exponential", "constant", "fibonacci"])
def test_retry_delay_of_far_attempts_is_bounded_and_cheap(backoff: str) -> None:
    assert Retry(backoff=backoff, delay=60).delay_before(10**12, 0.5) == 60
    assert Retry(backoff=backoff, delay=0).delay_before(10**12, 0.5) == 0


def test_retry_delay_is_a_built_in_number() -> None:
    numpy = pytest.importorskip("numpy")
    delay = Retry(3, delay=numpy.float64(0.5), max_delay=numpy.float64(2)).delay_before(2, 0.5)
    assert (delay, type(delay)) == (0.5, float)


def test_retry_jitter_spreads_around_the_delay() -> None:
    retry = Retry(delay=10, jitter=0.2)
    assert retry.delay_before(2, 0) == 8
    assert retry.delay_before(2, 0.5) == 10
    assert retry.delay_before(2, 0.75) == 11
    assert Retry(delay=10, jitter=0).delay_before(2, 0.99) == 10


def test_retry_waits_as_long_as_the_server_asked() -> None:
    retry = Retry(delay=1, max_delay=5)
    assert retry.delay_before(2, 0.5, asked=30) == 30
    assert retry.delay_before(2, 0.5, asked=0.1) == 1
    assert retry.delay_before(2, 0.5, asked=None) == 1


@pytest.mark.slow
@settings(deadline=None, derandomize=True)
@given(
    attempt=st.integers(2, 10**9),
    chance=st.floats(0, 1, exclude_max=True),
    backoff=st.sampled_from(["exponential", "constant", "fibonacci"]),
    delay=st.floats(0, 100),
    factor=st.floats(1, 1e9),
    jitter=st.floats(0, 1),
)
def test_retry_delay_is_never_negative_or_beyond_its_maximum(
    *, attempt: int, chance: float, backoff: str, delay: float, factor: float, jitter: float
) -> None:
    retry = Retry(backoff=backoff, delay=delay, factor=factor, jitter=jitter, max_delay=100)
    assert 0 <= retry.delay_before(attempt, chance) <= 100


def test_retry_budget_bounds_the_wait() -> None:
    assert Retry().allows(10**6, 60)
    assert Retry(budget=10).allows(4, 6)
    assert not Retry(budget=10).allows(4, 6.1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("attempts", value) for value in (0, -1, 2.0, True, "3", None)),
        *(("backoff", value) for value in ("linear", None, 3)),
        *(("delay", value) for value in (-1, math.nan, math.inf, "1", None, True, 10**400)),
        *(("factor", value) for value in (0.5, math.nan, math.inf, 10**400)),
        *(("max_delay", value) for value in (-1, 0.4, math.nan, math.inf)),
        *(("jitter", value) for value in (-0.1, 1.1, math.nan)),
        *(("budget", value) for value in (-1, math.nan, "x")),
        *(("on", value) for value in ("timeouts", int, (ValueError, 3), KeyboardInterrupt, 3, [ValueError])),
    ],
)
def test_retry_error_names_the_wrong_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidCall, match=f"^{field} is ") as found:
        Retry(**{field: value})
    assert found.value.details["field"] == field


@pytest.mark.parametrize(("attempt", "chance"), [(1, 0.5), (0, 0.5), (2, 1), (2, -0.1), (2, math.nan)])
def test_retry_delay_needs_a_second_or_later_attempt(attempt: int, chance: float) -> None:
    with pytest.raises(InvalidCall):
        Retry().delay_before(attempt, chance)


@pytest.mark.parametrize(
    ("field", "value"),
    [("failures", 0), ("failures", 1.0), ("reset", -1), ("reset", math.inf), ("reset", "x")],
)
def test_breaker_error_names_the_wrong_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidCall, match=f"^{field} is "):
        Breaker(**{field: value})


def test_breaker_opens_after_failures_in_a_row() -> None:
    policy = Breaker(failures=3, reset=30)
    state = CLOSED
    for count in (1, 2):
        state = after_failure(policy, state, count)
        assert state == BreakerState("closed", count)
        assert breaker_admits(policy, state, count) == (True, state)
    assert after_success(policy, state, 3) == CLOSED
    state = after_failure(policy, state, 3)
    assert state == BreakerState("open", 3, 3, reset=30 * SECOND)
    assert breaker_admits(policy, state, 4) == (False, state)


def test_breaker_that_is_closed_ignores_a_success() -> None:
    state = BreakerState()
    assert after_success(Breaker(), state, 5) is state
    assert breaker_admits(Breaker(), state, 5)[1] is state


def test_breaker_admits_one_probe_after_the_reset() -> None:
    policy = Breaker(failures=1, reset=30)
    opened = after_failure(policy, CLOSED, 0)
    assert breaker_admits(policy, opened, 30 * SECOND - 1) == (False, opened)
    admitted, probing = breaker_admits(policy, opened, 30 * SECOND)
    assert admitted
    assert (probing.status, probing.probe) == ("half_open", 30 * SECOND)
    refused, same = breaker_admits(policy, probing, 31 * SECOND)
    assert not refused
    assert same is probing
    closed = after_success(policy, probing, 31 * SECOND, probing.probe)
    assert closed == BreakerState(since=31 * SECOND)
    reopened = after_failure(policy, probing, 31 * SECOND, probing.probe)
    assert (reopened.status, reopened.since) == ("open", 31 * SECOND)
    assert not breaker_admits(policy, reopened, 60 * SECOND)[0]


def test_breaker_replaces_the_probe_of_a_dead_process() -> None:
    policy = Breaker(reset=30)
    probing = BreakerState("half_open", 5, 0, 30 * SECOND)
    assert not breaker_admits(policy, probing, 60 * SECOND - 1)[0]
    admitted, again = breaker_admits(policy, probing, 60 * SECOND)
    assert admitted
    assert again.probe == 60 * SECOND


def test_breaker_opens_again_after_one_failed_probe() -> None:
    assert after_failure(Breaker(failures=5), BreakerState("half_open", 1, 0, 3), 9, 3).status == "open"


def test_breaker_closes_after_several_successes_one_probe_at_a_time() -> None:
    policy = Breaker(failures=1, reset=30, successes=3)
    state, now = after_failure(policy, CLOSED, 0), 30 * SECOND
    for count in (1, 2):
        admitted, state = breaker_admits(policy, state, now + count)
        assert (admitted, state.status, state.probe) == (True, "half_open", now + count)
        assert breaker_admits(policy, state, now + count) == (False, state)
        state = after_success(policy, state, now + count, state.probe)
        assert (state.status, state.passed, state.probe) == ("half_open", count, 0)
    # A failure in between counts from the beginning again.
    _, probing = breaker_admits(policy, state, now + 3)
    assert after_failure(policy, probing, now + 4, probing.probe).passed == 0
    _, state = breaker_admits(policy, state, now + 3)
    assert after_success(policy, state, now + 4, state.probe).status == "closed"


def test_breaker_that_is_half_open_ignores_calls_from_before_it_opened() -> None:
    probing = BreakerState("half_open", 5, 30 * SECOND, 60 * SECOND)
    for other in (0, 29 * SECOND):
        assert after_success(Breaker(), probing, 31 * SECOND, other) is probing
        assert after_failure(Breaker(), probing, 31 * SECOND, other) is probing
        assert after_neither(probing, other) is probing
    assert after_neither(probing, probing.probe).probe == 0


def test_breaker_counts_a_probe_that_takes_longer_than_it_stays_open() -> None:
    policy = Breaker(failures=1, reset=30)
    _, first = breaker_admits(policy, after_failure(policy, CLOSED, 0), 30 * SECOND)
    # A second one is let through: the first may have been made by a process that died.
    _, second = breaker_admits(policy, first, 60 * SECOND)
    assert after_success(policy, second, 75 * SECOND, first.probe).status == "closed"
    assert after_failure(policy, second, 75 * SECOND, first.probe).status == "open"
    # With several successes, the second one stays under way.
    several = Breaker(failures=1, reset=30, successes=2)
    once = after_success(several, second, 75 * SECOND, first.probe)
    assert (once.status, once.passed, once.probe) == ("half_open", 1, second.probe)
    assert not breaker_admits(several, once, 75 * SECOND)[0]
    assert after_success(several, once, 80 * SECOND, second.probe).status == "closed"


def test_breaker_whose_clock_was_wrong_counts_its_probe() -> None:
    _, probing = breaker_admits(Breaker(), BreakerState("open", 5, 10**9 * SECOND), 100 * SECOND)
    assert after_success(Breaker(), probing, 101 * SECOND, probing.probe).status == "closed"


def test_breaker_counts_what_may_pass() -> None:
    breaker = Breaker()
    for passing in (
        TimeoutError(),
        ConnectionError(),
        RuntimeError(),
        HttpError(status_code=429),
        HttpError(status_code=503),
    ):
        assert breaker.counts(passing)
    for error in (
        *(HttpError(status_code=status) for status in (400, 401, 403, 404, 422)),
        *(aws_error("AccessDeniedException", status) for status in (400, 401, 403)),
        *(TypeError(), ValueError(), KeyError(), InvalidCall(), NotFound(), MergeConflict()),
        *(KeyboardInterrupt(), SystemExit()),
    ):
        assert not breaker.counts(error)
    # Another service is down.
    refused = BreakerOpen("the other step failed 5 times in a row")
    for error in (refused, ExceptionGroup("tasks", [refused, ExceptionGroup("more", [refused])])):
        assert not breaker.counts(error)
        assert not Breaker(on=(Exception,)).counts(error)
    assert breaker.counts(ExceptionGroup("tasks", [refused, TimeoutError()]))
    assert Breaker(on=ValueError).counts(ValueError())
    assert not Breaker(on="transient").counts(RuntimeError())
    assert Breaker(on=lambda error: "busy" in str(error)).counts(TypeError("busy"))
    noted = RuntimeError("x")
    assert not Breaker(on=lambda _: 1 / 0 > 0).counts(noted)
    assert noted.__notes__ == ["not counted: Breaker.on raised ZeroDivisionError('division by zero')"]
    assert breaker.counts(Hostile())


@pytest.mark.parametrize("name", ["", "\0", "a\0b", "n" * 501, "\ud800", 3, b"x"])
def test_breaker_refuses_a_name_that_cannot_be_stored(name: Any) -> None:
    with pytest.raises(InvalidCall, match="the name of a breaker"):
        Breaker(name=name)


def test_breaker_state_of_an_older_version_is_read() -> None:
    old = msgspec.msgpack.encode({"status": "open", "failures": 5, "since": 7 * SECOND, "probe": 0})
    state = msgspec.msgpack.decode(old, type=BreakerState)
    assert state == BreakerState("open", 5, 7 * SECOND)
    assert not breaker_admits(Breaker(reset=30), state, 8 * SECOND)[0]
    assert breaker_admits(Breaker(reset=30), state, 37 * SECOND)[0]
    # When it lets a call through is known to the step alone.
    assert breaker_retry_at(None, state, 8 * SECOND) is None
    assert breaker_retry_at(Breaker(reset=30), state, 8 * SECOND) == 37 * SECOND


def test_breaker_that_is_open_ignores_late_calls() -> None:
    opened = BreakerState("open", 5, 7)
    assert after_success(Breaker(), opened, 9) is opened
    assert after_failure(Breaker(), opened, 9) is opened


def test_breaker_is_not_locked_by_a_wrong_clock() -> None:
    opened = BreakerState("open", 5, 10**9 * SECOND)
    assert breaker_admits(Breaker(), opened, 100 * SECOND)[0]
    assert not breaker_admits(Breaker(), BreakerState("open", 5, 101 * SECOND), 100 * SECOND)[0]


def test_breaker_state_is_a_plain_record() -> None:
    state = BreakerState("open", 5, 7)
    assert msgspec.convert(msgspec.to_builtins(state), BreakerState) == state
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"status": "ajar"}, BreakerState)
    with pytest.raises(AttributeError):
        state.failures = 3  # type: ignore[misc]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(["call", "good", "bad"]), st.integers(0, 40))))
def test_breaker_never_admits_two_probes_at_once(moves: list[tuple[str, int]]) -> None:
    policy, state, now, probe = Breaker(failures=2, reset=30), CLOSED, SECOND, None
    for move, seconds in moves:
        now += seconds * SECOND
        if move == "call":
            admitted, state = breaker_admits(policy, state, now)
            if admitted and state.status == "half_open":
                assert probe is None or now - probe >= 30 * SECOND
                probe = now
        else:
            state = (after_success if move == "good" else after_failure)(policy, state, now, probe or 0)
            probe = probe if state.status == "half_open" else None
        assert (state.status == "closed") == (state.failures < 2)
