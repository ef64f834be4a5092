"""The address of a PostgreSQL store: the parameters for libpq, Holdfast's own options, and the text to display.

Invariant: `shown` and every message from here are without the password.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote_plus, urlencode

from holdfast.errors import InvalidCall

#: The beginnings of such an address.
SCHEMES = ("postgresql://", "postgres://")
#: The options of Holdfast, unknown to libpq.
_OWN_OPTIONS = ("schema", "pool")
#: Replaces hidden parts.
_HIDDEN = "…"
_UNREADABLE = (
    "the address of the store cannot be read: write postgresql://user:password@host:port/database, and in the user's "
    "name and the password / # ? @ : % as %2F %23 %3F %40 %3A %25"
)
#: The maximal number of connections of one process.
_CONNECTIONS = 10
#: Defaults for libpq: a broken connection is noticed within five seconds.
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


class PostgresAddress(NamedTuple):
    """A parsed address."""

    #: Parameters of libpq, with the password.
    libpq: dict[str, str]
    schema: str
    connections: int
    #: For display, without the password.
    shown: str


def parse(url: str) -> PostgresAddress:
    """Parse `postgresql://…`: `schema` and `pool` are options of Holdfast, all others of libpq."""
    libpq, own = _read(url)
    schema = own.get("schema", "holdfast")
    if not schema or len(schema.encode()) > 63 or "\0" in schema or schema.startswith("pg_"):
        raise InvalidCall(f"{schema[:80]!r} cannot be the name of a schema: 1 to 63 bytes, and not pg_…")
    pool = own.get("pool", str(_CONNECTIONS))
    if not pool.isdigit() or not 1 <= int(pool) <= 1000:
        raise InvalidCall(f"pool is the number of connections, 1 to 1000, not {pool[:20]!r}")
    return PostgresAddress({**_LIBPQ, **libpq}, schema, int(pool), _show(libpq, own))


def shown(url: str) -> str:
    """Return an address for display. Needs no driver and never raises."""
    try:
        return _show(*_read(url))
    except (ImportError, InvalidCall):
        # Only libpq knows where its password ends.
        return f"{SCHEMES[0]}{_HIDDEN}"


def _read(url: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the parameters for libpq and the options of Holdfast."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    rest = url.partition("://")[2]
    # As libpq does it: the login ends at the first @, unless a / comes before it.
    login, at, place = rest.partition("@")
    if not at or "/" in login:
        login, at, place = "", "", rest
    place, _, query = place.partition("?")
    own: dict[str, str] = {}
    theirs: list[str] = []
    for option in query.split("&"):
        name, _, value = option.partition("=")
        if name in _OWN_OPTIONS:
            own[name] = unquote_plus(value)
        else:
            theirs.append(option)
    try:
        found = conninfo_to_dict(f"{SCHEMES[0]}{login}{at}{place}?{'&'.join(theirs)}")
    except (psycopg.Error, ValueError):
        # Their messages may contain the password.
        raise InvalidCall(_UNREADABLE) from None
    libpq = {name: str(value) for name, value in found.items() if value is not None}
    # The end of a password with an unescaped special character: libpq would quote it in its errors.
    if "@" in place or not all(not port or port.isdecimal() for port in libpq.get("port", "").split(",")):
        raise InvalidCall(_UNREADABLE)
    return libpq, own


def _show(libpq: dict[str, str], own: dict[str, str]) -> str:
    """Return an address without the password."""
    user, name = (_named(libpq.get(part, "")) for part in ("user", "dbname"))
    host, port = libpq.get("host", ""), libpq.get("port", "")
    options = {part: libpq[part] for part in ("hostaddr",) if part in libpq}
    if "/" in host or "," in host or (port and not host):
        options |= {part: value for part, value in (("host", host), ("port", port)) if value}
        host = port = ""
    options |= {part: value for part, value in own.items() if part == "schema"}
    place = f"[{host}]" if ":" in host else quote(host, safe="")
    login = f"{user}@" if user else ""
    query = f"?{urlencode(options, safe='/,')}" if options else ""
    return f"{SCHEMES[0]}{login}{place}{port and ':'}{port}/{name}{query}"


def _named(part: str) -> str:
    """Return the name of a user or a database for display; hide one that may contain a password."""
    return _HIDDEN if ":" in part or "=" in part else quote(part, safe="")
