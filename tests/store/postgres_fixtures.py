"""Fixtures for tests on PostgreSQL, for modules with `pytest_plugins = ["postgres_fixtures"]`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from postgres_server import Server, address, shared


@pytest.fixture(scope="session")
def server() -> str:
    """Return the address of the shared PostgreSQL server."""
    return shared()


@pytest.fixture
def schema(server: str) -> Iterator[str]:
    """Yield the name of a schema that is dropped after the test."""
    name = f"test_{uuid.uuid4().hex[:16]}"
    yield name
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture
def url(server: str, schema: str) -> str:
    """Return the address of a PostgreSQL store that does not exist yet."""
    return address(server, schema)


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """Yield a PostgreSQL server that a test may crash."""
    with Server() as own:
        yield own
