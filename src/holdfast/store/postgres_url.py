"""The address of a PostgreSQL store: what libpq is told, what is ours, and what may be shown.

Invariant: `shown` and every message from here are without the password.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote_plus, urlencode

from holdfast.errors import InvalidCall

#: How such an address begins.
SCHEMES = ("postgresql://", "postgres://")
#: The options that libpq does not know.
_OURS = ("schema", "pool")
#: In the place of what is not shown.
_HIDDEN = "…"
_UNREADABLE = (
    "the address of the store cannot be read: write postgresql://user:password@host:port/database, and in the user's "
    "name and the password / # ? @ : % as %2F %23 %3F %40 %3A %25"
)
#: Connections of one process at most.
_CONNECTIONS = 10
#: What is settled by us where the address says nothing: a connection that was cut is noticed within five seconds.
_LIBPQ = {
    "connect_timeout": "4",
    "keepalives": "1",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "2",
    "tcp_user_timeout": "4000",
    "application_name": "holdfast",
    "client_encoding": "utf8",
}


class Address(NamedTuple):
    """Where a store is."""

    #: Parameters of libpq, with the password.
    libpq: dict[str, str]
    schema: str
    connections: int
    #: For people.
    shown: str


def parse(url: str) -> Address:
    """The parts of `postgresql://…`: `schema` and `pool` are ours, all else is libpq's."""
    libpq, ours = _read(url)
    schema = ours.get("schema", "holdfast")
    if not schema or len(schema.encode()) > 63 or "\0" in schema or schema.startswith("pg_"):
        raise InvalidCall(f"{schema[:80]!r} cannot be the name of a schema: 1 to 63 bytes, and not pg_…")
    pool = ours.get("pool", str(_CONNECTIONS))
    if not pool.isdigit() or not 1 <= int(pool) <= 1000:
        raise InvalidCall(f"pool is the number of connections, 1 to 1000, not {pool[:20]!r}")
    return Address({**_LIBPQ, **libpq}, schema, int(pool), _show(libpq, ours))


def shown(url: str) -> str:
    """An address as people may see it. Needs no driver, and takes whatever it is given."""
    try:
        return _show(*_read(url))
    except (ImportError, InvalidCall):
        # Only libpq knows where its password ends.
        return f"{SCHEMES[0]}{_HIDDEN}"


def _read(url: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return what an address says to libpq, and the options that are ours."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    rest = url.partition("://")[2]
    # As libpq divides it: the login ends with the first @, unless there is a / before.
    login, at, place = rest.partition("@")
    if not at or "/" in login:
        login, at, place = "", "", rest
    place, _, query = place.partition("?")
    ours: dict[str, str] = {}
    theirs: list[str] = []
    for option in query.split("&"):
        name, _, value = option.partition("=")
        if name in _OURS:
            ours[name] = unquote_plus(value)
        else:
            theirs.append(option)
    try:
        found = conninfo_to_dict(f"{SCHEMES[0]}{login}{at}{place}?{'&'.join(theirs)}")
    except (psycopg.Error, ValueError):
        # What they say may show the password.
        raise InvalidCall(_UNREADABLE) from None
    libpq = {name: str(value) for name, value in found.items() if value is not None}
    # The end of a password in which a special character was written as it is: libpq would name it in its errors.
    if "@" in place or not all(not port or port.isdecimal() for port in libpq.get("port", "").split(",")):
        raise InvalidCall(_UNREADABLE)
    return libpq, ours


def _show(libpq: dict[str, str], ours: dict[str, str]) -> str:
    """Write an address with the parts that may be seen."""
    user, name = (_named(libpq.get(part, "")) for part in ("user", "dbname"))
    host, port = libpq.get("host", ""), libpq.get("port", "")
    options = {part: libpq[part] for part in ("hostaddr",) if part in libpq}
    if "/" in host or "," in host or (port and not host):
        options |= {part: value for part, value in (("host", host), ("port", port)) if value}
        host = port = ""
    options |= {part: value for part, value in ours.items() if part == "schema"}
    place = f"[{host}]" if ":" in host else quote(host, safe="")
    login = f"{user}@" if user else ""
    query = f"?{urlencode(options, safe='/,')}" if options else ""
    return f"{SCHEMES[0]}{login}{place}{port and ':'}{port}/{name}{query}"


def _named(part: str) -> str:
    """The name of a user or a database as it is shown; not one that looks as if a password were in it."""
    return _HIDDEN if ":" in part or "=" in part else quote(part, safe="")
