"""Statements that are sent over and over: prepared once on each connection, and sent without a cursor.

A cursor of psycopg takes longer for one of these than the server does. Waiting, its limit and the errors stay
psycopg's. A placeholder says of which type it is, `%s::bigint`, and for many values at once `%s::bigint[]`: there are
whole numbers, texts and bytes.

Invariant: statements that are sent together are carried out together, or none of them.
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

from holdfast.store.postgres_link import Connection

_Encode = Callable[[Any], Any]

_names = count(1)

_PLACEHOLDER = re.compile(r"%s(?=::(bigint|text|bytea)(\[\])?)")
_number = Struct(">q").pack
#: An item of an array is its length and itself.
_number_item = Struct(">iq").pack
_length = Struct(">i").pack
_NULL = _length(-1)
#: Before the items: dimensions, are there NULLs, type of the items, how many, the first index.
_head = Struct(">5i").pack
#: By the name of a type: PostgreSQL's number of it, and how a value is sent.
_TYPES: dict[str, tuple[int, _Encode]] = {
    "bigint": (20, _number),
    "text": (25, str.encode),
    "bytea": (17, bytes),
}


class Statement(NamedTuple):
    """A statement that gives one column of whole numbers, and the values of its placeholders."""

    text: str
    values: Sequence[Any]


class _Plan(NamedTuple):
    """A statement as a server knows it."""

    text: bytes
    encode: tuple[_Encode, ...]
    #: The format of each value.
    binary: list[int]


def carry_out(connection: Connection, statements: Sequence[Statement]) -> list[list[int]]:
    """Send statements in one round trip; gives what each gives. If no transaction was begun, they are one."""
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


def _prepare(connection: Connection, plan: _Plan) -> bytes:
    # No name is given twice: a server that has forgotten one may have forgotten none of the others.
    name = b"holdfast_%d" % next(_names)
    connection.pgconn.send_prepare(name, plan.text)
    _numbers(connection.wait(generators.execute(connection.pgconn)))
    connection.prepared[plan.text] = name
    return name


def _together(connection: Connection, sends: Sequence[Callable[[], None]]) -> list[list[int]]:
    """Send all, then wait for all. What comes between two synchronisations is a transaction."""
    pgconn, wanted = connection.pgconn, len(sends) + 1
    pgconn.enter_pipeline_mode()
    try:
        results = connection.wait(
            generators.pipeline_communicate(pgconn, deque([*sends, pgconn.pipeline_sync]))
        )
        while len(results) < wanted:
            results.append(connection.wait(generators.fetch_many(pgconn)))
    finally:
        # A connection that was lost is in no mode; one whose answers were not all taken is closed by whoever lent it.
        with contextlib.suppress(psycopg.Error):
            pgconn.exit_pipeline_mode()
    *found, last = results
    numbers = [_numbers(result) for result in found]
    # The statements are committed by the synchronisation, after they have given their results.
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
def _plan(text: str) -> _Plan:
    numbers = count(1)
    sent = _PLACEHOLDER.sub(lambda _: f"${next(numbers)}", text).encode()
    encode = tuple(_encoder(kind, bool(many)) for kind, many in _PLACEHOLDER.findall(text))
    assert b"%" not in sent
    return _Plan(sent, encode, [1] * len(encode))


def _encoded(plan: _Plan, values: Sequence[Any]) -> list[Any]:
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
