"""Addresses of stores: valid, invalid, and with passwords."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from pathlib import Path

import pytest
import terminal

import holdfast
from holdfast import InvalidCall, StoreUnavailable
from holdfast.store.postgres.url import shown
from holdfast.store_url import file_of

#: As libpq takes them, and as people mistype a URL.
ADDRESSES = [
    "host=localhost password=hush-hush dbname=runs",
    "password = 'hush-hush' user=me",
    " user=me password=hush-hush",
    "dbname=runs password=hush-hush",
    "sslmode=require password=hush-hush",
    "tcp_user_timeout=4 host=x password=hush-hush",
    "require_auth=none PASSWORD\n= hush-hush",
    "gssencmode = disable passwd=hush-hush",
    "new_option=1\thost=hush-hush",
    "sqlite:///runs.db?password=hush-hush",
    "./runs.db password=hush-hush",
    "postgresql:/me:hush-hush@host/runs",
    "postgres:me:hush-hush@host/runs",
    "POSTGRESQL://me:hush-hush@host/runs",
    "postgresql+psycopg://me:hush-hush@host/runs",
]


@pytest.mark.parametrize("where", ADDRESSES)
def test_keyword_strings_are_refused_without_their_password(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidCall, match="postgresql://") as refused:
        holdfast.open(where)
    shown = traceback.format_exception(refused.value)
    assert "hush" not in "".join([*shown, repr(refused.value), caplog.text])
    assert "hush" not in str(refused.value.details)
    for command in (["runs"], ["init"], ["doctor"], ["migrate"], ["stats", "--json"]):
        done = terminal.call(*command, "--store", where, cwd=tmp_path)
        assert done.code != 0
        assert "hush" not in done.out + done.err
    assert list(tmp_path.iterdir()) == []


#: With a character in the password that is special in a URL.
UNQUOTED = [
    "postgresql://ada:pa/hush@127.0.0.1:1/db",
    "postgresql://ada:12/hush@127.0.0.1:1/db",
    "postgresql://ada:hu/hush?a=b@127.0.0.1:1/db",
    "postgresql://ada:pa@hush@127.0.0.1:1/db",
    "postgresql://ada:hush/db",
]
QUOTED = [
    "postgresql://ada:pa#hush@127.0.0.1:1/db",
    "postgresql://ada:pa?hush@127.0.0.1:1/db",
    "postgresql://ada:pa%2Fhush@127.0.0.1:1/db",
    "postgresql://ada@127.0.0.1:1/db?password=hush",
]


@pytest.mark.parametrize("where", UNQUOTED + QUOTED)
def test_special_characters_in_a_password_do_not_show_it(where: str, tmp_path: Path) -> None:
    expected = "postgresql://…" if where in UNQUOTED else "postgresql://ada@127.0.0.1:1/db"
    assert shown(where) == expected
    error = InvalidCall if where in UNQUOTED else StoreUnavailable
    with pytest.raises(error, match=r"/ # \? @ : % as %2F" if error is InvalidCall else "reached") as refused:
        holdfast.open(where, timeout=0.1)
    said = "".join(traceback.format_exception(refused.value)).replace(where, "")
    assert "hush" not in said + str(refused.value.details)
    done = terminal.call("runs", "--store", where, cwd=tmp_path, HOLDFAST_PATIENCE="0.1")
    assert done.code != 0
    assert "hush" not in done.out + done.err


def test_address_is_hidden_without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert shown("postgresql://me@host/db") == "postgresql://…"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("postgres://h1:1,h2:2/db", "postgresql:///db?host=h1,h2&port=1,2"),
        ("postgresql://[::1]:5432/db?schema=a+b", "postgresql://[::1]:5432/db?schema=a+b"),
        ("postgresql://%2Frun%2Fpg/db?user=me%40t", "postgresql://me%40t@/db?host=/run/pg"),
        ("postgresql://", "postgresql:///"),
        ("postgresql://me%3Ahush@host/password%3Dhush", "postgresql://…@host/…"),
    ],
)
def test_address_is_shown_by_its_safe_parts(where: str, expected: str) -> None:
    assert shown(where) == expected


def test_addresses_are_checked_in_linear_time() -> None:
    """Each of these would take minutes in quadratic time."""
    many = 300_000
    for text in ("a" * many, "a=" + " " * many, "a " * many, "password " * many, "=" * many, " " * many):
        with suppress(InvalidCall):
            file_of("x" + text)


def test_file_whose_name_looks_like_an_address_is_opened_by_its_path(tmp_path: Path) -> None:
    holdfast.open(tmp_path / "host=1.db").close()
    assert (tmp_path / "host=1.db").exists()
