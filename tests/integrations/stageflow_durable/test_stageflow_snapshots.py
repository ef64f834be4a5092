"""A context's snapshot is read back exactly, from every version, whatever happened to it afterwards."""

from __future__ import annotations

import dataclasses
import datetime as dt
import zoneinfo
from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stageflow.api import Pipeline, StageContext, StageKind, StageOutput
from stageflow.context import ContextSnapshot, ExtensionBundle, Message, RoutingDecision, RunIdentity
from stageflow.context.conversation import Conversation
from stageflow.context.enrichments import DocumentEnrichment, Enrichments, MemoryEnrichment, ProfileEnrichment
from stageflow.core import StageArtifact, StageEvent, StageStatus
from stageflow.stages.context import PipelineContext
from stageflow_stages import Log, chain, fails, ok, run, stage

import holdfast
from holdfast import Holdfast, InvalidCall, ReplayDiverged, UnsupportedValue
from holdfast.integrations.stageflow import durable, results_of, snapshot_of
from holdfast.integrations.stageflow.copies import copier, copy_value, is_changed
from holdfast.integrations.stageflow.records import from_tree, to_tree

pytest_plugins = ["postgres_fixtures"]


@holdfast.register
@dataclasses.dataclass(frozen=True)
class Deal(ExtensionBundle):
    value: Decimal = Decimal(0)
    notes: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Unknown(ExtensionBundle):
    value: int = 0


AT = dt.datetime(2025, 3, 30, 2, 30, 0, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1)

FULL: ContextSnapshot[Any] = ContextSnapshot(
    run_id=RunIdentity(pipeline_run_id=UUID(int=1), user_id=UUID(int=2**128 - 1), created_at=AT),
    enrichments=Enrichments(
        profile=ProfileEnrichment(
            user_id=UUID(int=3), display_name="", preferences={"a": {"b": (1, 2)}}, goals=[]
        ),
        memory=MemoryEnrichment(recent_topics=["kelp"], interaction_history_summary=""),
        documents=[DocumentEnrichment(document_id="", blocks=[{"n": 2**300}]), DocumentEnrichment()],
        web_results=[{"at": AT, "none": None}],
    ),
    conversation=Conversation(
        messages=[Message("user", "hi", AT, {"tokens": -(2**70)}), Message("assistant", "\ud800", None)],
        routing_decision=RoutingDecision("a", "p", "t"),
    ),
    extensions=Deal(Decimal("1.10"), ["x"]),
    input_text="",
    input_audio_duration_ms=0,
    topology="",
    execution_mode="practice",
    created_at=dt.datetime(1, 1, 1),  # noqa: DTZ001 - naive on purpose
    metadata={
        "when": [AT, dt.date(2024, 2, 29), dt.timedelta(microseconds=1)],
        "huge": 10**1000,
        "exact": [1, 1.0, True, -0.0, float("inf"), b"", (), {1: "one", (2, 3): "pair", None: "none"}],
        "sets": {frozenset({1}), frozenset()},
        "others": [Fraction(1, 3), deque([1], maxlen=3), complex(0, -1), StageKind.GUARD, UUID(int=7)],
        "ours": [Message("user", "in metadata"), StageOutput.skip("x"), ContextSnapshot(created_at=AT)],
    },
)


def kept(hf: Holdfast, snapshot: ContextSnapshot[Any], run_id: str = "r") -> ContextSnapshot[Any]:
    """Return the recorded snapshot of a pipeline that was run with a snapshot."""
    with pytest.warns(DeprecationWarning, match="StageContext"):
        _run_with(hf, snapshot, run_id)
    return snapshot_of(hf.history(run_id).head)


def _run_with(hf: Holdfast, snapshot: ContextSnapshot[Any], run_id: str) -> None:
    context = dataclasses.replace(PipelineContext.create().derive_root_stage_context(), snapshot=snapshot)
    run(durable(chain(Log(), "plan"), hf, run_id), context)


def test_full_snapshot_is_read_back(hf: Holdfast) -> None:
    found = kept(hf, FULL)
    assert found == FULL
    assert repr(found) == repr(FULL)
    assert found.created_at.tzinfo is None
    assert found.metadata["when"][0].fold == 1
    assert type(found.extensions) is Deal
    assert type(found.conversation) is Conversation
    assert type(found.metadata) is dict
    assert type(found.enrichments.documents) is list  # type: ignore[union-attr]
    found.metadata["mine"] = True
    assert "mine" not in snapshot_of(hf.history("r").head).metadata


def test_resumed_stages_see_the_recorded_snapshot(hf: Holdfast, log: Log) -> None:
    seen: list[ContextSnapshot[Any]] = []
    trouble: list[Any] = [ValueError("no"), ok()]

    def act(ctx: StageContext) -> None:
        assert ctx.inputs.snapshot is ctx.snapshot
        seen.append(ctx.snapshot)
        if isinstance(found := trouble.pop(0), Exception):
            raise found

    pipeline = chain(log, "plan").with_stage("act", stage(log, "act", also=act), StageKind.WORK, after="plan")
    first = PipelineContext.create(
        input_text="kelp", request_id=uuid4(), metadata={"n": 2**100, "at": AT}, conversation=Conversation()
    )
    fails(durable(pipeline, hf, "r"), first)
    # The same task; another request, later.
    second = PipelineContext.create(
        input_text="kelp", request_id=uuid4(), metadata={"n": 2**100, "at": AT}, conversation=Conversation()
    )
    run(durable(pipeline, hf, "r"), second)
    assert seen[0] == seen[1]
    assert seen[1].request_id == first.request_id
    assert seen[1].created_at == first.created_at


_EMPTY: tuple[dict[str, Any], ...] = (
    {},
    {"conversation": Conversation()},
    {"enrichments": Enrichments()},
    {"enrichments": Enrichments(profile=ProfileEnrichment())},
    {"enrichments": Enrichments(memory=MemoryEnrichment())},
    {"enrichments": Enrichments(documents=[DocumentEnrichment()])},
    {"extensions": {}},
    {"extensions": Deal()},
    {"input_text": ""},
    {"input_audio_duration_ms": 0},
    {"metadata": {"": None}},
    {"metadata": {"": {}}},
)
EMPTY: list[ContextSnapshot[Any]] = [
    ContextSnapshot(created_at=AT, run_id=RunIdentity(created_at=AT), **parts) for parts in _EMPTY
]


def test_different_empty_contexts_stay_different(hf: Holdfast) -> None:
    found = [kept(hf, snapshot, f"r{number}") for number, snapshot in enumerate(EMPTY)]
    assert [repr(snapshot) for snapshot in found] == [repr(snapshot) for snapshot in EMPTY]
    assert len({repr(snapshot) for snapshot in found}) == len(EMPTY)
    heads = [hf.history(f"r{number}").head for number in range(len(EMPTY))]
    assert len({head.hash for head in heads}) == len(EMPTY)
    # The same snapshot, as two runs: each has its own.
    assert kept(hf, EMPTY[0], "twin") == EMPTY[0]
    assert hf.history("twin").at(1).hash != hf.history("r0").at(1).hash
    # A run is not continued with another of them.
    for other in EMPTY[1:]:
        with pytest.raises(ReplayDiverged):
            _run_with(hf, other, "r0")


def test_snapshots_that_differ_only_in_time_are_not_equal(hf: Holdfast) -> None:
    run(durable(chain(Log(), "plan"), hf, "one"))
    run(durable(chain(Log(), "plan"), hf, "other"))
    one, other = (snapshot_of(hf.history(name).head) for name in ("one", "other"))
    assert one != other
    assert one.created_at < other.created_at


# Changed afterwards


def test_later_mutation_does_not_change_a_version(hf: Holdfast) -> None:
    metadata: dict[str, Any] = {"plan": {"tasks": [{"done": False}]}}
    output: dict[str, Any] = {"found": [{"n": 1}]}

    async def plan(ctx: StageContext) -> dict[str, Any]:
        return output

    async def spoil(ctx: StageContext) -> None:
        ctx.snapshot.metadata["plan"]["tasks"][0]["done"] = True
        prior = ctx.inputs.get_output("plan")
        assert prior is not None
        prior.data["found"][0]["n"] = 99

    async def look(ctx: StageContext) -> dict[str, Any]:
        return {"done": ctx.snapshot.metadata["plan"]["tasks"][0]["done"]}

    pipeline = (
        Pipeline(name="p")
        .with_stage("plan", plan, StageKind.WORK)
        .with_stage("spoil", spoil, StageKind.WORK, after="plan")
        .with_stage("look", look, StageKind.WORK, after="spoil")
    )
    run(durable(pipeline, hf, "r"), metadata=metadata)
    metadata["plan"]["tasks"].clear()
    output["found"].clear()
    history = hf.history("r")
    done = [snapshot_of(history.at(n)).metadata["plan"]["tasks"][0]["done"] for n in (1, 2, 3, 4)]
    assert done == [False] * 4
    assert [results_of(history.at(n))["plan"].data for n in (2, 3, 4)] == [{"found": [{"n": 1}]}] * 3
    assert results_of(history.head)["look"].data == {"done": False}
    # An execution that continues from there sees what a stage there would have seen.
    flow = durable(pipeline, hf, "r")
    flow.rollback(before="look")
    assert run(flow)["look"].data == {"done": False}


def test_read_records_are_private_copies(hf: Holdfast, log: Log) -> None:
    pipeline = chain(log, "plan", plan={"list": [1]})
    run(durable(pipeline, hf, "r"))
    first, second = (run(durable(pipeline, hf, "r"))["plan"].data for _ in range(2))
    first["list"].append(2)
    assert second["list"] == [1]
    assert run(durable(pipeline, hf, "r"))["plan"].data["list"] == [1]


# Values in the place of records

_UNUSUAL: list[ContextSnapshot[Any]] = [
    ContextSnapshot(conversation={"messages": []}),  # type: ignore[arg-type]
    ContextSnapshot(conversation=Conversation(messages=[{"role": "user"}])),  # type: ignore[list-item]
    ContextSnapshot(conversation=Conversation(messages=(Message("a", "b"),))),  # type: ignore[arg-type]
    ContextSnapshot(conversation=Conversation(messages={"a": 1})),  # type: ignore[arg-type]
    ContextSnapshot(enrichments=Enrichments(documents=[None, {}, []])),  # type: ignore[list-item]
    ContextSnapshot(enrichments=[1, 2]),  # type: ignore[arg-type]
    ContextSnapshot(run_id=None),  # type: ignore[arg-type]
    ContextSnapshot(run_id={"pipeline_run_id": "x"}),  # type: ignore[arg-type]
    ContextSnapshot(metadata=None),  # type: ignore[arg-type]
    ContextSnapshot(extensions={"skills": {"level": 3}}),
]


def test_value_in_the_place_of_a_record_is_read_back() -> None:
    with holdfast.open(":memory:") as hf:
        log = hf.history("r")
        for snapshot in _UNUSUAL:
            log.commit({"x": to_tree(snapshot, ContextSnapshot)})
            found = from_tree(holdfast.thaw(log.head.state["x"]), ContextSnapshot)
            assert repr(found) == repr(snapshot)
            assert found == snapshot


def test_value_in_the_place_of_a_status_is_read_back() -> None:
    with holdfast.open(":memory:") as hf:
        log = hf.history("r")
        status: Any
        for status in ("ok", "anything", None, StageStatus.OK, StageKind.WORK, {}):
            log.commit({"x": to_tree(StageOutput(status=status), StageOutput)})
            found = from_tree(holdfast.thaw(log.head.state["x"]), StageOutput)
            assert found.status == status
            assert type(found.status) is type(status)


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.datetimes()
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3) | st.tuples(inner)
    ),
    max_leaves=8,
)
dicts = st.dictionaries(st.text(), trees, max_size=3)
messages = st.builds(Message, st.text(), st.text(), st.none() | st.datetimes(timezones=st.timezones()), dicts)
snapshots = st.builds(
    ContextSnapshot,
    run_id=st.builds(RunIdentity, st.none() | st.uuids(), request_id=st.none() | st.uuids()),
    enrichments=st.none()
    | st.builds(
        Enrichments,
        st.none() | st.builds(ProfileEnrichment, st.none() | st.uuids(), st.none() | st.text(), dicts),
        st.none() | st.builds(MemoryEnrichment, recent_topics=st.lists(st.text(), max_size=2)),
        st.lists(
            st.builds(DocumentEnrichment, document_id=st.none() | st.text(), metadata=dicts), max_size=2
        ),
        st.lists(dicts, max_size=2),
    ),
    conversation=st.none() | st.builds(Conversation, st.lists(messages, max_size=3)),
    extensions=st.none() | dicts | st.builds(Deal, st.decimals(allow_nan=False)),
    input_text=st.none() | st.text(),
    metadata=dicts,
)
outputs = st.builds(
    StageOutput,
    st.sampled_from(StageStatus),
    dicts,
    st.lists(st.builds(StageArtifact, st.text(), dicts), max_size=2),
    st.lists(st.builds(StageEvent, st.text(), dicts), max_size=2),
    st.none() | st.text(),
    st.none() | st.integers(0),
    st.none() | st.text(),
)


@pytest.fixture(scope="module")
def memory() -> Holdfast:
    return holdfast.open(":memory:")


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshot=snapshots, output=outputs)
def test_generated_snapshots_and_outputs_are_read_back(
    memory: Holdfast, snapshot: ContextSnapshot[Any], output: StageOutput
) -> None:
    log = memory.history("any")
    log.commit({"s": to_tree(snapshot, ContextSnapshot), "o": to_tree(output, StageOutput)})
    state = log.head.state
    found = (
        from_tree(holdfast.thaw(state["s"]), ContextSnapshot),
        from_tree(holdfast.thaw(state["o"]), StageOutput),
    )
    assert repr(found) == repr((snapshot, output))
    assert found == (snapshot, output)
    for copy, original in (
        (copier(snapshot, ContextSnapshot)(), snapshot),
        (copy_value(snapshot), snapshot),
        (copy_value(output), output),
    ):
        assert repr(copy) == repr(original)
        assert copy == original
        assert not is_changed(copy, original)
        # A copy is stored as its original is.
        log.commit({"x": copy, "y": original})
        assert repr(log.head.state["x"]) == repr(log.head.state["y"])


# What cannot be stored


def test_unsupported_context_is_refused_before_a_stage_runs(hf: Holdfast, log: Log) -> None:
    flow = durable(chain(log, "plan"), hf, "r")
    for wrong, words in (
        ({"metadata": {"client": {"socket": object()}}}, r"at metadata\.client\.socket"),
        ({"extensions": Unknown()}, r"at extensions.*holdfast\.register\(Unknown\)"),
    ):
        with pytest.raises(UnsupportedValue, match=words):
            run(flow, **wrong)
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    with pytest.raises(UnsupportedValue, match="the context of run 'r'"):
        run(flow, metadata=cycle)
    assert log.taken() == []
    assert hf.runs() == []


def test_unsupported_output_fails_its_stage(hf: Holdfast, log: Log) -> None:
    gives: list[Any] = [{"n": 1, "file": {"handle": object()}}]
    pipeline = chain(log, "plan", "act", act=lambda: gives[0])
    error = fails(durable(pipeline, hf, "r"))
    assert isinstance(error.original, UnsupportedValue)
    assert "stage 'act'" in str(error.original)
    assert "at data.file.handle" in str(error.original)
    assert str(results_of(hf.history("r").head)["act"].status) == "fail"
    gives[0] = {"n": 1}
    run(durable(pipeline, hf, "r"))
    assert log.taken() == ["plan", "act", "act"]


def test_unknown_extension_type_is_refused_by_name(hf: Holdfast, log: Log) -> None:
    pipeline = chain(log, "plan")
    run(durable(pipeline, hf, "r"))
    with hf.history("r").edit() as state:
        state["snapshot"]["extensions"] = holdfast.Opaque("app.Extensions", {"n": 1})
    with pytest.raises(InvalidCall, match=r"app\.Extensions.*register"):
        run(durable(pipeline, hf, "r"))


def test_large_values_are_stored_as_artifacts(hf: Holdfast, log: Log) -> None:
    large = "kelp " * 100_000
    pipeline = chain(log, "plan", "act", plan={"text": large, "bytes": large.encode()})
    run(durable(pipeline, hf, "r"), metadata={"document": large})
    found = run(durable(pipeline, hf, "r"))["plan"].data
    assert (found["text"], found["bytes"]) == (large, large.encode())
    assert snapshot_of(hf.history("r").head).metadata["document"] == large
    assert hf.history("r").at(3).size < 5_000
