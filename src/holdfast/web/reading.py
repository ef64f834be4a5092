"""What a request carries, checked against what its operation declares.

Invariant: no more of a body is read than its operation allows, and nothing is parsed that nests deeper than a state
may.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, BinaryIO
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request

from holdfast.struct_types import resolved
from holdfast.tree.codec import MAX_DEPTH
from holdfast.web.operation import Operation
from holdfast.web.problems import Refused

_JSON = "application/json"
#: Texts, which may hold brackets, and brackets. A text that does not end is taken to the end of the body, and no match
#: is tried twice: the search is linear whatever the body holds.
_NESTING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.S)
#: Levels that a body has around a state, and that marked values have more than what they stand for.
_DEEPEST = 3 * MAX_DEPTH
_IN_MEMORY = 1 << 20
#: Of any cursor.
_DIGITS = 15

#: Runs a blocking function in a thread.
Elsewhere = Callable[..., Awaitable[Any]]


def read_parts(request: Request, operation: Operation) -> dict[str, str]:
    """The variable parts of the path."""
    found = {}
    for name in operation.parts:
        try:
            found[name] = unquote_to_bytes(request.path_params[name]).decode()
        except UnicodeDecodeError:
            raise Refused(422, "invalid", f"{name} in the path is no UTF-8") from None
    return found


def read_query(request: Request, kind: type | None) -> Any:
    """What stands after the question mark."""
    lists = _lists(kind)
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in lists:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise Refused(422, "invalid", f"the parameter {name!r:.60} is given twice")
        else:
            given[name] = value
    if kind is None:
        if given:
            raise Refused(422, "invalid", f"there is no parameter {next(iter(given))!r:.60} here")
        return None
    try:
        return msgspec.convert(given, resolved(kind), strict=False)
    except msgspec.ValidationError as error:
        raise Refused(422, "invalid", f"parameters: {error}") from None


def read_cookie(request: Request, name: str) -> str | None:
    """Return the value of a cookie as it was sent, or None.

    Cookies of other servers on this machine arrive too, before it is known who calls: a quoted value is not decoded,
    which `http.cookies` does in quadratic time. Browsers send the cookie with the shortest path, ours, last.
    """
    found = None
    for header in request.headers.getlist("cookie"):
        for part in header.split(";"):
            key, _, value = part.partition("=")
            if key.strip() == name:
                found = value.strip()
    return found


def read_cursor(request: Request) -> int | None:
    """The cursor after which a stream is to go on."""
    given = request.headers.get("last-event-id", "")
    if not given:
        return None
    if not given.isascii() or not given.isdecimal() or len(given) > _DIGITS:
        raise Refused(
            422, "invalid", f"Last-Event-ID is the id of an event of this stream, not {given!r:.60}"
        )
    return int(given)


async def read_body(request: Request, operation: Operation, elsewhere: Elsewhere) -> Any:
    """The body as the operation declares it: a record, or a file for one that is taken as it comes."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > _DIGITS or int(length) > operation.most):
        raise _too_much(operation)
    if operation.upload is not None:
        return await _into_file(request, operation, elsewhere)
    if operation.body is None:
        if await _taken(request, operation):
            raise Refused(422, "invalid", f"{operation.method} {operation.path} takes no body")
        return None
    data = await _taken(request, operation)
    if data:
        _check_type(request, (_JSON,))
    return await elsewhere(parse_json, data or b"{}", operation.body)


def parse_json(data: bytes, kind: Any) -> Any:
    """JSON as a record, or `Refused`."""
    check_depth(data)
    try:
        return msgspec.json.decode(data, type=resolved(kind))
    except msgspec.ValidationError as error:
        raise Refused(422, "invalid", f"the body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "no_json", f"the body is no JSON: {error}") from None


def check_depth(data: bytes) -> None:
    """Refuse what nests too deep, before anything looks at it."""
    depth = 0
    for match in _NESTING.finditer(data):
        sign = data[match.start()]
        if sign in b"[{":
            depth += 1
            if depth > _DEEPEST:
                raise Refused(422, "too_deep", f"the body nests deeper than {_DEEPEST} levels")
        elif sign in b"]}":
            depth -= 1


async def _taken(request: Request, operation: Operation) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in _stream(request):
        size += len(piece)
        if size > operation.most:
            raise _too_much(operation)
        pieces.append(piece)
    return b"".join(pieces)


async def _into_file(request: Request, operation: Operation, elsewhere: Elsewhere) -> BinaryIO:
    assert operation.upload is not None
    _check_type(request, operation.upload.media_types)
    file: Any = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - closed by whoever asked
    size = 0
    try:
        async for piece in _stream(request):
            size += len(piece)
            if size > operation.most:
                raise _too_much(operation)
            await elsewhere(file.write, piece)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    found: BinaryIO = file
    return found


async def _stream(request: Request) -> Any:
    try:
        async for piece in request.stream():
            yield piece
    except ClientDisconnect:
        raise Refused(400, "gone", "the body did not come to its end") from None


def _check_type(request: Request, wanted: tuple[str, ...]) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in wanted:
        raise Refused(415, "wrong_type", f"send the body as {' or '.join(wanted)}, not as {given[:60]!r}")


def _too_much(operation: Operation) -> Refused:
    # Whatever else is on its way is not wanted.
    return Refused(413, "too_large", f"the body has more than {operation.most:,} bytes", connection="close")


@cache
def _lists(kind: type | None) -> frozenset[str]:
    """The parameters that may be given several times."""
    if kind is None:
        return frozenset()
    info: Any = msgspec.inspect.type_info(kind)
    return frozenset(field.encode_name for field in info.fields if _is_list(field.type))


def _is_list(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _is_list(kind.type)
    return isinstance(kind, msgspec.inspect.VarTupleType)
