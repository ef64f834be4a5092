"""Without the driver, it is said how to get it."""

from __future__ import annotations

import sys

import pytest

import holdfast


def test_a_missing_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(holdfast.StoreUnavailable, match=r"pip install 'holdfast\[postgres\]'"):
        holdfast.open("postgresql://nobody@nowhere/nothing")
