"""Fixtures for tests on PostgreSQL, for modules that say `pytest_plugins = ["postgres_fixtures"]`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from postgres_server import Server, address, shared


@pytest.fixture(scope="session")
def server() -> str:
    """The address of a PostgreSQL server that others use, too."""
    return shared()


@pytest.fixture
def schema(server: str) -> Iterator[str]:
    """The name of a schema that goes with the test."""
    name = f"test_{uuid.uuid4().hex[:16]}"
    yield name
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture
def url(server: str, schema: str) -> str:
    """The address of a PostgreSQL store that is not there yet."""
    return address(server, schema)


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A PostgreSQL server to be maltreated."""
    with Server() as own:
        yield own
