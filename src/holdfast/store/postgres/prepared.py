"""Statements that are sent often: prepared once on each connection, and sent without a cursor.

A psycopg cursor takes longer for such a statement than the server does. Waiting, time limits and errors remain
psycopg's. A placeholder names its type, `%s::bigint`, or `%s::bigint[]` for many values; the types are bigint, text and
bytea.

Invariant: statements that are sent together are carried out together, or none of them. They leave the client as one
message: what is lost or late between two of them would leave a transaction open on the server, with its locks.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import count, repeat
from struct import Struct
from typing import Any, NamedTuple

import psycopg
from psycopg import generators
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from holdfast.store.postgres.connection import PostgresConnection

_Encode = Callable[[Any], Any]

_names = count(1)

_PLACEHOLDER = re.compile(r"%s(?=::(bigint|text|bytea)(\[\])?)")
_number = Struct(">q").pack
#: An item of an array: its length and its value.
_number_item = Struct(">iq").pack
_length = Struct(">i").pack
_NULL = _length(-1)
#: The head of an array: dimensions, whether there are NULLs, type of the items, their number, the first index.
_head = Struct(">5i").pack
#: By the name of a type: its OID, and the encoder of a value.
_TYPES: dict[str, tuple[int, _Encode]] = {
    "bigint": (20, _number),
    "text": (25, str.encode),
    "bytea": (17, bytes),
}


class PreparedStatement(NamedTuple):
    """A statement that returns one column of integers, and the values of its placeholders."""

    text: str
    values: Sequence[Any]


class _WireStatement(NamedTuple):
    """A statement as it is sent to the server."""

    text: bytes
    encode: tuple[_Encode, ...]
    #: The format of each value.
    binary: list[int]


def execute_prepared(
    connection: PostgresConnection, statements: Sequence[PreparedStatement]
) -> list[list[int]]:
    """Send statements in one round trip; return the result of each. Outside a transaction they are one."""
    plans = [_plan(statement.text) for statement in statements]
    pgconn = connection.pgconn
    with connection.lock:
        names = [connection.prepared.get(plan.text) or _prepare(connection, plan) for plan in plans]
        sends = [
            partial(pgconn.send_query_prepared, name, _encoded(plan, values), plan.binary, 1)
            for name, plan, (_, values) in zip(names, plans, statements, strict=True)
        ]
        try:
            if len(sends) == 1:
                sends[0]()
                return [_numbers(connection.wait(generators.execute(pgconn)))]
            return _together(connection, sends)
        except psycopg.errors.InvalidSqlStatementName:
            connection.prepared.clear()
            raise


def _prepare(connection: PostgresConnection, plan: _WireStatement) -> bytes:
    # Names are not reused: a server that has lost one statement may still have the others.
    name = b"holdfast_%d" % next(_names)
    connection.pgconn.send_prepare(name, plan.text)
    _numbers(connection.wait(generators.execute(connection.pgconn)))
    connection.prepared[plan.text] = name
    return name


def _together(connection: PostgresConnection, sends: Sequence[Callable[[], None]]) -> list[list[int]]:
    """Send all statements, then wait for all. The statements between two synchronisations are a transaction."""
    pgconn, wanted = connection.pgconn, len(sends) + 1
    commands: deque[Callable[[], None]] = deque()

    def send() -> None:
        for each in sends:
            each()
        pgconn.pipeline_sync()
        commands.append(flush)

    def flush() -> None:
        # Answers are read meanwhile: the server may not take more before.
        if pgconn.flush():
            commands.append(flush)

    commands.append(send)
    pgconn.enter_pipeline_mode()
    try:
        results = connection.wait(generators.pipeline_communicate(pgconn, commands))
        while len(results) < wanted:
            results.append(connection.wait(generators.fetch_many(pgconn)))
    finally:
        # A lost connection is in no mode; the pool closes one with unread answers.
        with contextlib.suppress(psycopg.Error):
            pgconn.exit_pipeline_mode()
    *found, last = results
    numbers = [_numbers(result) for result in found]
    # The synchronisation commits the statements, after their results were sent.
    if not last:
        raise psycopg.OperationalError("the connection was lost before the commit was confirmed")
    if last[-1].status != ExecStatus.PIPELINE_SYNC:
        raise psycopg.errors.error_from_result(last[-1])
    return numbers


def _numbers(results: list[PGresult]) -> list[int]:
    found = []
    for result in results:
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise psycopg.errors.error_from_result(result)
        found += [
            int.from_bytes(result.get_value(row, 0) or b"", signed=True) for row in range(result.ntuples)
        ]
    return found


@cache
def _plan(text: str) -> _WireStatement:
    numbers = count(1)
    sent = _PLACEHOLDER.sub(lambda _: f"${next(numbers)}", text).encode()
    encode = tuple(_encoder(kind, bool(many)) for kind, many in _PLACEHOLDER.findall(text))
    assert b"%" not in sent
    return _WireStatement(sent, encode, [1] * len(encode))


def _encoded(plan: _WireStatement, values: Sequence[Any]) -> list[Any]:
    return [
        None if value is None else encode(value) for encode, value in zip(plan.encode, values, strict=True)
    ]


def _encoder(kind: str, many: bool) -> _Encode:
    number, encode = _TYPES[kind]
    return partial(_array, number, encode) if many else encode


def _array(number: int, encode: _Encode, values: Sequence[Any]) -> bytes:
    head = _head(1, 1, number, len(values), 1)
    if encode is _number and None not in values:
        return head + b"".join(map(_number_item, repeat(8), values))
    parts = [head]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            data = encode(value)
            parts += (_length(len(data)), data)
    return b"".join(parts)
