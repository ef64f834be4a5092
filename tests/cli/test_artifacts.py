"""`holdfast artifacts`"""

from __future__ import annotations

import hashlib
import json
import subprocess

import pytest
from filled_store import STORE, SampleStore
from terminal import PROGRAM, environment

import holdfast

CONTENT = bytes(range(256)) * 400


@pytest.fixture
def large(own: SampleStore) -> SampleStore:
    """A run with a large value, and a file in the folder of the store."""
    with own.open() as hf:
        hf.history("large").commit(
            {"docs": [{"file": holdfast.artifact(CONTENT, name="[red]a.bin")}], "text": "t"}
        )
    (own.folder / "picture.png").write_bytes(CONTENT[::-1])
    return own


def test_artifacts_ls_lists_all_artifacts_of_a_store(large: SampleStore) -> None:
    (found,) = json.loads(large.pipe("artifacts", "ls", "--json"))
    assert found["size"] == len(CONTENT)
    assert large.rows("artifacts", "ls")[0][:2] == [found["digest"], str(len(CONTENT))]
    lines = large.screen("artifacts", "ls").splitlines()
    assert lines[0].split() == ["digest", "size", "created"]
    assert lines[1].startswith(found["digest"][:12])


def test_artifacts_ls_lists_paths_in_a_version(large: SampleStore) -> None:
    assert large.rows("artifacts", "ls", "large")[0][2:] == ["docs[0].file", "[red]a.bin"]
    assert "[red]a.bin" in large.screen("artifacts", "ls", "large", columns=80)
    assert large.json("artifacts", "ls", "hand") == []
    assert large.screen("artifacts", "ls", "hand") == "no artifacts"


def test_artifacts_get_prints_content(large: SampleStore) -> None:
    digest = large.json("artifacts", "ls")[0]["digest"]
    for what in ([digest], [digest[:8]], ["large", "docs[0].file"]):
        command = [*PROGRAM, "artifacts", "get", *what]
        done = subprocess.run(command, cwd=large.folder, env=environment(), capture_output=True, check=True)
        assert done.stdout == CONTENT
    assert large.pipe("artifacts", "get", "large", "text") == "t"


def test_artifacts_get_writes_a_file(large: SampleStore) -> None:
    reported = large.screen("artifacts", "get", "large", "docs[0].file", "-o", "out.bin")
    assert reported == "wrote 102 kB to out.bin"
    assert (large.folder / "out.bin").read_bytes() == CONTENT
    assert "out.bin exists: overwrite it with --force" in large.screen(
        "artifacts", "get", "large", "docs[0].file", "-o", "out.bin", code=4
    )
    (large.folder / "out.bin").write_bytes(b"")
    found = json.loads(
        large.pipe("artifacts", "get", "large", "docs[0].file", "-o", "out.bin", "--force", "--json")
    )
    assert found["size"] == len(CONTENT)
    assert (large.folder / "out.bin").read_bytes() == CONTENT


def test_artifacts_get_prints_no_bytes_to_a_terminal(large: SampleStore) -> None:
    assert "use -o FILE" in large.screen("artifacts", "get", "large", "docs[0].file", code=2)


def test_artifacts_put_adds_a_version(large: SampleStore) -> None:
    reported = large.pipe("artifacts", "put", "large", "pictures.first", "picture.png")
    digest = large.json("artifacts", "ls", "large")[1]["digest"]
    assert reported == f"large@2 pictures.first: 102 kB, {digest[:12]}\n"
    assert large.json("show", "large")["step"] == "put"
    large.pipe("artifacts", "put", "large", "docs[1]", "picture.png", "--step", "add")
    found = json.loads(large.pipe("artifacts", "put", "new-run", "a", "picture.png", "--json"))
    assert (found["run"], found["version"], found["digest"]) == ("new-run", 1, digest)
    paths = [each["path"] for each in large.json("artifacts", "ls", "large")]
    assert paths == ["docs[0].file", "docs[1]", "pictures.first"]
    assert len(large.json("artifacts", "ls")) == 2, "it is stored once"
    assert hashlib.sha256(CONTENT).hexdigest() != digest or len(digest) == 64


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (["ls", "nosuch"], 3, "no run 'nosuch'"),
        (["get", "0123"], 3, "there is no artifact '0123': `holdfast artifacts ls` lists them"),
        (["get", "large", "docs"], 2, "`holdfast show` reads it"),
        (["get", "large", "nowhere"], 3, "nothing at nowhere"),
        (["put", "large", "a", "nosuch.png"], 74, "nosuch.png: No such file"),
        (["get", "large", "docs[0].file", "-o", "/nosuch/x"], 74, "/nosuch/x: No such file"),
        (["get", "large", "docs[0].file", "-o", "/"], 4, "/ exists"),
        (["put", "large", "text.x", "FILE"], 3, "text.x cannot be set"),
        (["put", "large", "docs[7]", "FILE"], 3, "docs[7] cannot be set"),
        (["put", "large", "new[3]", "FILE"], 3, "new[3] cannot be set"),
        (["put", "large", "", "FILE"], 2, "a path is required"),
        (["put", "report-1", "a", "FILE"], 2, "fork it, and change the fork"),
        (["put", "large"], 2, "missing argument 'PATH'"),
        (["nosuch"], 2, "no such command 'nosuch'"),
    ],
)
def test_artifacts_usage_errors_are_reported(
    large: SampleStore, arguments: list[str], code: int, reported: str
) -> None:
    arguments = [str(large.folder / "picture.png") if each == "FILE" else each for each in arguments]
    assert reported in large.refused("artifacts", *arguments, code=code)
    assert large.json("show", "large")["version"] == 1


def test_artifacts_alone_lists_its_subcommands(sample: SampleStore) -> None:
    text = sample.pipe("artifacts")
    assert all(name in text for name in ("ls ", "get ", "put "))
    done = sample.call("artifacts", "--json")
    assert (done.code, done.out) == (2, "")
    assert "name a subcommand: ls, get or put" in json.loads(done.err)["message"]


def test_artifacts_creates_no_store(bare: SampleStore) -> None:
    (bare.folder / "file").write_text("x")
    bare.pipe("artifacts", "put", "run", "a", "file", code=10)
    assert not (bare.folder / STORE).exists()
