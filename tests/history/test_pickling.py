"""Objects of an open store refuse to be pickled, and say what to pass instead."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, InvalidCall


def _things(hf: Holdfast) -> dict[str, Any]:
    log = hf.history("run")
    log.commit({"n": 1, "file": holdfast.artifact(b"content")})
    log.commit({"n": 2, "file": holdfast.artifact(b"content")})
    return {
        "history": log,
        "version": log.head,
        "versions": log.versions(),
        "page in a record": {"page": (log.at(1),)},
        "diff": hf.diff("run@1", "run@2"),
        "comparison": hf.compare("run@1", "run@2"),
        "blame": log.blame("n"),
        "subscription": hf.subscribe(lambda event: None),
        "context": hf._context,
        "store": hf._store,
        "iterator": hf.iter_runs(),
    }


def test_pickling_an_object_of_a_store_explains_the_error(hf: Holdfast) -> None:
    for name, thing in _things(hf).items():
        for give in (pickle.dumps, deepcopy):
            with pytest.raises(InvalidCall, match=r"holdfast\.open in the other process"):
                pytest.fail(f"{name} was copied: {give(thing)!r}")


def test_artifacts_are_copied_but_not_pickled(hf: Holdfast) -> None:
    file = _things(hf)["version"].state["file"]
    for handle in (file, hf.artifact(file.digest)):
        assert deepcopy(handle).read() == deepcopy({"a": [handle]})["a"][0].read() == b"content"
        with pytest.raises(InvalidCall, match="digests of artifacts"):
            pickle.dumps(handle)


def test_plain_values_and_records_are_pickled(hf: Holdfast) -> None:
    _things(hf)
    hf.history("plain").commit({"n": [1, {"a": 2}]})
    for thing in (
        hf.history("plain").head.state,
        hf.runs(),
        hf.events(),
        hf.artifacts(),
        hf.stats(),
        hf.verify(),
    ):
        assert pickle.loads(pickle.dumps(thing)) == thing
