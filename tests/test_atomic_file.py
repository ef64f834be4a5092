"""Atomic writes: a file has its old content or the complete new one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.atomic_file import write_atomically


def _write(path: Path, content: bytes, *, overwrite: bool = True) -> None:
    with write_atomically(path, overwrite=overwrite) as file:
        file.write(content)


def test_new_file_is_private_and_replaced_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    _write(path, b"one")
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    _write(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o640


def test_failure_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    _write(path, b"one")

    def fail() -> None:
        with write_atomically(path, overwrite=True) as file:
            file.write(b"two")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("links", [True, False])
def test_existing_file_is_overwritten_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "file"
    _write(path, b"one", overwrite=False)
    with pytest.raises(FileExistsError, match="file"):
        _write(path, b"two", overwrite=False)
    with pytest.raises(FileExistsError), write_atomically(tmp_path / "late", overwrite=False):
        (tmp_path / "late").write_bytes(b"theirs")
    assert (path.read_bytes(), (tmp_path / "late").read_bytes()) == (b"one", b"theirs")
    assert sorted(os.listdir(tmp_path)) == ["file", "late"]


def test_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    _write(tmp_path / "link", b"one")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_bytes() == b"one"


def test_device_is_written_to() -> None:
    _write(Path(os.devnull), b"one")


@pytest.mark.parametrize("name", ["", "none/file", "a\0b", "\ud800", "x" * 5_000], ids=ascii)
def test_unwritable_path_is_an_oserror_with_the_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match=r"^\[Errno \d+\] [A-Za-z ]+: ") as raised:
        _write(tmp_path / name, b"one")
    assert raised.value.filename == str(tmp_path / name)


def test_value_error_of_the_caller_is_not_a_name_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="theirs"), write_atomically(tmp_path / "file", overwrite=True):
        raise ValueError("theirs")
