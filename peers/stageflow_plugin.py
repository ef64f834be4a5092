"""Run Stageflow's own tests with durable graphs (a plugin for pytest; load it with `-p`).

Job: every graph that a test runs is replaced by the durable one of the same stages, as a new run in a SQLite
file: what the tests say about `UnifiedStageGraph` and `Pipeline` then holds for `durable(pipeline, hf, run_id)`.
A test may run one graph several times and expects its stages to be executed each time, so each execution has
its own run id. A graph that is not a valid pipeline (a cycle, an unknown dependency), which `durable` does not
take, is run as it is.

Invariant: the stages, the interceptors and the options of a graph are the test's own. A test that ran a durable
graph has the property `uses` in pytest's JUnit file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest
from stageflow.pipeline.dag import UnifiedStageGraph
from stageflow.pipeline.pipeline import Pipeline, UnifiedStageSpec
from stageflow.pipeline.spec import PipelineValidationError

import holdfast
from holdfast.integrations.stageflow import durable

_numbers = count(1)
_tests: list[pytest.Item] = []


@pytest.fixture(autouse=True, scope="session")
def _durable_graphs() -> Iterator[None]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        hf = stack.enter_context(holdfast.open(f"{folder}/runs.db"))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        run_plain = UnifiedStageGraph.run

        async def run(graph: Any, ctx: Any) -> Any:
            made = _durable_graph(graph, hf) if type(graph) is UnifiedStageGraph else None
            if made is None:
                return await run_plain(graph, ctx)
            _tests[-1].user_properties.append(("uses", "a durable graph"))
            return await made.run(ctx)

        patch.setattr(UnifiedStageGraph, "run", run)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _tests[:] = [item]


def _durable_graph(graph: Any, hf: holdfast.Holdfast) -> Any:
    """Return the durable graph of a graph, with its options; None if the graph is not a valid pipeline."""
    stages: Any = {
        spec.name: UnifiedStageSpec(
            spec.name, spec.runner, spec.kind, tuple(spec.dependencies), spec.conditional
        )
        for spec in graph.stage_specs
    }
    options = {name: value for name, value in vars(graph).items() if name != "_specs"}
    pipeline = Pipeline(name=options["_pipeline_name"] or "graph", stages=stages)
    try:
        made = durable(pipeline, hf, f"peer-{next(_numbers)}").build()
    except PipelineValidationError:
        return None
    vars(made).update(options)
    return made
