"""The error without the driver names the extra to install."""

from __future__ import annotations

import sys

import pytest

import holdfast


def test_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(holdfast.StoreUnavailable, match=r"pip install 'holdfast\[postgres\]'"):
        holdfast.open("postgresql://me@host/database")
