"""Parameters, bodies and values of a request, checked against the types that its operation declares.

Redaction matches the keys of Python dicts, so it follows decoding: JSON may write a dict as pairs, inside a tuple or a
registered type.

Invariant: no more of a body is read than its operation allows, and nothing is parsed that nests deeper than a state
may. No value reaches the engine under a key or at a path that the store or the default patterns redact.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Any, BinaryIO
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request

from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall
from holdfast.struct_types import resolved
from holdfast.tree import path as paths
from holdfast.tree.codec import MAX_DEPTH, REDACTED, decode, encode
from holdfast.tree.portable import from_json
from holdfast.web.errors import RequestRefused
from holdfast.web.operation import Operation


class RequestValues:
    """Decoder for the values of one request; redacts secrets."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._known: dict[Any, bool] = {}

    def value(self, document: Any) -> Any:
        """Return the value that a JSON document describes."""
        return decode(encode(from_json(document), self._hides))

    def named(self, documents: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by name."""
        return {name: REDACTED if self._hides(name) else self.value(each) for name, each in documents.items()}

    def edits(self, documents: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by their paths in a state."""
        return {
            path: REDACTED if self._is_secret(paths.parse(path)) else self.value(each)
            for path, each in documents.items()
        }

    def refuse_secret(self, segments: Sequence[Any]) -> None:
        """Refuse a path in a state whose value would be redacted."""
        if self._is_secret(segments):
            raise InvalidCall(
                f"{paths.show(segments)!r:.200} is the path of a secret, which is not stored: choose another path, or "
                "see `holdfast config redact`"
            )

    def _is_secret(self, segments: Sequence[Any]) -> bool:
        return any(map(self._hides, segments))

    def _hides(self, key: Any) -> bool:
        """Return whether the value under a key is redacted."""
        if key not in self._known:
            self._known[key] = self._hf.redact({key: None})[key] is not None
        return self._known[key]


_JSON = "application/json"
#: Strings, which may hold brackets, and brackets. An unterminated string extends to the end of the body, and the
#: possessive quantifiers keep the search linear for any body.
_NESTING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.S)
#: Includes the levels of a body around a state, and those that marked values add.
_MAX_NESTING = 3 * MAX_DEPTH
_IN_MEMORY = 1 << 20
#: Digits of a cursor or a length.
_DIGITS = 15

#: Runs a blocking function in a thread.
RunInThread = Callable[..., Awaitable[Any]]


def read_parts(request: Request, operation: Operation) -> dict[str, str]:
    """Return the variable parts of the path."""
    found = {}
    for name in operation.parts:
        try:
            found[name] = unquote_to_bytes(request.path_params[name]).decode()
        except UnicodeDecodeError:
            raise RequestRefused(422, "invalid", f"{name} in the path is not UTF-8") from None
    return found


def read_query(request: Request, kind: type | None) -> Any:
    """Return the query parameters as a record."""
    lists = _lists(kind)
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in lists:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise RequestRefused(422, "invalid", f"the parameter {name!r:.60} is given twice")
        else:
            given[name] = value
    if kind is None:
        if given:
            raise RequestRefused(422, "invalid", f"unknown parameter {next(iter(given))!r:.60}")
        return None
    try:
        return msgspec.convert(given, resolved(kind), strict=False)
    except msgspec.ValidationError as error:
        raise RequestRefused(422, "invalid", f"parameters: {error}") from None


def read_cookie(request: Request, name: str) -> str | None:
    """Return the raw value of a cookie, or None.

    Cookies of other servers on this host arrive too, before authentication: a quoted value is not decoded, which
    `http.cookies` does in quadratic time. Browsers send the cookie with the shortest path, ours, last.
    """
    found = None
    for header in request.headers.getlist("cookie"):
        for part in header.split(";"):
            key, _, value = part.partition("=")
            if key.strip() == name:
                found = value.strip()
    return found


def read_cursor(request: Request) -> int | None:
    """Return the cursor in `Last-Event-ID`, after which a stream continues."""
    given = request.headers.get("last-event-id", "")
    if not given:
        return None
    if not given.isascii() or not given.isdecimal() or len(given) > _DIGITS:
        raise RequestRefused(
            422, "invalid", f"Last-Event-ID must be the id of an event of this stream, not {given!r:.60}"
        )
    return int(given)


async def read_body(request: Request, operation: Operation, run_in_thread: RunInThread) -> Any:
    """Return the body as the operation declares it: a record, or a file for an upload."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > _DIGITS or int(length) > operation.most):
        raise _too_large(operation)
    if operation.upload is not None:
        return await _read_into_file(request, operation, run_in_thread)
    if operation.body is None:
        if await _read_all(request, operation):
            raise RequestRefused(422, "invalid", f"{operation.method} {operation.path} takes no body")
        return None
    data = await _read_all(request, operation)
    if data:
        _check_type(request, (_JSON,))
    return await run_in_thread(parse_json, data or b"{}", operation.body)


def parse_json(data: bytes, kind: Any) -> Any:
    """Parse JSON as a record; raise `RequestRefused` if it does not fit."""
    check_depth(data)
    try:
        return msgspec.json.decode(data, type=resolved(kind))
    except msgspec.ValidationError as error:
        raise RequestRefused(422, "invalid", f"the body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefused(400, "no_json", f"the body is not JSON: {error}") from None


def check_depth(data: bytes) -> None:
    """Refuse a body that nests too deep, before it is parsed."""
    depth = 0
    for match in _NESTING.finditer(data):
        sign = data[match.start()]
        if sign in b"[{":
            depth += 1
            if depth > _MAX_NESTING:
                raise RequestRefused(422, "too_deep", f"the body nests deeper than {_MAX_NESTING} levels")
        elif sign in b"]}":
            depth -= 1


async def _read_all(request: Request, operation: Operation) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in _stream(request):
        size += len(piece)
        if size > operation.most:
            raise _too_large(operation)
        pieces.append(piece)
    return b"".join(pieces)


async def _read_into_file(request: Request, operation: Operation, run_in_thread: RunInThread) -> BinaryIO:
    assert operation.upload is not None
    _check_type(request, operation.upload.media_types)
    file: Any = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - closed by the caller
    size = 0
    try:
        async for piece in _stream(request):
            size += len(piece)
            if size > operation.most:
                raise _too_large(operation)
            await run_in_thread(file.write, piece)
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
        raise RequestRefused(400, "gone", "the connection was closed before the end of the body") from None


def _check_type(request: Request, wanted: tuple[str, ...]) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in wanted:
        raise RequestRefused(
            415, "wrong_type", f"send the body as {' or '.join(wanted)}, not as {given[:60]!r}"
        )


def _too_large(operation: Operation) -> RequestRefused:
    # Do not read the rest.
    return RequestRefused(
        413, "too_large", f"the body has more than {operation.most:,} bytes", connection="close"
    )


@cache
def _lists(kind: type | None) -> frozenset[str]:
    """Return the parameters that may be repeated."""
    if kind is None:
        return frozenset()
    info: Any = msgspec.inspect.type_info(kind)
    return frozenset(field.encode_name for field in info.fields if _is_list(field.type))


def _is_list(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.Metadata):
        return _is_list(kind.type)
    return isinstance(kind, msgspec.inspect.VarTupleType)
