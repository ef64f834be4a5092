"""rh_agents: the State Recovery System, section by section of its progress report, as it holds in Holdfast."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from database import Database
from holdfast import Holdfast, artifact, step, workflow
from holdfast.model.records import STATUSES
from holdfast.testing import isolated_definitions

pytest_plugins = ["postgres_fixtures"]

FORMATS = Path(__file__).parent.parent / "compat"
CALLS: list[str] = []
BROKEN: set[str] = set()


@step(name="rh_embed")
def embed(text: str) -> list[float]:
    CALLS.append("embed")
    holdfast.state()["embedding"] = artifact([1.0, 2.0, 3.0], "embedding")
    return [float(len(word)) for word in text.split()]


@step(name="rh_rank")
def rank(vector: list[float]) -> None:
    CALLS.append("rank")
    if "rank" in BROKEN:
        raise RuntimeError("the ranker is away")
    holdfast.state()["ranked"] = True


@step(name="rh_report")
async def report(text: str) -> str:
    CALLS.append("report")
    return f"on {text}"


@workflow(name="rh_agent_workflow")
def pipeline(text: str) -> str:
    rank(embed(text))
    return "done"


@workflow(name="rh_async_workflow")
async def async_pipeline(text: str) -> str:
    return await report(text)


@pytest.fixture(autouse=True)
def _clean() -> None:
    CALLS.clear()
    BROKEN.clear()


@pytest.fixture(params=["file", "memory", "postgres"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    if request.param == "file":
        opened = holdfast.open(tmp_path / "runs.db", artifacts=tmp_path / "artifacts")
    else:
        opened = holdfast.open(":memory:" if request.param == "memory" else request.getfixturevalue("url"))
    with opened:
        yield opened


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


class TestCoreModels:
    """Core Models"""

    @pytest.mark.parametrize("status", STATUSES)
    def test_every_status_of_a_state_can_be_saved_and_found(self, hf: Holdfast, status: str) -> None:
        """A saved state has one of eight statuses, and is found by it."""
        hf.history("r").commit({"n": 1}, status=status)
        assert hf.history("r").head.status == status
        assert [run.id for run in hf.runs(status=status)] == ["r"]

    def test_unknown_status_is_refused(self, hf: Holdfast) -> None:
        """Unlike the original, an unknown status is refused before anything is written, whatever its type."""
        for status in ("PAUSED ", "nonsense", 7, ""):
            with pytest.raises(holdfast.InvalidCall):
                hf.history("r").commit({}, status=status)  # type: ignore[arg-type]
        assert hf.runs() == []

    def test_replay_modes_are_normal_validate_and_republish(self, hf: Holdfast) -> None:
        """A resume replays recorded results, runs them again to compare, or publishes them again; another mode is
        refused."""
        hf.run(pipeline, "kelp", run_id="r")
        assert hf.resume("r").result == "done"
        assert hf.resume("r", mode="validate").differences == ()
        hf.resume("r", mode="republish")
        with pytest.raises(holdfast.InvalidCall):
            hf.resume("r", mode="sometimes")

    def test_metadata_has_tags_a_description_and_values(self, hf: Holdfast) -> None:
        """A state carries tags, a note, the name of its author, and values of any kind as annotations."""
        hf.history("r").commit(
            {}, tags=["a", "b"], note="why", actor="ana", annotations={"pipeline": "p", "cost": 0.5}
        )
        head = hf.history("r").head
        assert (sorted(head.tags), head.note, head.actor) == (["a", "b"], "why", "ana")
        assert head.annotations == {"pipeline": "p", "cost": 0.5}

    def test_older_formats_are_read_and_newer_ones_refused(self, place: Path) -> None:
        """A store of every earlier format opens, and one of a newer format is refused unchanged."""
        formats = sorted(FORMATS.glob("format-*.sqlite"))
        assert len(formats) >= 6
        for file in formats:
            shutil.copy(file, place)
            with holdfast.open(place) as hf:
                assert hf.runs()
                assert hf.verify()
            place.unlink()
        with holdfast.open(place):
            pass
        with Database(place) as database:
            database.execute("PRAGMA user_version = 999")
        before = place.read_bytes()
        with pytest.raises(holdfast.IncompatibleFormat, match="upgrade"):
            holdfast.open(place)
        assert place.read_bytes() == before

    def test_snapshot_of_a_newer_schema_is_refused(self, hf: Holdfast) -> None:
        """A snapshot document names its format and its number; one with a higher number is not imported."""
        hf.history("r").commit({"n": 1})
        document = json.loads(json.dumps(hf.history("r").export()))
        assert (document["format"], document["number"]) == ("holdfast.snapshot", 1)
        with pytest.raises(holdfast.HoldfastError):
            hf.import_snapshot({**document, "number": 99}, run_id="new")
        with pytest.raises(holdfast.NotFound):
            hf.get("new")


class TestBackendAbstractions:
    """Backend Abstractions"""

    def test_one_program_runs_on_every_store(self, hf: Holdfast) -> None:
        """A file, memory and PostgreSQL give the same results to the same program."""
        run = hf.run(pipeline, "kelp grows")
        assert (run.result, run.state["embedding"].load()) == ("done", [1.0, 2.0, 3.0])

    def test_failures_are_typed(self, hf: Holdfast) -> None:
        """A missing, invalid or conflicting thing raises an error of its own class, which has a stable code."""
        with pytest.raises(holdfast.NotFound) as missing:
            hf.get("nothing")
        with pytest.raises(holdfast.InvalidReference):
            hf.history("../../etc/passwd").commit({})
        with pytest.raises(holdfast.NotFound):
            hf.artifact("00" * 32)
        assert missing.value.code == "not_found"


class TestFileSystemImplementations:
    """FileSystem Implementations"""

    def test_artifact_id_is_the_hash_of_the_content(self, hf: Holdfast) -> None:
        """Equal values have equal digests, so they are stored once, whatever run they are in."""
        for number in range(3):
            hf.history(f"r{number}").commit({"e": artifact([1.0, 2.0, 3.0])})
        assert hf.stats().artifacts == 1
        assert artifact([1.0, 2.0]).digest != artifact([1, 2]).digest

    def test_artifacts_are_not_executed_when_they_are_read(self, hf: Holdfast, tmp_path: Path) -> None:
        """Unlike the original, reading an artifact runs no code of its content, which may come from an attacker."""

        class Attack:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(tmp_path / "hacked"),)

        hf.history("r").commit({"a": artifact(pickle.dumps(Attack()))})
        found = hf.history("r").head.state["a"]
        assert found.read().startswith(b"\x80")
        with pytest.raises(holdfast.InvalidCall):
            found.load()
        assert not (tmp_path / "hacked").exists()

    def test_object_of_an_unknown_class_is_refused_when_it_is_stored(self, hf: Holdfast) -> None:
        """Unlike the original, an object that could not be read elsewhere is refused with its place."""
        with pytest.raises(holdfast.UnsupportedValue, match="register"):
            artifact([1, threading.Lock()])
        with pytest.raises(holdfast.UnsupportedValue) as found:
            hf.history("r").commit({"tools": [{"lock": threading.Lock()}]})
        assert "tools[0].lock" in str(found.value)

    def test_value_changed_after_it_was_stored_stays_as_it_was(self, hf: Holdfast) -> None:
        """Unlike the original, an object that is changed after it became an artifact changes neither it nor its id."""
        vector = [1.0]
        stored = artifact(vector)
        vector.append(2.0)
        hf.history("r").commit({"e": stored})
        assert hf.history("r").head.state["e"].load() == [1.0]
        hf.history("r").head.state["e"].load().append(9.0)
        assert hf.history("r").head.state["e"].load() == [1.0]
        assert hf.verify()

    def test_damaged_artifact_is_not_served(self, tmp_path: Path) -> None:
        """Unlike the original, a file of an artifact that was changed is detected before its content is used."""
        folder = tmp_path / "contents"
        with holdfast.open(tmp_path / "runs.db", artifacts=folder) as hf:
            hf.history("r").commit({"e": artifact([1.0] * 100)})
            (file,) = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 50]
            content = file.read_bytes()
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            with pytest.raises(holdfast.HoldfastError):
                hf.history("r").head.state["e"].load()
            assert not hf.verify()

    def test_saves_of_two_writers_are_both_kept(self, hf: Holdfast) -> None:
        """Unlike the original, two writers that save at the same moment lose nothing: each save is a version."""
        hf.history("r").commit({})

        def save(number: int) -> None:
            with hf.history("r").edit(step=f"s{number}") as state:
                state[f"key-{number}"] = number

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(save, range(24)))
        assert holdfast.thaw(hf.history("r").head.state).keys() == {f"key-{number}" for number in range(24)}
        assert hf.history("r").head.number == 25

    def test_save_based_on_an_old_state_is_refused_on_request(self, hf: Holdfast) -> None:
        """Unlike the original, a save can require that nothing was saved since the state was read."""
        seen = hf.history("r").commit({"n": 1})
        hf.history("r").commit({"n": 2})
        with pytest.raises(holdfast.StaleVersion):
            hf.history("r").commit({"n": 3}, expected=seen)
        assert hf.history("r").head.state["n"] == 2

    def test_interrupted_save_leaves_the_last_complete_state(self, hf: Holdfast) -> None:
        """Unlike the original, a save that fails half-way leaves no half-written state."""
        hf.history("r").commit({"n": 1})

        class Fails(dict[str, int]):
            def copy(self) -> Any:
                raise OSError("the disk is full")

        with pytest.raises(holdfast.UnsupportedValue):
            hf.history("r").commit({"n": 2, "bad": Fails(a=1)})
        assert hf.history("r").head.number == 1
        assert hf.verify()


class TestExecutionStateEnhancements:
    """ExecutionState Enhancements"""

    def test_checkpoint_is_saved_and_loaded_by_id(self, hf: Holdfast) -> None:
        """A state is saved under an id and read by that id, in this process and in others."""
        hf.history("state-1").commit({"step1": "completed"}, status="paused")
        assert hf.history("state-1").head.state == {"step1": "completed"}
        assert hf.get("state-1").status == "paused"

    def test_state_becomes_a_document_and_comes_back(self, hf: Holdfast) -> None:
        """A state is written as a document and read from it, with the same values and types."""
        value = {"n": 1, "x": 1.0, "t": (1, 2), "none": None, "b": b"\0\xff", "keys": {1: "one", "1": "text"}}
        hf.history("r").commit(value)
        document = json.loads(json.dumps(hf.history("r").export()))
        restored = hf.import_snapshot(document, run_id="copy")
        assert repr(holdfast.thaw(restored.state)) == repr(value)

    def test_hostile_state_ids_are_refused(self, hf: Holdfast) -> None:
        """Unlike the original, an id never names a file, so it cannot reach outside of the store."""
        for run_id in ("../x", "a/../b", "\0", "", "x" * 500, "a\nb"):
            with pytest.raises(holdfast.InvalidCall):
                hf.history(run_id).commit({})
        assert hf.runs() == []

    def test_completed_steps_are_skipped(self, hf: Holdfast) -> None:
        """A run that failed continues after its completed steps, which are not run again."""
        BROKEN.add("rank")
        run = hf.run(pipeline, "kelp", run_id="r", raises=False)
        assert run.status == "failed"
        BROKEN.clear()
        assert hf.resume("r").result == "done"
        assert CALLS == ["embed", "rank", "rank"]


class TestHistorySetEnhancements:
    """HistorySet Enhancements"""

    def test_result_of_a_step_is_found_by_its_address(self, hf: Holdfast) -> None:
        """The journal of versions gives each completed step, its address and its result."""
        hf.run(pipeline, "kelp grows", run_id="r")
        found = {version.address: version.result for version in hf.history("r").versions(kind="step")}
        assert found == {"rh_embed": [4.0, 5.0], "rh_rank": None}

    def test_result_that_is_none_counts_as_completed(self, hf: Holdfast) -> None:
        """Unlike the original, a step that returned None is completed and is not run again."""
        hf.run(pipeline, "kelp", run_id="r")
        hf.rollback("r", to=3, resume=False)
        hf.resume("r")
        assert CALLS.count("rank") == 1


class TestExecutionEventEnhancements:
    """ExecutionEvent Enhancements"""

    def test_event_of_a_step_has_version_address_and_duration(self, hf: Holdfast) -> None:
        """Each completed step is an event with its version, its address and how long it took."""
        hf.run(pipeline, "kelp", run_id="r")
        events = [event for event in hf.history("r").events() if event.kind == "step.completed"]
        assert [(event.step, event.version) for event in events] == [("rh_embed", 2), ("rh_rank", 3)]
        assert [hf.history("r").at(event.version or 0).address for event in events] == ["rh_embed", "rh_rank"]
        assert all(0 <= event.data["took"] < 3600 for event in events)

    def test_replayed_events_are_published_only_on_request(self, hf: Holdfast) -> None:
        """A resume publishes no event for a replayed step, unless it is asked to."""
        BROKEN.add("rank")
        hf.run(pipeline, "kelp", run_id="r", raises=False)
        BROKEN.clear()
        assert hf.resume("r").status == "completed"
        hf.resume("r", mode="validate")
        assert "step.replayed" not in [event.kind for event in hf.history("r").events()]
        hf.resume("r", mode="republish")
        replayed = [event.step for event in hf.history("r").events() if event.kind == "step.replayed"]
        assert replayed == ["rh_embed", "rh_rank"]


class TestBasicSaveRestore:
    """Basic Save/Restore"""

    def test_storage_and_artifacts_come_back(self, hf: Holdfast) -> None:
        """Values and artifacts of a saved state are read back equal, and the work continues."""
        with hf.history("my").edit(step="one", tags=["checkpoint"]) as state:
            state["step1"] = "completed"
            state["embedding"] = artifact([1.0, 2.0, 3.0])
        restored = hf.history("my")
        assert restored.head.state["step1"] == "completed"
        assert restored.head.state["embedding"].load() == [1.0, 2.0, 3.0]
        with restored.edit(step="two") as state:
            state["step2"] = "completed"
        assert [version.step for version in restored.versions()] == ["two", "one"]

    def test_state_is_restored_by_another_process_opening_the_store(self, place: Path) -> None:
        """A state that was saved is there when the store is opened again."""
        with holdfast.open(place) as first:
            first.history("r").commit({"e": artifact([1.0])}, status="paused")
        with holdfast.open(place) as second:
            assert second.history("r").head.state["e"].load() == [1.0]
            assert second.get("r").status == "paused"


class TestStateQuerying:
    """State Querying"""

    def test_states_are_listed_by_tags_status_and_pipeline(self, hf: Holdfast) -> None:
        """Runs are found by all of several tags, by status and by workflow, each alone and together."""
        hf.run(pipeline, "a", run_id="a", tags=["production", "eu"])
        hf.run(pipeline, "b", run_id="b", tags=["production"])
        hf.history("manual").commit({}, tags=["production"], status="paused")
        wanted: list[tuple[dict[str, Any], set[str]]] = [
            ({"tags": ["production"]}, {"a", "b", "manual"}),
            ({"tags": ["production", "eu"]}, {"a"}),
            ({"workflow": "rh_agent_workflow"}, {"a", "b"}),
            ({"status": "paused"}, {"manual"}),
            ({"tags": ["production"], "status": "completed", "workflow": "rh_agent_workflow"}, {"a", "b"}),
            ({"tags": ["nothing"]}, set()),
        ]
        for filters, expected in wanted:
            assert {run.id for run in hf.runs(**filters)} == expected, filters

    def test_states_saved_by_hand_are_listed_by_the_name_of_their_pipeline(self, hf: Holdfast) -> None:
        """A state that no workflow made has metadata, such as the name of its pipeline, and is found by an index."""
        hf.history("a", meta={"pipeline": "my_pipeline"}).commit({}, tags=["checkpoint"], status="paused")
        hf.history("b", meta={"pipeline": "other"}).commit({}, tags=["checkpoint"], status="paused")
        hf.history("c", meta={"pipeline": "my_pipeline"}).commit({}, tags=["checkpoint"])
        assert {run.id for run in hf.runs(meta={"pipeline": "my_pipeline"})} == {"a", "c"}
        found = hf.runs(meta={"pipeline": "my_pipeline"}, tags=["checkpoint"], status="paused")
        assert [run.id for run in found] == ["a"]
        for wrong in ({"pipeline": ["my_pipeline"]}, {"": 1}, "my_pipeline"):
            with pytest.raises(holdfast.InvalidCall):
                hf.runs(meta=wrong)  # type: ignore[arg-type]

    def test_list_is_paged_and_reads_no_state(self, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
        """A list has pages of a size that the caller chooses, newest first, without gaps, and reads no state."""
        for number in range(7):
            hf.history(f"r{number}").commit({"large": os.urandom(40_000).hex()})
        asked: list[str] = []

        def count(name: str) -> None:
            real = getattr(hf._store, name)

            def counted(*args: Any, **more: Any) -> Any:
                asked.append(name)
                return real(*args, **more)

            monkeypatch.setattr(hf._store, name, counted)

        for name in ("versions", "packs", "pack_bytes", "block", "artifact_pieces"):
            count(name)
        first = hf.runs(limit=3)
        second = hf.runs(limit=3, after=first[-1].id)
        assert asked == []
        assert [run.id for run in (*first, *second)] == [f"r{number}" for number in (6, 5, 4, 3, 2, 1)]

    def test_wrong_filters_are_refused(self, hf: Holdfast) -> None:
        """Unlike the original, a misspelt status or a tag in place of a list is an error, not an empty list."""
        for filters in ({"status": "RUNING"}, {"tags": "production"}, {"limit": 0}):
            with pytest.raises(holdfast.InvalidCall):
                hf.runs(**filters)


class TestStateComparison:
    """State Comparison"""

    def test_difference_names_changed_storage_new_events_and_new_artifacts(self, hf: Holdfast) -> None:
        """A difference lists the changed values with old and new, the events since, and the artifacts that came or
        went."""
        log = hf.history("r")
        old, kept = artifact([1.0], "old"), artifact([2.0], "kept")
        log.commit({"n": 1, "same": True, "old": old, "kept": kept})
        log.add_event("agent.woke")
        log.commit({"n": 2, "same": True, "kept": kept, "new": artifact([3.0], "new")})
        found = hf.diff("r@1", "r@2")
        assert found.fields()["state.n"] == {"from": 1, "to": 2}
        assert "state.same" not in found.fields()
        assert [each.name for each in found.new_artifacts] == ["new"]
        assert [each.name for each in found.removed_artifacts] == ["old"]
        assert [event.kind for event in found.new_events] == ["agent.woke", "version.saved"]

    def test_equal_states_have_no_difference(self, hf: Holdfast) -> None:
        """Two states with equal values, types and order do not differ; 1 and 1.0 and True do."""
        log = hf.history("r")
        for value in (1, 1, 1.0, True):
            log.commit({"n": value})
        assert not hf.diff("r@1", "r@2").changes
        assert hf.diff("r@2", "r@3").changes
        assert hf.diff("r@3", "r@4").changes

    def test_states_of_two_runs_are_compared(self, hf: Holdfast) -> None:
        """A difference may be between two runs, and compares their steps side by side."""
        hf.run(pipeline, "kelp", run_id="a")
        hf.run(pipeline, "rock weed", run_id="b")
        pairs = {pair.name: pair.same for pair in hf.compare("a", "b").steps}
        assert pairs["rh_rank"] is True
        assert pairs["rh_embed"] is False


class TestSmartReplay:
    """Phase 2 - Smart Replay"""

    def test_skipped_step_returns_its_recorded_result(self, hf: Holdfast) -> None:
        """A replayed step returns what it returned then, and the state is what it left then."""
        hf.run(pipeline, "kelp grows", run_id="r")
        hf.rollback("r", to=2, resume=False)
        assert hf.resume("r").result == "done"
        assert CALLS == ["embed", "rank", "rank"]
        assert hf.get("r").state["embedding"].load() == [1.0, 2.0, 3.0]

    def test_step_with_other_arguments_is_not_skipped(self, hf: Holdfast) -> None:
        """Unlike the original, a recorded result is never returned for other arguments, of a step or of a run."""
        asked = ["kelp"]
        with isolated_definitions():

            @workflow(name="rh_changing")
            def changing() -> None:
                embed(asked[0])
                rank([1.0])

            BROKEN.add("rank")
            hf.run(changing, run_id="r", raises=False)
            asked[:] = ["tide"]
            BROKEN.clear()
            with pytest.raises(holdfast.ReplayDiverged):
                hf.resume("r")
            assert CALLS == ["embed", "rank"]
            asked[:] = ["kelp"]
            assert hf.resume("r").status == "completed"
        hf.run(pipeline, "kelp", run_id="s")
        with pytest.raises(holdfast.RunMismatch):
            hf.run(pipeline, "tide", run_id="s", if_exists="resume")

    def test_asynchronous_steps_are_replayed(self, hf: Holdfast) -> None:
        """Asynchronous steps are recorded and replayed like others."""

        async def main() -> list[Any]:
            first = await hf.arun(async_pipeline, "kelp", run_id="r")
            second = await hf.arun(async_pipeline, "kelp", run_id="r", if_exists="resume")
            return [first.result, second.result]

        assert asyncio.run(main()) == ["on kelp", "on kelp"]
        assert CALLS == ["report"]


class TestResultStorage:
    """Result Storage in History"""

    def test_result_survives_the_process(self, place: Path) -> None:
        """Results are in the store as soon as a step has ended, with their types."""
        with holdfast.open(place) as hf:
            hf.run(pipeline, "kelp", run_id="r")
        with holdfast.open(place) as hf:
            assert hf.history("r").at(2).result == [4.0]
            assert type(hf.history("r").at(2).result[0]) is float

    def test_result_that_cannot_be_stored_fails_its_step(self, hf: Holdfast) -> None:
        """Unlike the original, a result that could not be read back fails the step that returned it, not a later
        replay."""
        with isolated_definitions():

            @step(name="rh_client")
            def client() -> Any:
                return threading.Lock()

            @workflow(name="rh_clients")
            def clients() -> None:
                client()

            run = hf.run(clients, raises=False)
        assert isinstance(run.error, holdfast.UnsupportedValue)


class TestResumeFromAddress:
    """Implement resume_from_address Logic"""

    def test_steps_from_an_address_on_run_again(self, hf: Holdfast) -> None:
        """From a given address on, everything runs again; what was before is replayed."""
        hf.run(pipeline, "kelp", run_id="r")
        hf.resume("r", from_address="rh_rank")
        assert CALLS == ["embed", "rank", "rank"]
        hf.resume("r", from_address="rh_embed")
        assert CALLS[3:] == ["embed", "rank"]
        hf.resume("r")
        assert len(CALLS) == 5, "the address counts for one resume"

    def test_earlier_results_are_kept(self, hf: Holdfast) -> None:
        """Unlike the original, running again from an address deletes nothing: it starts another timeline."""
        hf.run(pipeline, "kelp", run_id="r")
        hf.resume("r", from_address="rh_rank")
        assert [line.number for line in hf.history("r").timelines()] == [1, 2]
        assert hf.history("r").at(3).step == "rh_rank"

    def test_unknown_address_is_refused(self, hf: Holdfast) -> None:
        """An address at which nothing was recorded is an error, and nothing runs."""
        hf.run(pipeline, "kelp", run_id="r")
        with pytest.raises(holdfast.NotFound):
            hf.resume("r", from_address="rh_rnak")
        assert CALLS == ["embed", "rank"]


class TestSelectivePublishing:
    """Verify event bus selective publishing"""

    def test_subscriber_gets_only_what_runs(self, hf: Holdfast) -> None:
        """A subscriber sees completed steps once, although they are replayed by a resume."""
        seen: list[tuple[str, str | None]] = []
        done = threading.Event()

        def hear(event: holdfast.Event) -> None:
            seen.append((event.kind, event.step))
            if event.kind == "run.completed":
                done.set()

        BROKEN.add("rank")
        with hf.subscribe(hear, kinds=["step.completed", "run.completed"]):
            hf.run(pipeline, "kelp", run_id="r", raises=False)
            BROKEN.clear()
            hf.resume("r")
            assert done.wait(60)
        assert seen == [
            ("step.completed", "rh_embed"),
            ("step.completed", "rh_rank"),
            ("run.completed", None),
        ]


class TestArchitectureDecisions:
    """Architecture Decisions Made"""

    def test_artifacts_are_separate_from_states(self, hf: Holdfast) -> None:
        """A state holds only the hash of an artifact, so its size does not depend on the artifact's."""
        version = hf.history("r").commit({"e": artifact([number / 3 for number in range(50_000)])})
        assert version.size < 1_000
        assert hf.stats().artifact_bytes > 100_000

    def test_artifact_that_a_version_needs_is_not_collected(self, hf: Holdfast) -> None:
        """Unlike the original, artifacts that nothing refers to can be removed, and no others are."""
        hf.history("a").commit({"e": artifact([1.0])})
        hf.history("b").commit({"e": artifact([1.0]), "f": artifact([2.0])})
        hf.delete("b")
        assert hf.gc(grace=0).artifacts == 1
        assert hf.history("a").head.state["e"].load() == [1.0]

    def test_subscribers_are_not_part_of_a_state(self, hf: Holdfast) -> None:
        """Subscribers read the journal, so a restored state needs none of them, and one that raises harms no run."""

        def hear(event: holdfast.Event) -> None:
            raise RuntimeError("a subscriber with a defect")

        with hf.subscribe(hear):
            assert hf.run(pipeline, "kelp").result == "done"


class TestStorageLayout:
    """Storage Layout"""

    def test_store_is_a_file_and_a_folder(self, tmp_path: Path) -> None:
        """States are in one database file, artifacts in a folder under the hash of their content."""
        with holdfast.open(tmp_path / "runs.db", artifacts=tmp_path / "artifacts") as hf:
            made = artifact([1.0, 2.0, 3.0])
            hf.history("r").commit({"e": made})
            names = [path.name for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]
            assert any(made.digest[2:] in name for name in names), names
            assert hf.artifact(made.digest).load() == [1.0, 2.0, 3.0]

    def test_files_are_private(self, tmp_path: Path) -> None:
        """Unlike the original, states and artifacts are readable by their owner alone."""
        with holdfast.open(tmp_path / "runs.db", artifacts=tmp_path / "artifacts") as hf:
            hf.history("r").commit({"e": artifact([1.0])})
            if os.name == "posix":
                for path in (tmp_path / "runs.db", *(tmp_path / "artifacts").rglob("*")):
                    assert path.stat().st_mode & 0o077 == 0, path


class TestKnownIssues:
    """Known Issues / TODOs"""

    def test_every_step_is_saved_without_a_call(self, hf: Holdfast) -> None:
        """Unlike the original, each completed step is saved by itself."""
        run = hf.run(pipeline, "kelp")
        assert [version.kind for version in run.history().versions()] == ["final", "step", "step", "initial"]

    def test_bulk_of_unchanged_state_is_not_written_again(self, hf: Holdfast) -> None:
        """Unlike the original, a save writes what has changed and not the whole state."""
        log = hf.history("r")
        log.commit({"messages": [{"n": number, "text": "word " * 20} for number in range(2_000)], "n": 0})
        with log.edit() as state:
            state["n"] = 1
        assert log.head.size < log.at(1).size / 50

    def test_store_of_an_older_schema_is_migrated_and_continued(self, place: Path) -> None:
        """Unlike the original, a store of an older schema is migrated when it is opened, and its states continue."""
        shutil.copy(FORMATS / "format-1.sqlite", place)
        with holdfast.open(place) as hf:
            run = next(run for run in hf.iter_runs() if run.workflow is None and run.status == "running")
            before = hf.history(run.id).head
            after = hf.history(run.id).commit({"migrated": True}, expected=before)
            assert (after.parent, after.number > before.number) == (before.number, True)
            assert hf.version(f"{run.id}@{before.number}").state == before.state
            assert hf.verify()
