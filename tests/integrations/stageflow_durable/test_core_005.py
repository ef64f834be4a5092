"""CORE-005: snapshot versioning and rollback integrity of Stageflow pipelines. Five hypotheses, each a class.

The seed found in Stageflow's own snapshots no versions, no rollback beyond serializing by hand, and no checkpoints to
compare; and asked five questions. The answers hold for a pipeline that is made durable by one line,

    flow = durable(pipeline, hf, "run id")

on SQLite and on PostgreSQL. The criterion of success that the seed states is quoted at each class.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import core_005_pipelines
import pytest
from core_005_pipelines import executed, rich, writing
from stageflow.api import Pipeline, StageContext, StageKind, StageOutput
from stageflow.context import ContextSnapshot
from stageflow.pipeline.dag import UnifiedPipelineCancelled, UnifiedStageExecutionError
from stageflow.stages.context import PipelineContext

import holdfast
from holdfast import Holdfast
from holdfast.integrations.stageflow import durable, results_of, snapshot_of

pytest_plugins = ["postgres_fixtures"]


@pytest.fixture(autouse=True)
def _nothing_executed() -> None:
    executed.clear()


class TestHypothesis1VersionTracking:
    """Can we track snapshot versions across pipeline stages?

    *Ability to identify and compare snapshot versions.*
    """

    def test_every_stage_creates_a_numbered_version(self, hf: Holdfast) -> None:
        asyncio.run(durable(writing(), hf, "article").run(input_text="kelp"))
        versions = hf.history("article").versions()[::-1]
        assert [(version.number, version.step) for version in versions] == [
            (1, None),
            (2, "research"),
            (3, "draft"),
            (4, "review"),
            (5, "publish"),
        ]
        assert [len(results_of(version)) for version in versions] == [0, 1, 2, 3, 4]
        assert len({version.hash for version in versions}) == 5

    def test_head_is_the_active_version(self, hf: Holdfast) -> None:
        flow = durable(writing(), hf, "article")
        asyncio.run(flow.run(input_text="kelp"))
        assert hf.history("article").head.number == 5
        flow.rollback(to="draft")
        assert (hf.history("article").head.number, hf.history("article").timelines()[-1].number) == (3, 2)

    def test_versions_are_compared(self, hf: Holdfast) -> None:
        asyncio.run(durable(writing(), hf, "article").run(input_text="kelp"))
        (change,) = hf.diff("article@2", "article@3").changes
        assert change.path == ("stages", "draft")
        assert hf.history("article").blame("stages.draft.data.text").version.step == "draft"

    def test_stage_cannot_change_the_snapshot_unnoticed(self, hf: Holdfast, caplog: Any) -> None:
        """The seed's first risk: *silent state corruption, snapshot changes without detection*."""
        seen = []

        async def sneaky(ctx: StageContext) -> None:
            ctx.snapshot.metadata["limits"]["cost"] = 10**6

        async def innocent(ctx: StageContext) -> None:
            seen.append(ctx.snapshot.metadata)

        pipeline = (
            Pipeline(name="p")
            .with_stage("sneaky", sneaky, StageKind.WORK)
            .with_stage("innocent", innocent, StageKind.WORK, after="sneaky")
        )
        with caplog.at_level(logging.WARNING, "holdfast"):
            asyncio.run(durable(pipeline, hf, "r").run(metadata={"limits": {"cost": 5}}))
        assert seen == [{"limits": {"cost": 5}}]
        history = hf.history("r")
        assert [snapshot_of(history.at(number)).metadata for number in (1, 2, 3)] == seen * 3
        (warned,) = [record.getMessage() for record in caplog.records if record.name == "holdfast"]
        assert "stage 'sneaky' changed its copy of the context" in warned
        assert "return it in the output" in warned


class TestHypothesis2RollbackIntegrity:
    """Can we restore to previous snapshot states?

    *Successfully restore to previous snapshot state*, whichever way the pipeline ended.
    """

    def check(self, hf: Holdfast, trouble: list[Any]) -> None:
        """Roll back to `research`: the state is as it was, and the pipeline completes from there."""
        history = hf.history("article")
        then = history.at(2).state
        flow = durable(writing(trouble=lambda: trouble[0]), hf, "article")
        flow.rollback(to="research", reason="another try")
        assert history.head.number == 2
        assert history.head.state == then
        assert snapshot_of(history.head).input_text == "kelp"
        executed.clear()
        trouble[0] = None
        results = asyncio.run(flow.run())
        assert executed == ["draft", "review", "publish"]
        assert results["research"].data == {"facts": ["kelp grows", 2**80]}
        assert history.head.status == "completed"
        assert history.head.timeline == 2
        assert history.verify().ok

    def fail(self, hf: Holdfast, trouble: list[Any], **given: Any) -> None:
        flow = durable(writing(trouble=lambda: trouble[0]), hf, "article")
        with pytest.raises((UnifiedStageExecutionError, UnifiedPipelineCancelled)):
            asyncio.run(flow.run(PipelineContext.create(input_text="kelp", **given)))

    @pytest.mark.parametrize(
        "mode",
        [
            ConnectionError("no answer"),
            StageOutput.fail("rude words", {"words": 3}),
            StageOutput.cancel("not today"),
            {"not": object()},
        ],
        ids=["raised", "failed", "cancelled", "not storable"],
    )
    def test_snapshot_is_intact_after_an_unsuccessful_stage(self, hf: Holdfast, mode: Any) -> None:
        trouble = [mode]
        self.fail(hf, trouble)
        # Partial results survived the failure.
        assert list(results_of(hf.history("article").head))[:2] == ["research", "draft"]
        self.check(hf, trouble)

    def test_snapshot_is_intact_after_a_timeout(self, hf: Holdfast) -> None:
        flow = durable(writing(trouble=None), hf, "article")
        slow = Pipeline(name="writing", stages=dict(flow.stages))

        async def stuck(ctx: StageContext) -> None:
            await asyncio.Event().wait()

        slow = slow.with_stage("review", stuck, StageKind.GUARD, after="draft")
        context = PipelineContext.create(input_text="kelp")
        times = {"review": 20}
        context.add_before_stage_start_hook(
            lambda name, *_: context.data.update(_timeout_ms=times.get(name, 30_000))
        )
        with pytest.raises(UnifiedStageExecutionError, match="timed out"):
            asyncio.run(durable(slow, hf, "article").run(context))
        self.check(hf, [None])

    def test_snapshot_is_intact_after_success(self, hf: Holdfast) -> None:
        asyncio.run(durable(writing(), hf, "article").run(input_text="kelp"))
        self.check(hf, [None])

    def test_snapshot_is_intact_after_a_kill(self, hf: Holdfast, where: str) -> None:
        """kill -9 during `review`."""
        killed = subprocess.run([sys.executable, core_005_pipelines.__file__, where], timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert list(results_of(hf.history("article").head)) == ["research", "draft"]
        self.check(hf, [None])

    def test_snapshot_is_intact_after_a_rollback(self, hf: Holdfast) -> None:
        """Roll back, continue, and roll back to the abandoned timeline: nothing was deleted."""
        flow = durable(writing(), hf, "article")
        asyncio.run(flow.run(input_text="kelp"))
        first = hf.history("article").at(5).state
        flow.rollback(before="draft")
        second = asyncio.run(flow.run())
        assert second["draft"].data["try"] == 2
        history = hf.history("article")
        history.rollback(to=5)
        assert history.head.state == first
        executed.clear()
        assert asyncio.run(flow.run())["draft"].data["try"] == 1
        assert executed == []

    def test_abandoned_timeline_does_not_leak(self, hf: Holdfast) -> None:
        flow = durable(writing(), hf, "article")
        asyncio.run(flow.run(input_text="kelp"))
        flow.rollback(before="draft")
        assert list(results_of(hf.history("article").head)) == ["research"]


class TestHypothesis3SerializationSafety:
    """Are snapshots correctly serialized and deserialized under load?

    *100 % round-trip preservation of snapshot data.*
    """

    RUNS = 100

    def test_concurrent_snapshots_are_read_back_by_another_process(self, hf: Holdfast, where: str) -> None:
        seen: dict[int, ContextSnapshot[Any]] = {}

        async def look(ctx: StageContext) -> dict[str, Any]:
            number = int(str(ctx.snapshot.input_text).split()[1])
            seen[number] = ctx.snapshot
            return {"number": number, "huge": 7**number, "at": ctx.snapshot.created_at}

        pipeline = (
            Pipeline(name="load")
            .with_stage("look", look, StageKind.WORK)
            .with_stage("again", look, StageKind.WORK, after="look")
        )

        async def main() -> list[Any]:
            flows = (durable(pipeline, hf, f"r{number}").run(**rich(number)) for number in range(self.RUNS))
            return await asyncio.gather(*flows)

        results = asyncio.run(main())
        with holdfast.open(where) as other:
            for number in range(self.RUNS):
                for version in other.history(f"r{number}").versions():
                    found = snapshot_of(version)
                    assert found == seen[number]
                    assert repr(found) == repr(seen[number])
                assert results_of(other.history(f"r{number}").head) == results[number]
            assert other.verify().ok

    def test_values_lost_by_stageflow_serialization_are_read_back(self, hf: Holdfast) -> None:
        """A datetime in metadata is not JSON, and nested dicts are shared with code that changes them."""
        given = {"at": datetime(2024, 1, 1, tzinfo=UTC), "nested": {"n": 1}}
        context = PipelineContext.create(metadata=given)
        with pytest.raises(TypeError, match="not JSON serializable"):
            json.dumps(context.to_snapshot().to_dict())
        own: ContextSnapshot[Any] = ContextSnapshot.from_dict(context.to_snapshot().to_dict())
        asyncio.run(durable(writing(), hf, "r").run(context))
        given["nested"]["n"] = 2  # type: ignore[index]
        assert own.metadata["nested"] == {"n": 2}
        assert snapshot_of(hf.history("r").head).metadata == {
            "at": datetime(2024, 1, 1, tzinfo=UTC),
            "nested": {"n": 1},
        }


class TestHypothesis4ConcurrencySafety:
    """Can multiple stages safely access the same snapshot version?

    *No data corruption under parallel access.*
    """

    def test_parallel_stages_see_one_snapshot_and_lose_nothing(self, hf: Holdfast) -> None:
        seen = []

        async def part(ctx: StageContext) -> dict[str, Any]:
            seen.append(ctx.snapshot)
            await asyncio.sleep(0)
            return {"name": ctx.stage_name, "words": ctx.snapshot.metadata["words"]}

        pipeline = Pipeline(name="wide")
        for number in range(50):
            pipeline = pipeline.with_stage(f"part{number}", part, StageKind.WORK)
        results = asyncio.run(durable(pipeline, hf, "wide").run(metadata={"words": ["kelp", {"n": 1}]}))
        assert all(snapshot == seen[0] for snapshot in seen)
        history = hf.history("wide")
        assert [version.number for version in history.versions()] == list(range(51, 0, -1))
        assert results_of(history.head) == results
        assert {output.data["name"] for output in results.values()} == set(pipeline.stages)
        assert history.verify().ok

    def test_concurrent_readers_see_whole_versions(self, hf: Holdfast) -> None:
        """Threads read the head and old versions while the pipeline is recorded."""
        flow = durable(writing(), hf, "article")
        asyncio.run(flow.run(input_text="kelp"))
        stop, found = threading.Event(), []

        def read() -> None:
            while not stop.is_set():
                head = hf.history("article").head
                names = ["research", "draft", "review", "publish"]
                found.append(list(results_of(head)) == names[: len(results_of(head))])
                found.append(snapshot_of(hf.history("article").at(1)).input_text == "kelp")

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        for _ in range(5):
            flow.rollback(before="research")
            asyncio.run(flow.run())
        stop.set()
        for reader in readers:
            reader.join()
        assert found
        assert all(found)

    def test_second_execution_of_a_run_is_refused(self, hf: Holdfast) -> None:
        both = 0

        async def meet(ctx: StageContext) -> dict[str, Any]:
            nonlocal both
            both += 1
            mine = both
            while both < 2:
                await asyncio.sleep(0)
            return {"by": mine}

        pipeline = Pipeline(name="p").with_stage("meet", meet, StageKind.WORK)

        async def main() -> list[Any]:
            flows = [durable(pipeline, hf, "r").run() for _ in range(2)]
            return await asyncio.gather(*flows, return_exceptions=True)

        ended = asyncio.run(main())
        (refused,) = [end for end in ended if isinstance(end, UnifiedStageExecutionError)]
        (kept,) = [end for end in ended if not isinstance(end, Exception)]
        assert isinstance(refused.original, holdfast.LeaseLost)
        assert results_of(hf.history("r").head) == kept


class TestHypothesis5MemoryManagement:
    """How does snapshot memory grow over long sessions?

    *Predictable memory growth under load.* On disk: by what is new. In the process: not at all.
    """

    def test_snapshot_shared_by_versions_is_stored_once(self, hf: Holdfast) -> None:
        async def small(ctx: StageContext) -> dict[str, Any]:
            return {"stage": ctx.stage_name}

        pipeline = Pipeline(name="long")
        for number in range(100):
            after = (f"s{number - 1}",) if number else ()
            pipeline = pipeline.with_stage(f"s{number}", small, StageKind.WORK, dependencies=after)
        document = {f"page {number}": os.urandom(50).hex() * 10 for number in range(100)}
        asyncio.run(durable(pipeline, hf, "long").run(metadata={"document": document}))
        sizes = [version.size for version in hf.history("long").versions(limit=1000)[::-1]]
        assert sizes[0] > 5_000
        assert max(sizes[1:]) < 1_000
        # As a hundred snapshots it would be a hundred times the document; it is less than one.
        assert sum(sizes) < len(repr(document))

    def test_process_memory_does_not_grow_over_a_long_session(self, hf: Holdfast) -> None:
        """An agent with many turns on one run: each turn a rollback and two stages, and retention every ten
        turns."""
        flow = durable(writing(), hf, "session")
        asyncio.run(flow.run(input_text="kelp", metadata={"memory": ["x" * 1000] * 100}))
        hf.history("session").pin(3)

        def turns(count: int) -> int:
            for turn in range(count):
                flow.rollback(before="review")
                asyncio.run(flow.run())
                if turn % 10 == 9:
                    hf.history("session").prune(holdfast.Retention(last=7))
            executed.clear()
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            early = turns(20)
            late = turns(40)
        finally:
            tracemalloc.stop()
        assert late - early < 130_000
        assert hf.runs()[0].versions < 100
        assert hf.runs()[0].size < 500_000
