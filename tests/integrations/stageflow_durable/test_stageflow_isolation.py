"""Each attempt of a stage has its own copy of the context and of its inputs; what it does to them stays there."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import json
import logging
import pickle
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from stageflow.api import Pipeline, StageContext, StageKind, StageOutput
from stageflow.context import ContextSnapshot, ExtensionBundle, Message
from stageflow.context.conversation import Conversation
from stageflow.context.enrichments import DocumentEnrichment, Enrichments, ProfileEnrichment
from stageflow.core import StageArtifact, StageStatus
from stageflow.pipeline.dag import UnifiedStageGraph
from stageflow.pipeline.interceptors import BaseInterceptor, InterceptorResult, get_default_interceptors
from stageflow.pipeline.retry import BackoffStrategy, JitterStrategy, RetryInterceptor
from stageflow.stages.context import PipelineContext
from stageflow.stages.result import StageResult
from stageflow_stages import Log, chain, fails, ok, run, stage

import holdfast
from holdfast import Holdfast, InvalidCall
from holdfast.integrations.stageflow import copies as copies_module
from holdfast.integrations.stageflow import durable, results_of, snapshot_of
from holdfast.integrations.stageflow.copies import LazyStageList, copier, copy_outputs

pytest_plugins = ["postgres_fixtures"]


@holdfast.register
@dataclass(frozen=True)
class Cart(ExtensionBundle):
    items: list[str] = field(default_factory=list)


@pytest.fixture
def memory() -> Iterator[Holdfast]:
    with holdfast.open(":memory:") as hf:
        yield hf


AT = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)


def context() -> dict[str, Any]:
    return {
        "metadata": {"list": [], "nested": [{"deep": [1]}], "tuple": ([],), "set": {1}},
        "conversation": Conversation([Message("user", "hi", None, {"tags": []}), Message("user", "ho")]),
        "enrichments": Enrichments(
            profile=ProfileEnrichment(preferences={"a": {}}, goals=[]),
            documents=[DocumentEnrichment(document_id="1", blocks=[{"text": "x"}])],
            web_results=[{"n": 1}],
        ),
        "extensions": Cart(["kelp"]),
    }


def output() -> StageOutput:
    data = {"list": [], "messages": [Message("user", "hi", None, {})]}
    return StageOutput(StageStatus.OK, data, [StageArtifact("report", {"pages": []}, AT)])


def _spoil_inputs(ctx: StageContext) -> None:
    prior = ctx.inputs.prior_outputs["plan"]
    prior.data["list"].append(1)
    prior.data["messages"][0].metadata["read"] = True
    prior.artifacts[0].payload["pages"].append(1)
    prior.artifacts.clear()
    ctx.inputs.prior_outputs.clear()


#: Ways to change something in place that a stage was given.
SPOIL: dict[str, Callable[[StageContext], Any]] = {
    "list": lambda ctx: ctx.snapshot.metadata["list"].append(1),
    "deep": lambda ctx: ctx.snapshot.metadata["nested"][0]["deep"].append(2),
    "in a tuple": lambda ctx: ctx.snapshot.metadata["tuple"][0].append(2),
    "set": lambda ctx: ctx.snapshot.metadata["set"].add(2),
    "key": lambda ctx: ctx.snapshot.metadata.update(new=1),
    "inputs.snapshot": lambda ctx: ctx.inputs.snapshot.metadata["list"].append(1),
    "messages": lambda ctx: ctx.snapshot.messages.append(Message("assistant", "ha")),
    "message": lambda ctx: ctx.snapshot.messages[0].metadata["tags"].append("x"),
    "last message": lambda ctx: ctx.snapshot.messages.pop().metadata.update(x=1),
    "each message": lambda ctx: [message.metadata.update(x=1) for message in ctx.snapshot.messages],
    "sliced messages": lambda ctx: ctx.snapshot.messages[:1][0].metadata.update(x=1),
    "messages backwards": lambda ctx: next(reversed(ctx.snapshot.messages)).metadata.update(x=1),
    "added messages": lambda ctx: ([] + ctx.snapshot.messages)[0].metadata.update(x=1),  # noqa: RUF005
    "copied messages": lambda ctx: copy.copy(ctx.snapshot.messages)[0].metadata.update(x=1),
    "profile": lambda ctx: ctx.snapshot.profile.preferences["a"].update(x=1),  # type: ignore[union-attr]
    "document": lambda ctx: ctx.snapshot.documents[0].blocks[0].update(text="y"),
    "web result": lambda ctx: ctx.snapshot.web_results[0].update(n=2),
    "extensions": lambda ctx: ctx.snapshot.extensions.items.append("rock"),  # type: ignore[union-attr]
    "inputs": _spoil_inputs,
}


def look(ctx: StageContext) -> str:
    return repr((ctx.snapshot, ctx.inputs.prior_outputs["plan"].with_duration(0)))


def test_failed_attempt_leaves_nothing_behind(hf: Holdfast, log: Log) -> None:
    """Of a stage that an interceptor tries again, and of one that the next execution tries again."""
    retry = RetryInterceptor(
        max_attempts=2,
        base_delay_ms=1,
        backoff_strategy=BackoffStrategy.CONSTANT,
        jitter_strategy=JitterStrategy.NONE,
    )
    for how, spoil in SPOIL.items():
        seen: list[str] = []

        def act(ctx: StageContext, seen: list[str] = seen, spoil: Any = spoil) -> None:
            seen.append(look(ctx))
            spoil(ctx)
            if len(seen) < 4:
                raise ConnectionError("again")

        pipeline = Pipeline(name="p").with_stage("plan", stage(log, "plan", output), StageKind.WORK)
        pipeline = pipeline.with_stage("act", stage(log, "act", also=act), StageKind.WORK, after="plan")
        flow = durable(pipeline, hf, how)
        given = context()
        options: Any = {"interceptors": [*get_default_interceptors(), retry]}
        fails(flow, **given, **options)
        assert len(seen) == 2, how
        results = run(flow, **context(), **options)
        assert len(seen) == 4, how
        assert set(seen) == {seen[0]}, how
        # Nor in what the caller has, nor in what is recorded.
        assert repr(given) == repr(context()), how
        assert repr(results["plan"].with_duration(0)) == repr(output().with_duration(0)), how
        head = hf.history(how).head
        assert repr((snapshot_of(head), results_of(head)["plan"].with_duration(0))) == seen[0], how


def test_parallel_stage_does_not_see_a_change(memory: Holdfast, log: Log) -> None:
    """Nor does a stage after it."""
    for how, spoil in SPOIL.items():
        spoilt, looked = asyncio.Event(), asyncio.Event()
        before: list[str] = []
        after: list[str] = []

        async def sibling(
            ctx: StageContext, spoilt: Any = spoilt, looked: Any = looked, after: Any = after
        ) -> None:
            await spoilt.wait()
            after.append(look(ctx))
            looked.set()

        async def act(
            ctx: StageContext,
            spoil: Any = spoil,
            spoilt: Any = spoilt,
            looked: Any = looked,
            before: Any = before,
        ) -> None:
            before.append(look(ctx))
            spoil(ctx)
            spoilt.set()
            await looked.wait()

        async def later(ctx: StageContext, after: Any = after) -> None:
            after.append(look(ctx))

        pipeline = (
            Pipeline(name="p")
            .with_stage("plan", stage(log, "plan", output), StageKind.WORK)
            .with_stage("sibling", sibling, StageKind.WORK, after="plan")
            .with_stage("act", act, StageKind.WORK, after="plan")
            .with_stage("later", later, StageKind.WORK, after=("plan", "act"))
        )
        run(durable(pipeline, memory, how), **context())
        assert after == before * 2, how


def test_stage_that_changes_its_copy_is_warned_once(memory: Holdfast, log: Log, caplog: Any) -> None:
    for how, spoil in SPOIL.items():
        pipeline = Pipeline(name="p").with_stage("plan", stage(log, "plan", output), StageKind.WORK)

        async def act(ctx: StageContext, spoil: Any = spoil) -> None:
            spoil(ctx)

        pipeline = pipeline.with_stage("act", act, StageKind.WORK, after="plan")
        caplog.clear()
        with caplog.at_level(logging.WARNING, "holdfast"):
            run(durable(pipeline, memory, how), **context())
        # Values other than dicts, lists and Stageflow's records are not compared.
        expected = 0 if how in ("in a tuple", "set", "extensions") else 1
        assert caplog.text.count("changed its copy") == expected, how


def test_stage_that_only_reads_is_not_warned(memory: Holdfast, log: Log, caplog: Any) -> None:
    def read(ctx: StageContext) -> None:
        assert len([message.content for message in ctx.snapshot.messages]) == 2
        assert ctx.snapshot.messages[-1].content == "ho"
        assert json.dumps(ctx.snapshot.metadata["nested"])
        look(ctx)

    @holdfast.register
    @dataclass(eq=False)
    class Unequal:
        """Its copies are not equal to it."""

    pipeline = chain(log, "plan").with_stage(
        "act", stage(log, "act", also=read), StageKind.WORK, after="plan"
    )
    with caplog.at_level(logging.WARNING, "holdfast"):
        given = context()
        given["metadata"]["unequal"] = Unequal()
        given["metadata"]["nan"] = float("nan")
        run(durable(pipeline, memory, "r"), **given)
    assert "changed" not in caplog.text


# Outputs


def test_output_changed_after_the_stage_ended_is_not_seen(hf: Holdfast) -> None:
    mine: dict[str, Any] = {"found": [{"n": 1}]}
    artifact = StageArtifact("report", {"pages": [1]})

    async def plan(ctx: StageContext) -> StageOutput:
        return StageOutput(StageStatus.OK, mine, [artifact])

    async def act(ctx: StageContext) -> dict[str, Any]:
        mine["found"][0]["n"] = 99
        artifact.payload["pages"].append(2)
        prior = ctx.inputs.prior_outputs["plan"]
        return {"saw": prior.data, "pages": prior.artifacts[0].payload}

    pipeline = (
        Pipeline(name="p")
        .with_stage("plan", plan, StageKind.WORK)
        .with_stage("act", act, StageKind.WORK, after="plan")
    )
    results = run(durable(pipeline, hf, "r"))
    assert results["act"].data == {"saw": {"found": [{"n": 1}]}, "pages": {"pages": [1]}}
    assert results["plan"].data == {"found": [{"n": 1}]}
    assert run(durable(pipeline, hf, "r")) == results
    # Nor does a change by the caller reach the record.
    results["plan"].data["found"].clear()
    assert results_of(hf.history("r").head)["plan"].data == {"found": [{"n": 1}]}


def test_object_in_two_places_is_two_objects_also_in_the_first_execution(hf: Holdfast) -> None:
    """As it is when the output is replayed."""
    trouble: list[Any] = [ValueError("no")]

    async def plan(ctx: StageContext) -> dict[str, Any]:
        shared = [1]
        return {"one": shared, "other": shared}

    async def act(ctx: StageContext) -> dict[str, Any]:
        data = ctx.inputs.prior_outputs["plan"].data
        data["one"].append(2)
        if trouble:
            trouble.append(list(data["other"]))
            raise trouble.pop(0)
        return {"other": data["other"]}

    pipeline = (
        Pipeline(name="p")
        .with_stage("plan", plan, StageKind.WORK)
        .with_stage("act", act, StageKind.WORK, after="plan")
    )
    fails(durable(pipeline, hf, "r"))
    first = trouble.pop()
    assert run(durable(pipeline, hf, "r"))["act"].data["other"] == first == [1]


def test_values_of_subclasses_are_copied_with_their_type(memory: Holdfast) -> None:
    seen: list[Any] = []
    stored: list[Any] = [
        OrderedDict(a=[1]),
        deque([[1]], maxlen=3),
        StageKind.GUARD,
        ValueError("x", [1]),
        bytearray(b"x"),
        (1, [2]),
    ]

    async def plan(ctx: StageContext) -> dict[str, Any]:
        seen.append(ctx.snapshot.metadata["values"])
        return {"values": stored}

    async def act(ctx: StageContext) -> None:
        seen.append(ctx.inputs.get_from("plan", "values"))

    pipeline = (
        Pipeline(name="p")
        .with_stage("plan", plan, StageKind.WORK)
        .with_stage("act", act, StageKind.WORK, after="plan")
    )
    run(durable(pipeline, memory, "r"), metadata={"values": stored})
    for found in seen:
        assert repr(found) == repr(stored)
        assert [type(value) for value in found] == [type(value) for value in stored]
        assert not any(
            mine is value
            for mine, value in zip(found, stored, strict=True)
            if not isinstance(value, StageKind)
        )


def test_values_of_subclasses_that_cannot_be_stored_are_refused(memory: Holdfast, log: Log) -> None:
    for value in (Counter(a=1), defaultdict(list, a=[1])):
        with pytest.raises(holdfast.UnsupportedValue, match=type(value).__name__):
            run(durable(chain(log, "plan"), memory, "r"), metadata={"value": value})
        assert log.taken() == []
        error = fails(durable(chain(log, "plan", plan=lambda value=value: ok(value=value)), memory, "r"))
        assert isinstance(error.original, holdfast.UnsupportedValue)
        memory.delete("r")
        log.taken()


def test_redacted_values_reach_the_stages_of_the_first_execution(log: Log) -> None:
    with holdfast.open(":memory:", redact=["password"]) as hf:
        seen: list[Any] = []

        async def plan(ctx: StageContext) -> dict[str, Any]:
            return {"password": ctx.snapshot.metadata["password"], "n": 1}

        async def act(ctx: StageContext) -> None:
            seen.append(ctx.inputs.get_from("plan", "password"))

        pipeline = (
            Pipeline(name="p")
            .with_stage("plan", plan, StageKind.WORK)
            .with_stage("act", act, StageKind.WORK, after="plan")
        )
        results = run(durable(pipeline, hf, "r"), metadata={"password": "s3cret"})
        assert seen == ["s3cret"]
        assert results["plan"].data["password"] == "s3cret"
        assert "s3cret" not in str(hf.history("r").head.state)


class Stamp(BaseInterceptor):
    """Changes each output in place, and replaces the one of a stage by an object that cannot be stored."""

    async def before(self, stage_name: str, ctx: PipelineContext) -> InterceptorResult | None:
        if stage_name == "short":
            cycle: list[Any] = [object()]
            cycle.append(cycle)
            return InterceptorResult(stage_ran=False, result={"live": cycle})
        return None

    async def after(self, stage_name: str, result: StageResult, ctx: PipelineContext) -> None:
        if isinstance(result.data, dict):
            result.data["stamp"] = stage_name


def test_change_by_an_interceptor_reaches_the_next_stage(memory: Holdfast, log: Log) -> None:
    """Also when the output is replayed: interceptors run then, too."""
    seen: list[Any] = []

    def act(ctx: StageContext) -> None:
        seen.append(ctx.inputs.get_from("plan", "stamp"))
        if "short" in ctx.inputs.prior_outputs:
            seen.append(type(ctx.inputs.get_from("short", "live")[0]))
        if len(seen) == 2:
            raise ValueError("no")

    pipeline = (
        chain(log, "plan")
        .with_stage("short", stage(log, "short"), StageKind.WORK)
        .with_stage("act", stage(log, "act", also=act), StageKind.WORK, after=("plan", "short"))
    )
    options: Any = {"interceptors": [Stamp()]}
    fails(durable(pipeline, memory, "r"), **options)
    run(durable(pipeline, memory, "r"), **options)
    assert seen == ["plan", object] * 2
    assert log.taken() == ["plan", "act", "act"]


# The list of messages


@holdfast.register
@dataclass
class Note:
    """A class whose instances are copied one by one."""

    text: list[str]


def deep(number: int) -> Any:
    """Return a value that is nested almost as deeply as can be stored."""
    value: Any = [number]
    for _ in range(90):
        value = {"a": [value]}
    return value


#: Metadata of a message by its number; each is read together with that of other messages.
METADATA: list[Callable[[int], Any]] = [
    lambda n: {"a": {"b": [n]}},
    lambda n: {"id": n, "tags": ["x"], "usage": {"in": n, "out": {"text": 1}}},
    lambda n: {"a": [{"n": n}, n, None, [[]]]} if n % 2 else {"b": n, "a": n},
    lambda n: {"a": {}} if n % 3 else {"a": [1], "c": ({}, [])},
    lambda n: {f"key {n}": {"n": [n]}},
    lambda n: {True if n % 2 else 1: [n]},
    lambda n: {"note": Note([str(n)]), "ordered": OrderedDict(a=[n]), "set": {n}},
    lambda n: {"replies": [Message("user", "re", None, {"tags": [n]})] * 2},
    lambda n: {"a": [[{"n": n}] * (n % 3)]},
    lambda n: {"a": [n]} if n else None,
    deep,
]


def _mutable_parts(value: Any) -> Iterator[Any]:
    """Return a value, and all values in it, that could be changed."""
    if isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, dict):
        parts = list(value.values())
    else:
        parts = [getattr(value, name) for name in ("metadata", "text") if hasattr(value, name)]
    if isinstance(value, list | dict | set | Note):
        yield value
    for part in parts:
        yield from _mutable_parts(part)


def test_copied_messages_share_nothing_that_could_change() -> None:
    for metadata in METADATA:
        for count in (1, 3, 30):
            original = [Message("user", str(n), AT, metadata(n)) for n in range(count)]
            expected = repr(original)
            new = copier(original, [Message])
            copies = [list(new()) for _ in range(3)]
            assert [repr(items) for items in copies] == [expected] * 3
            parts = [id(part) for items in copies for part in _mutable_parts(items)]
            assert len(set(parts)) == len(parts)
            assert not set(parts).intersection(map(id, _mutable_parts(original)))


def test_copied_messages_act_as_a_list() -> None:
    original = [Message("user", str(number), None, {"n": number}) for number in range(5)]
    plain = copy.deepcopy(original)
    new = copier(original, [Message])

    def check(use: Callable[[Any], Any]) -> None:
        mine, yours = new(), copy.deepcopy(original)
        assert repr(use(mine)) == repr(use(yours))
        assert list(mine) == yours

    for use in (
        len,
        repr,
        list,
        tuple,
        lambda items: sorted(items, key=lambda item: -int(item.content)),
        lambda items: items[1:3],
        lambda items: items[-1],
        lambda items: items.pop(),
        lambda items: items.pop(0),
        lambda items: items.insert(1, "x"),
        lambda items: items.reverse(),
        lambda items: items.sort(key=lambda item: -int(item.content)),
        lambda items: items.remove(items[2]),
        lambda items: items.index(items[2]),
        lambda items: items.__setitem__(0, "x"),
        lambda items: items.__delitem__(slice(1, 3)),
        lambda items: items.extend(["x"]),
        lambda items: items + ["x"],  # noqa: RUF005
        lambda items: ["x"] + items,  # noqa: RUF005
        lambda items: items * 2,
        lambda items: [*items],
        lambda items: plain[3] in items,
        lambda items: items == plain,
        copy.deepcopy,
        lambda items: pickle.loads(pickle.dumps(items)),
        lambda items: items.clear(),
        lambda items: type(items)(item.content for item in items).pop(),
        lambda items: type(items)(["x", *items])[1],
    ):
        check(use)
    mine = new()
    assert isinstance(mine, list)
    assert mine[2] is mine[2]
    assert mine[2] is list(mine)[2]
    assert mine[2] is not original[2]
    assert type(copy.deepcopy(mine)) is type(pickle.loads(pickle.dumps(mine))) is list
    assert original == plain


def test_threads_get_the_same_copy_of_a_message() -> None:
    new = copier([Message("user", str(number), None, {}) for number in range(200)], [Message])
    for _ in range(20):
        mine, barrier = new(), threading.Barrier(4)
        found: list[list[int]] = []

        def read(number: int, mine: Any = mine, barrier: Any = barrier, found: Any = found) -> None:
            barrier.wait()
            items = list(mine) if number % 2 else [mine[index] for index in range(200)]
            found.append([id(item) for item in items])

        threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [found[0]] * 4


def test_copied_conversation_can_be_passed_on(memory: Holdfast, log: Log) -> None:
    """To an output, and to a pipeline within the stage, which is the same task as with the original."""
    given = context()

    async def act(ctx: StageContext) -> dict[str, Any]:
        assert type(ctx.snapshot.messages) is LazyStageList
        assert ctx.snapshot.messages[1].content == "ho"
        inner = durable(chain(log, "inner"), memory, "inner")
        await inner.run(conversation=ctx.snapshot.conversation, metadata=ctx.snapshot.metadata)
        await inner.run(conversation=given["conversation"], metadata=given["metadata"])
        return {"snapshot": ctx.snapshot, "messages": ctx.snapshot.messages}

    results = run(durable(Pipeline(name="p").with_stage("act", act, StageKind.WORK), memory, "r"), **given)
    assert results["act"].data["messages"] == given["conversation"].messages
    assert isinstance(results["act"].data["snapshot"], ContextSnapshot)
    assert log.taken() == ["inner"]
    again = run(durable(Pipeline(name="p").with_stage("act", act, StageKind.WORK), memory, "r"))
    assert again == results
    assert repr(snapshot_of(memory.history("inner").head).conversation) == repr(given["conversation"])


# Cost


def calls_per_stage(hf: Holdfast, messages: int) -> float:
    """Return the calls of functions that a stage costs, in the event loop and in the thread that writes."""

    async def work(ctx: StageContext) -> dict[str, Any]:
        return {"n": len(ctx.snapshot.messages), "last": ctx.snapshot.messages[-1].content}

    conversation = Conversation([Message("user", f"m{n}", None, {"n": n}) for n in range(messages)])
    counts = []
    for stages in (5, 25):
        pipeline = Pipeline(name="p")
        for number in range(stages):
            pipeline = pipeline.with_stage(
                f"s{number}", work, StageKind.WORK, dependencies=(f"s{number - 1}",) if number else ()
            )
        found = 0

        def count(frame: Any, event: str, arg: Any) -> None:
            nonlocal found
            found += event in ("call", "c_call")

        flow = durable(pipeline, hf, f"{messages}-{stages}")
        threading.setprofile(count)
        sys.setprofile(count)
        try:
            run(flow, conversation=conversation)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        counts.append(found)
    return (counts[1] - counts[0]) / 20


def test_cost_of_a_stage_does_not_grow_with_the_conversation(memory: Holdfast) -> None:
    few, many = calls_per_stage(memory, 20), calls_per_stage(memory, 2_000)
    assert many < 1.2 * few


def call_copies(limit: int, function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns. Fail once it has made more calls of functions of the module `copies`."""
    found = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal found
        # Of other modules, the garbage collector may call functions at any time.
        if event == "call" and frame.f_code.co_filename == copies_module.__file__:
            found += 1
            if found > limit:
                raise AssertionError(f"More than {limit} calls.")

    sys.setprofile(count)
    try:
        return function(*args)
    finally:
        sys.setprofile(None)


def test_reading_all_messages_calls_no_function_for_each() -> None:
    # Metadata of plain values, with nested dicts and lists, and with different keys and types.
    for metadata in (lambda n: {"n": n}, *METADATA[:3]):
        original = [Message("user", f"m{n}", None, metadata(n)) for n in range(1_000)]
        assert call_copies(100, list, copier(original, [Message])()) == original


def test_cycle_through_many_children_is_copied_with_few_calls() -> None:
    for count in (8, 20, 50):
        root: dict[str, Any] = {}
        root["children"] = [{"name": name, "parent": root} for name in range(count)]
        tree = call_copies(2 * sys.getrecursionlimit(), copy_outputs, {"tree": root})["tree"]
        assert tree is not root
        assert [child["name"] for child in tree["children"]] == list(range(count))
        assert all(child["parent"] is tree for child in tree["children"])
        assert not set(map(id, tree["children"])).intersection(map(id, root["children"]))


def test_cycle_of_dicts_is_copied_with_few_calls() -> None:
    """Each dict leads to others by two keys, without a list in which one occurs twice."""
    items: list[dict[str, Any]] = [{} for _ in range(16)]
    for number, item in enumerate(items):
        item.update(next=items[number - 1], other=items[number - 3])
    ring = call_copies(2 * sys.getrecursionlimit(), copy_outputs, {"ring": items})["ring"]
    assert all(item["next"] is ring[n - 1] and item["other"] is ring[n - 3] for n, item in enumerate(ring))
    assert not set(map(id, ring)).intersection(map(id, items))


def test_shared_values_are_copied_with_a_few_calls_for_each_copy() -> None:
    value: Any = {"n": [1]}
    for _ in range(4):
        value = [value] * 8
    lists_and_dicts = 8**4 * 2 + 8**3 + 8**2 + 8 + 1
    copied = call_copies(3 * lists_and_dicts, copy_outputs, {"shared": value})["shared"]
    assert copied == value
    parts = list(map(id, _mutable_parts(copied)))
    assert len(set(parts)) == len(parts)


# Outside of a run


def test_stage_called_outside_of_a_run_is_refused(memory: Holdfast, log: Log) -> None:
    flow = durable(chain(log, "plan"), memory, "r")
    (spec,) = flow.build().stage_specs
    ctx = PipelineContext.create().derive_root_stage_context()
    with pytest.raises(InvalidCall, match=r"stage 'plan'.*'chain'.*outside of its run.*flow\.run"):
        asyncio.run(spec.runner(ctx))
    with pytest.raises(Exception, match=r"outside of its run") as caught:
        asyncio.run(UnifiedStageGraph([spec]).run(PipelineContext.create()))
    assert isinstance(caught.value.original, InvalidCall)  # type: ignore[attr-defined]
    assert log.taken() == []
    assert memory.runs() == []


def test_stage_called_in_the_run_of_another_pipeline_is_refused(memory: Holdfast, log: Log) -> None:
    """It would be recorded as a stage of the other pipeline."""
    inner = durable(chain(log, "plan", name="inner"), memory, "inner")

    async def plan(ctx: StageContext) -> Any:
        (spec,) = inner.build().stage_specs
        return await spec.runner(ctx)

    outer = Pipeline(name="outer").with_stage("plan", plan, StageKind.WORK)
    error = fails(durable(outer, memory, "outer"))
    assert isinstance(error.original, InvalidCall)
    assert "'inner'" in str(error.original)
    assert log.taken() == []


def test_forgotten_await_is_refused_with_its_place(memory: Holdfast, log: Log) -> None:
    async def fetch() -> int:
        return 1

    made: list[Any] = []

    def forget() -> StageOutput:
        made.append(fetch())
        return ok(value=made[-1])

    error = fails(durable(chain(log, "plan", plan=forget), memory, "r"))
    assert isinstance(error.original, holdfast.UnsupportedValue)
    assert "data.value" in str(error.original)
    assert "await" in str(error.original)
    made[0].close()
