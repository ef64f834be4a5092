"""Stageflow: the research on snapshot versioning and rollback, section by section, as it holds in Holdfast."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import datetime as dt
import gc
import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("stageflow")

from stageflow.api import Pipeline, StageContext, StageKind
from stageflow.context import ContextSnapshot, Message, RunIdentity
from stageflow.context.conversation import Conversation
from stageflow.context.enrichments import Enrichments, MemoryEnrichment
from stageflow.pipeline.dag import UnifiedStageExecutionError

import holdfast
from database import Database
from holdfast import CorruptVersion, Holdfast, Retention
from holdfast.integrations.stageflow import durable, results_of, snapshot_of

pytest_plugins = ["postgres_fixtures"]

RAN: list[str] = []
AT = dt.datetime(2026, 2, 28, 23, 59, 59, 1, tzinfo=dt.UTC)
SNAPSHOT: ContextSnapshot[Any] = ContextSnapshot(
    run_id=RunIdentity(pipeline_run_id=UUID(int=1), created_at=AT),
    conversation=Conversation(messages=[Message("user", "Where does kelp grow?", AT, {"tokens": 2**70})]),
    enrichments=Enrichments(memory=MemoryEnrichment(recent_topics=["kelp"]), web_results=[{"n": (1, None)}]),
    input_text="kelp \ud800 \0",
    execution_mode="practice",
    created_at=AT,
    metadata={"model": "small-1", "nested": {"list": [1, 1.0, True, -0.0, {1, 2}]}},
)


@dataclasses.dataclass(frozen=True)
class Unregistered:
    """Extensions of a class that Holdfast does not know."""


@holdfast.register
@dataclasses.dataclass(frozen=True)
class Skills:
    """Extensions of an application."""

    names: tuple[str, ...]
    level: int


@pytest.fixture(autouse=True)
def _clean() -> None:
    RAN.clear()


@pytest.fixture(params=["sqlite", "postgres"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    where = tmp_path / "runs.db" if request.param == "sqlite" else request.getfixturevalue("url")
    with holdfast.open(where) as opened:
        yield opened


def stage(name: str, does: Callable[[StageContext], Any] | None = None) -> Any:
    async def run(ctx: StageContext) -> dict[str, Any]:
        RAN.append(name)
        found = None if does is None else does(ctx)
        return {"from": name} if found is None else found

    return run


def chain(*names: str, **does: Callable[[StageContext], Any]) -> Pipeline:
    """Stages one after another."""
    pipeline = Pipeline(name="article")
    before: tuple[str, ...] = ()
    for name in names:
        pipeline = pipeline.with_stage(name, stage(name, does.get(name)), StageKind.WORK, dependencies=before)
        before = (name,)
    return pipeline


def fail(_: StageContext) -> None:
    raise ConnectionError("the service does not answer")


def execute(pipeline: Pipeline, hf: Holdfast, run_id: str, **context: Any) -> Any:
    return asyncio.run(durable(pipeline, hf, run_id).run(**context))


class TestAgentStateManagement:
    """Industry Context: Agent State Management Challenges"""

    def test_version_records_what_shaped_the_behaviour(self, hf: Holdfast) -> None:
        """A version has the model, the prompt and any other value that shaped it, along with the state that it left."""
        log = hf.history("r")
        log.commit({"memory": ["a"]}, annotations={"model": "small-1", "prompt": "v3", "temperature": 0.2})
        log.commit({"memory": ["a", "b"]}, annotations={"model": "small-2", "prompt": "v3"})
        assert hf.diff("r@1", "r@2").fields()["annotations.model"] == {"from": "small-1", "to": "small-2"}

    def test_rollback_restores_the_accumulated_state(self, hf: Holdfast) -> None:
        """Unlike the original, a rollback brings the accumulated memory back and not only the code."""
        log = hf.history("r")
        log.commit({"memory": ["good"], "cache": {"k": 1}}, tags=["good"])
        log.commit({"memory": ["good", "poisoned"], "cache": {}})
        log.rollback(to="good", reason="poisoned memory")
        assert log.head.state == {"memory": ["good"], "cache": {"k": 1}}


class TestDurableExecution:
    """Durable Execution Patterns"""

    def test_pipeline_resumes_at_the_stage_that_failed(self, hf: Holdfast) -> None:
        """Unlike the original, a pipeline that failed continues at the failed stage: completed stages do not run
        again."""
        with pytest.raises(UnifiedStageExecutionError):
            execute(chain("plan", "search", "write", write=fail), hf, "r", input_text="kelp")
        execute(chain("plan", "search", "write"), hf, "r", input_text="kelp")
        assert RAN == ["plan", "search", "write", "write"]

    def test_version_has_step_time_and_state(self, hf: Holdfast) -> None:
        """Each version says which stage made it, when, from what input, and holds the whole state."""
        execute(chain("plan"), hf, "r", input_text="kelp")
        version = hf.history("r").at(2)
        assert version.step == "plan"
        assert version.at.tzinfo is not None
        assert snapshot_of(version).input_text == "kelp"
        assert results_of(version)["plan"].data == {"from": "plan"}

    def test_any_version_can_be_continued(self, hf: Holdfast) -> None:
        """Execution continues from any version, the newest or an earlier one."""
        execute(chain("plan", "search", "write"), hf, "r", input_text="kelp")
        for number in (4, 3, 2):
            RAN.clear()
            hf.history("r").rollback(to=number)
            execute(chain("plan", "search", "write"), hf, "r", input_text="kelp")
            assert len(RAN) == 4 - number


class TestEventSourcing:
    """Event Sourcing and Immutable Architecture"""

    def test_version_never_changes(self, hf: Holdfast) -> None:
        """Unlike the original, a recorded state cannot be changed in place, however deep the change is."""
        log = hf.history("r")
        log.commit({"a": {"b": [1, {"c": 2}]}})
        changes: list[Callable[[Any], object]] = [
            lambda state: state["a"]["b"].append(1),
            lambda state: state["a"]["b"][1].update(c=3),
            lambda state: state.clear(),
        ]
        for change in changes:
            with pytest.raises(TypeError):
                change(log.head.state)
        assert log.head.state == {"a": {"b": [1, {"c": 2}]}}

    def test_change_is_a_new_version(self, hf: Holdfast) -> None:
        """A change makes a new version, and the earlier ones stay readable."""
        log = hf.history("r")
        for number in range(5):
            log.commit({"n": number})
        assert [log.at(number).state["n"] for number in (1, 2, 3, 4, 5)] == [0, 1, 2, 3, 4]

    def test_source_of_a_value_is_known(self, hf: Holdfast) -> None:
        """For each value, the version and the stage that wrote it last are known."""
        log = hf.history("r")
        log.commit({"a": 1, "b": 1}, step="one")
        log.commit({"a": 1, "b": 2}, step="two")
        assert (log.blame("a").step, log.blame("b").step) == ("one", "two")


class TestCheckpointRestore:
    """Checkpoint/Restore Mechanisms"""

    def test_work_moves_to_another_process(self, tmp_path: Path) -> None:
        """Work that one process left is continued by another that opens the store."""
        with holdfast.open(tmp_path / "runs.db") as first, pytest.raises(UnifiedStageExecutionError):
            execute(chain("plan", "write", write=fail), first, "r")
        with holdfast.open(tmp_path / "runs.db") as second:
            execute(chain("plan", "write"), second, "r")
        assert RAN == ["plan", "write", "write"]

    def test_state_is_suspended_and_resumed(self, hf: Holdfast) -> None:
        """A history that was marked as paused keeps its state and its status until it is continued."""
        log = hf.history("r")
        log.commit({"n": 1}, status="paused")
        assert ([run.id for run in hf.runs(status="paused")], hf.get("r").state) == (["r"], {"n": 1})
        log.commit({"n": 2}, status="running")
        assert [run.id for run in hf.runs(status="paused")] == []


class TestTransactionGuarantees:
    """SagaLLM: Transaction Guarantees for Multi-Agent Planning"""

    def test_failed_stage_leaves_nothing(self, hf: Holdfast) -> None:
        """A stage that fails after it changed its context leaves no change behind."""

        def half(ctx: StageContext) -> None:
            ctx.snapshot.metadata["half"] = True
            raise ConnectionError("no")

        with pytest.raises(UnifiedStageExecutionError):
            execute(chain("plan", "act", act=half), hf, "r", input_text="kelp")
        assert "half" not in snapshot_of(hf.history("r").head).metadata

    def test_constraints_are_checked(self, hf: Holdfast) -> None:
        """A state that breaks a constraint of the schema is refused with its path, and is not recorded."""
        schema = {"properties": {"budget": {"type": "integer", "minimum": 0}}, "required": ["budget"]}
        log = hf.history("r", schema=schema)
        log.commit({"budget": 3})
        for state in ({"budget": -1}, {"budget": "3"}, {}):
            with pytest.raises(holdfast.InvalidState, match="budget"):
                log.commit(state)
        assert (log.head.number, log.head.state) == (1, {"budget": 3})

    def test_effects_are_compensated_in_reverse(self, hf: Holdfast) -> None:
        """A rollback undoes the effects of the steps behind it, the newest first."""
        undone: list[str] = []
        with holdfast.testing.isolated_definitions():

            @holdfast.step(name="sf_book", compensate=undone.append)
            def book(what: str) -> str:
                return what

            @holdfast.workflow(name="sf_trip")
            def trip() -> None:
                book("flight")
                book("hotel")

            hf.run(trip, run_id="r")
            hf.rollback("r", to=1, resume=False)
        assert undone == ["hotel", "flight"]


class TestContextSnapshotArchitecture:
    """ContextSnapshot Architecture"""

    def test_snapshot_with_all_fields_is_read_back_equal(self, hf: Holdfast) -> None:
        """A context's snapshot is stored with every field, and read back equal in value and type."""
        hf.history("r").commit({"snapshot": SNAPSHOT})
        found = hf.history("r").head.state["snapshot"]
        assert found == SNAPSHOT
        for field in dataclasses.fields(SNAPSHOT):
            assert repr(getattr(found, field.name)) == repr(getattr(SNAPSHOT, field.name)), field.name

    def test_extensions_of_a_class_of_the_application_are_kept(self, hf: Holdfast) -> None:
        """Extensions of the application's own class are kept once it is registered, and refused before."""
        with pytest.raises(holdfast.UnsupportedValue, match=r"at snapshot\.extensions: .*register"):
            hf.history("r").commit({"snapshot": ContextSnapshot(extensions=Unregistered())})
        extended: ContextSnapshot[Any] = ContextSnapshot(extensions=Skills(("kelp",), 2))
        hf.history("r").commit({"snapshot": extended})
        found = hf.history("r").head.state["snapshot"].extensions
        assert (type(found), found) == (Skills, Skills(("kelp",), 2))

    def test_documents_of_to_dict_are_kept(self, hf: Holdfast) -> None:
        """The result of `to_dict` is a state as it is, from which `from_dict` makes the snapshot again."""
        plain = ContextSnapshot(input_text="kelp", metadata={"n": 1}).to_dict()
        hf.history("r").commit(plain)
        again: ContextSnapshot[Any] = ContextSnapshot.from_dict(holdfast.thaw(hf.history("r").head.state))
        assert again.to_dict() == plain

    def test_snapshot_stays_as_it_was_when_it_was_stored(self, hf: Holdfast) -> None:
        """Unlike the original, a list within a snapshot that is changed later does not change what was stored."""
        snapshot: ContextSnapshot[Any] = ContextSnapshot(metadata={"list": [1]})
        hf.history("r").commit({"snapshot": snapshot})
        snapshot.metadata["list"].append(2)
        assert hf.history("r").head.state["snapshot"].metadata == {"list": [1]}
        hf.history("r").head.state["snapshot"].metadata["list"].append(3)
        assert hf.history("r").head.state["snapshot"].metadata == {"list": [1]}


class TestKeyGap:
    """Key Gap Identified"""

    def test_snapshots_have_version_numbers(self, hf: Holdfast) -> None:
        """Unlike the original, each snapshot has a number, and may have tags."""
        execute(chain("plan", "write"), hf, "r")
        hf.history("r").tag(2, "planned")
        assert [version.number for version in hf.history("r").versions()] == [3, 2, 1]
        assert hf.version("r:planned").step == "plan"

    def test_rollback_is_one_call(self, hf: Holdfast) -> None:
        """Unlike the original, a rollback is one call, which deletes nothing."""
        execute(chain("plan", "write"), hf, "r")
        hf.history("r").rollback(to=2, reason="again")
        assert hf.history("r").head.step == "plan"
        assert hf.history("r").at(3).step == "write"

    def test_snapshots_are_compared(self, hf: Holdfast) -> None:
        """Unlike the original, the difference of two snapshots names each changed place, with old and new value."""
        execute(chain("plan", "write"), hf, "r")
        found = hf.diff("r@2", "r@3").fields()
        assert "state.stages.write" in found


class TestHypothesis1:
    """Hypothesis 1: Version Tracking"""

    def test_each_stage_makes_one_version(self, hf: Holdfast) -> None:
        """Versions are tracked across stages: one for the input and one for each stage, in order."""
        execute(chain("plan", "search", "write"), hf, "r")
        versions = hf.history("r").versions()[::-1]
        assert [(version.number, version.step) for version in versions] == [
            (1, None),
            (2, "plan"),
            (3, "search"),
            (4, "write"),
        ]

    def test_unknown_versions_are_refused(self, hf: Holdfast) -> None:
        """A version that does not exist, or a reference that cannot be one, is an error and not another version."""
        execute(chain("plan"), hf, "r")
        for ref in ("r@99", "r@0", "r:nothing", "r~99", "nothing@1"):
            with pytest.raises(holdfast.InvalidCall):
                hf.version(ref)


class TestHypothesis2:
    """Hypothesis 2: Rollback Integrity"""

    def test_rolled_back_state_equals_the_earlier_one(self, hf: Holdfast) -> None:
        """After a rollback, the snapshot and all outputs equal those that were recorded then."""
        execute(chain("plan", "write"), hf, "r", input_text="kelp")
        before = (snapshot_of(hf.version("r@2")), results_of(hf.version("r@2")))
        hf.history("r").rollback(to=2)
        head = hf.history("r").head
        assert (snapshot_of(head), results_of(head)) == before
        assert hf.verify()

    def test_rollback_can_itself_be_undone(self, hf: Holdfast) -> None:
        """A rollback is undone by a rollback to a version of the abandoned timeline."""
        log = hf.history("r")
        for number in range(3):
            log.commit({"n": number})
        log.rollback(to=1)
        log.rollback(to=3)
        assert log.head.state["n"] == 2
        assert [line.parent for line in log.timelines()] == [None, 1, 3]

    def test_rollback_while_others_write_loses_nothing(self, hf: Holdfast) -> None:
        """A rollback at the moment of other commits leaves each commit on one timeline or the other."""
        log = hf.history("r")
        log.commit({})

        def work(number: int) -> None:
            if number % 5 == 0:
                hf.history("r").rollback(to=1)
            else:
                with hf.history("r").edit(step=f"s{number}") as state:
                    state[f"k{number}"] = number

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(30)))
        written = {version.step for version in log.versions(limit=1000)} - {None}
        assert written == {f"s{number}" for number in range(30) if number % 5}
        assert hf.verify()


class TestHypothesis3:
    """Hypothesis 3: Serialization Safety"""

    def test_snapshots_are_exact_under_load(self, hf: Holdfast) -> None:
        """Snapshots that many threads store and read at once are read back equal, every one."""

        def store(number: int) -> bool:
            snapshot = dataclasses.replace(SNAPSHOT, metadata={"number": number, "data": [number] * 50})
            with hf.history(f"r{number % 4}").edit(step="store", tags=[f"t{number}"]) as state:
                state[f"snapshot-{number}"] = snapshot
            return bool(hf.version(f"r{number % 4}:t{number}").state[f"snapshot-{number}"] == snapshot)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(store, range(64)))
        assert hf.verify()

    def test_value_that_cannot_be_stored_is_refused(self, hf: Holdfast) -> None:
        """Unlike the original, a value that would come back as something else is refused with its path."""
        with pytest.raises(holdfast.UnsupportedValue) as found:
            hf.history("r").commit({"metadata": {"clients": [threading.Lock()]}})
        assert "metadata.clients[0]" in str(found.value)
        assert hf.runs() == []


class TestHypothesis4:
    """Hypothesis 4: Concurrency Safety"""

    def test_parallel_stages_see_the_same_snapshot(self, hf: Holdfast) -> None:
        """Unlike the original, stages that run in parallel each have their own copy: none sees another's change."""
        seen: list[Any] = []

        def change(ctx: StageContext) -> None:
            seen.append(copy.deepcopy(ctx.snapshot.metadata))
            ctx.snapshot.metadata["changed"] = True
            ctx.snapshot.metadata["nested"]["list"].append(2)

        pipeline = Pipeline(name="parallel")
        for name in ("a", "b", "c"):
            pipeline = pipeline.with_stage(name, stage(name, change), StageKind.WORK)
        metadata = {"n": 1, "nested": {"list": [1]}}
        execute(pipeline, hf, "r", metadata=metadata)
        assert seen == [{"n": 1, "nested": {"list": [1]}}] * 3
        assert metadata == {"n": 1, "nested": {"list": [1]}}

    def test_concurrent_changes_are_merged_or_refused(self, hf: Holdfast) -> None:
        """Changes of different places are all kept; two changes of one place are an error that names it."""
        log = hf.history("r")
        log.commit({"a": 1, "b": 1, "list": []})
        with log.edit() as first, hf.history("r").edit() as second:
            first["a"] = 2
            first["list"].append("x")
            second["b"] = 2
            second["list"].append("y")
        assert (log.head.state["a"], log.head.state["b"]) == (2, 2)
        assert sorted(log.head.state["list"]) == ["x", "y"]

        def clash() -> None:
            with log.edit() as one, hf.history("r").edit() as other:
                one["a"] = 3
                other["a"] = 4

        with pytest.raises(holdfast.MergeConflict) as found:
            clash()
        assert "changes of a:" in str(found.value)


class TestHypothesis5:
    """Hypothesis 5: Memory Management"""

    def test_disk_grows_with_the_change_and_not_with_the_state(self, hf: Holdfast) -> None:
        """A hundred versions of a state of 300 kB, of which each changes one value, take little more than one."""
        log = hf.history("r")
        state = {"documents": [{"id": number, "text": f"{number} " * 50} for number in range(1_500)], "n": 0}
        first = log.commit(state).size
        for number in range(100):
            with log.edit() as draft:
                draft["n"] = number + 1
        assert hf.stats().pack_bytes < first * 2

    def test_memory_does_not_grow_with_the_session(self, hf: Holdfast) -> None:
        """A long session holds a bounded part of its history in memory."""
        log = hf.history("r")
        log.commit({"n": 0, "data": "x" * 10_000})

        def work(count: int) -> None:
            for number in range(count):
                with log.edit() as draft:
                    draft["n"] += 1
                    draft["data"] = f"{number} " * 2_000

        work(50)
        gc.collect()
        tracemalloc.start()
        try:
            work(150)
            gc.collect()
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # 150 versions of 6 to 8 kB each.
        assert grown < 3_000_000

    def test_retention_bounds_the_disk(self, hf: Holdfast) -> None:
        """Old versions are removed by a policy, except tagged ones and those that others need."""
        log = hf.history("r")
        for number in range(30):
            log.commit({"n": number, "data": [number] * 500}, tags=["good"] if number == 3 else [])
        log.prune(Retention(last=5))
        assert {version.number for version in log.versions()} == {4, 26, 27, 28, 29, 30}
        assert log.at("good").state["n"] == 3
        assert hf.verify()


class TestRiskAnalysis:
    """Risk Analysis"""

    def test_silent_corruption_is_detected(self, tmp_path: Path) -> None:
        """Unlike the original, a stored state that was changed behind its back is never served: its hash fails, also if
        it was replaced by a state that can be read."""
        with holdfast.open(tmp_path / "runs.db") as hf:
            for number in range(3):
                hf.history("r").commit({"n": number, "text": f"{number} " * 100})
        with Database(tmp_path / "runs.db") as database:
            changed = "UPDATE journal SET pack = (SELECT pack FROM journal WHERE number = 1) WHERE number = 2"
            assert database.change(changed) == 1
        with holdfast.open(tmp_path / "runs.db") as hf:
            with pytest.raises(CorruptVersion, match="version 2"):
                hf.version("r@2").state  # noqa: B018
            assert hf.version("r@1").state["n"] == 0
            assert not hf.verify()

    def test_rollback_to_a_known_good_state_does_not_fail_because_of_bad_ones(self, tmp_path: Path) -> None:
        """Versions that are damaged do not stop a rollback to one that is not."""
        with holdfast.open(tmp_path / "runs.db") as hf:
            for number in range(3):
                hf.history("r").commit({"n": number, "text": f"{number} " * 100})
        with Database(tmp_path / "runs.db") as database:
            database.execute("UPDATE journal SET pack = zeroblob(length(pack)) WHERE number = 2")
        with holdfast.open(tmp_path / "runs.db") as hf:
            hf.history("r").rollback(to=1)
            assert hf.history("r").head.state["n"] == 0

    def test_active_version_is_known(self, hf: Holdfast) -> None:
        """Unlike the original, the active version is one word, `head`, and each version says which one it follows."""
        log = hf.history("r")
        for number in range(3):
            log.commit({"n": number})
        log.rollback(to=1)
        log.commit({"n": 9})
        assert (log.head.number, log.head.parent, log.head.timeline) == (4, 1, 2)
        assert hf.version("r@head").number == 4

    def test_write_from_an_old_version_is_refused_on_request(self, hf: Holdfast) -> None:
        """A writer that says from which version its state was made is refused if the head has moved."""
        log = hf.history("r")
        seen = log.commit({"n": 1})
        log.commit({"n": 2})
        for expected in (seen, seen.number):
            with pytest.raises(holdfast.StaleVersion):
                log.commit({"n": 3}, expected=expected)
        assert log.head.state == {"n": 2}

    def test_memory_of_readers_is_bounded(self, hf: Holdfast) -> None:
        """A process that reads every version of a long history one after another keeps a bounded part of them."""
        log = hf.history("r")
        for number in range(400):
            log.commit({"n": number, "data": os.urandom(20_000).hex()})
        gc.collect()
        tracemalloc.start()
        try:
            for number in range(1, 401):
                assert log.at(number).state["n"] == number - 1
            gc.collect()
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # 400 states of 40 kB each are 16 MB.
        assert grown < 8_000_000


class TestSuccessCriteria:
    """Success Criteria"""

    def test_versions_are_identified_and_compared(self, hf: Holdfast) -> None:
        """Two versions have different numbers and hashes, and their difference is exact."""
        log = hf.history("r")
        one, two = log.commit({"n": 1, "x": [1, 2]}), log.commit({"n": 1, "x": [1, 2, 3]})
        assert (one.number, one.hash) != (two.number, two.hash)
        assert [change.where for change in hf.diff(one, two).changes] == ["x[2]"]

    def test_previous_state_is_restored_exactly(self, hf: Holdfast) -> None:
        """A rollback from any version to any other restores exactly the state that was committed there."""
        log = hf.history("r")
        states: list[Any] = [
            {"n": 1},
            {"n": 1.0, "x": (1, None)},
            [],
            {"n": {"deep": ["x" * 100] * 50}},
            {"n": True},
        ]
        for state in states:
            log.commit(state)
        for number in (1, 4, 2, 5, 3, 1):
            log.rollback(to=number)
            assert repr(holdfast.thaw(log.head.state)) == repr(states[number - 1])
        assert hf.verify()

    def test_every_snapshot_of_a_pipeline_is_preserved(self, hf: Holdfast) -> None:
        """The round trip of snapshots is exact for every version of a pipeline, also after a rollback and a prune."""
        given = {"input_text": SNAPSHOT.input_text, "metadata": SNAPSHOT.metadata}
        execute(chain("plan", "write"), hf, "r", **given)
        expected = {number: snapshot_of(hf.version(f"r@{number}")) for number in (1, 2, 3)}
        assert {repr(each.metadata) for each in expected.values()} == {repr(SNAPSHOT.metadata)}
        hf.history("r").rollback(to=2)
        hf.history("r").prune(Retention(last=2))
        assert snapshot_of(hf.history("r").head) == expected[2]

    def test_parallel_access_does_not_corrupt(self, hf: Holdfast) -> None:
        """Readers that read while writers write see whole versions, each as it was committed."""
        log = hf.history("r")
        log.commit({"a": 0, "b": 0})
        stop = threading.Event()

        def read() -> list[tuple[int, int]]:
            seen = []
            while not stop.is_set():
                state = hf.history("r").head.state
                seen.append((state["a"], state["b"]))
            return seen

        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read) for _ in range(4)]
            try:
                for number in range(60):
                    log.commit({"a": number, "b": number})
            finally:
                stop.set()
        for reader in readers:
            seen = reader.result()
            assert [one for one, _ in seen] == sorted(two for _, two in seen)
        assert hf.verify()

    def test_growth_of_memory_and_disk_under_load_is_predictable(self, hf: Holdfast) -> None:
        """Twice as many versions by parallel writers take twice the space, whatever the size of the state."""
        log = hf.history("r")
        log.commit({"documents": [f"{number} " * 30 for number in range(3_000)]})

        def work(number: int) -> None:
            with hf.history("r").edit(step="work") as state:
                state[f"key-{number}"] = f"{number:04}"

        def grown(numbers: range) -> int:
            before = hf.stats().pack_bytes
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(work, numbers))
            return hf.stats().pack_bytes - before

        grown(range(40))
        first, second = grown(range(40, 80)), grown(range(80, 160))
        assert second < 4 * first
        assert second / 80 < log.at(1).size / 10


class TestNextSteps:
    """Next Steps"""

    def test_rollback_whose_compensation_fails_is_finished_later(self, hf: Holdfast) -> None:
        """A rollback that fails half-way starts no timeline, and the same call finishes it without undoing twice."""
        undone: list[str] = []
        broken = {"flight"}

        def cancel(what: str) -> None:
            if what in broken:
                raise ConnectionError("the airline does not answer")
            undone.append(what)

        with holdfast.testing.isolated_definitions():

            @holdfast.step(name="sf_reserve", compensate=cancel)
            def reserve(what: str) -> str:
                return what

            @holdfast.workflow(name="sf_journey")
            def journey() -> None:
                reserve("flight")
                reserve("hotel")

            hf.run(journey, run_id="r")
            with pytest.raises(holdfast.HoldfastError):
                hf.rollback("r", to=1, resume=False)
            assert (undone, len(hf.history("r").timelines())) == (["hotel"], 1)
            broken.clear()
            hf.rollback("r", to=1, resume=False)
        assert undone == ["hotel", "flight"]
        assert (hf.history("r").head.number, hf.verify().ok) == (1, True)

    def test_rollback_to_a_version_that_cannot_be_is_refused(self, hf: Holdfast) -> None:
        """A rollback to a pruned, an unknown or a malformed version is an error, and the head stays."""
        log = hf.history("r")
        for number in range(6):
            log.commit({"n": number})
        log.prune(Retention(last=3))
        for to in (1, 0, -1, 99, "nothing", "r@1\0", None, 2.5):
            with pytest.raises(holdfast.InvalidCall):
                log.rollback(to=to)  # type: ignore[arg-type]
        assert (log.head.number, len(log.timelines())) == (6, 1)

    @pytest.mark.parametrize("broken", ["plan", "search", "write"])
    def test_pipeline_recovers_from_a_failure_at_each_stage(self, hf: Holdfast, broken: str) -> None:
        """Whichever stage fails, the next execution runs that one and the later ones, and ends with the same
        results."""
        names = ("plan", "search", "write")
        with pytest.raises(UnifiedStageExecutionError):
            execute(chain(*names, **{broken: fail}), hf, "r", input_text="kelp")
        results = execute(chain(*names), hf, "r", input_text="kelp")
        assert {name: output.data for name, output in results.items()} == {
            name: {"from": name} for name in names
        }
        assert sorted(RAN) == sorted([*names, broken])
