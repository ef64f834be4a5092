"""pytest plugin for both runs of a suite: records the tests that use the classes that are compared, gives tests that
need one a PostgreSQL server, and turns off Hypothesis' limits of time, which tests exceed on a busy machine.

`PEERS_CLASSES` names the classes, as `module:Class`, separated by commas. `PEERS_POSTGRES` is the address of the
server, to which the name of a database can be added.

Invariant: a test has the property `uses` in the JUnit file if it made an object of one of the classes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("peers", deadline=None, suppress_health_check=[HealthCheck.too_slow])

_running: list[pytest.Item] = []


def _count(cls: Any) -> None:
    """Record the tests that make an object of a class."""
    make = cls.__new__

    def new(given: type, *args: Any, **options: Any) -> Any:
        for item in _running:
            if ("uses", cls.__name__) not in item.user_properties:
                item.user_properties.append(("uses", cls.__name__))
        return make(given) if make is object.__new__ else make(given, *args, **options)

    cls.__new__ = new


def pytest_configure() -> None:
    settings.load_profile("peers")
    for name in filter(None, os.environ["PEERS_CLASSES"].split(",")):
        module, _, attribute = name.partition(":")
        _count(getattr(import_module(module), attribute))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.pop()


def pytest_collection_finish() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("tests.") and "DEFAULT_POSTGRES_URI" in vars(module):
            vars(module)["DEFAULT_POSTGRES_URI"] = os.environ["PEERS_POSTGRES"]
