"""The address of a PostgreSQL store: what libpq is told, what is ours, and what may be shown.

Invariant: `shown` and every message from here are without the password.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from holdfast.errors import InvalidCall

#: How such an address begins.
SCHEMES = ("postgresql://", "postgres://")
#: What of the options of an address is shown.
_SHOWN = ("host", "hostaddr", "port", "dbname", "user", "schema")
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
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = urlsplit(url)
        ours = dict(parse_qsl(parts.query, keep_blank_values=True))
        theirs = [
            pair
            for pair in parse_qsl(parts.query, keep_blank_values=True)
            if pair[0] not in ("schema", "pool")
        ]
        query = urlencode(theirs, safe="/")
        found = conninfo_to_dict(urlunsplit(parts._replace(scheme="postgresql", query=query)))
    except (psycopg.Error, ValueError):
        # What they say may show the password.
        raise InvalidCall(
            "the address of the store cannot be read: write postgresql://user:password@host:port/database, "
            "special characters as %XX"
        ) from None
    libpq = {name: str(value) for name, value in found.items() if value is not None}
    schema = ours.get("schema", "holdfast")
    if not schema or len(schema.encode()) > 63 or "\0" in schema or schema.startswith("pg_"):
        raise InvalidCall(f"{schema[:80]!r} cannot be the name of a schema: 1 to 63 bytes, and not pg_…")
    pool = ours.get("pool", str(_CONNECTIONS))
    if not pool.isdigit() or not 1 <= int(pool) <= 1000:
        raise InvalidCall(f"pool is the number of connections, 1 to 1000, not {pool[:20]!r}")
    return Address({**_LIBPQ, **libpq}, schema, int(pool), shown(url))


def shown(url: str) -> str:
    """An address as people may see it. Needs no driver, and takes whatever it is given."""
    try:
        parts = urlsplit(url)
        options = [pair for pair in parse_qsl(parts.query) if pair[0] in _SHOWN]
    except ValueError:
        return "postgresql://…"
    login, at, host = parts.netloc.rpartition("@")
    user = login.partition(":")[0]
    netloc = f"{user}{at}{host}" if user else host
    return urlunsplit(("postgresql", netloc, parts.path or "/", urlencode(options, safe="/"), ""))
