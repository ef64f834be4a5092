"""Durable Stageflow pipelines: each stage's output and the context's snapshot are a version of a run.

    flow = durable(pipeline, hf, "order-7")
    results = await flow.run(input_text="…")    # run again, in any process: completed stages are replayed

`records` converts Stageflow's records to trees and back, `execution` is one execution on a run, `pipeline`
defines `durable` and its result. Needs `pip install 'holdfast[stageflow]'`.
"""

from __future__ import annotations

from holdfast.integrations import missing_extra

try:
    import stageflow as _stageflow  # noqa: F401 - the error below names the extra
except ModuleNotFoundError as error:
    raise missing_extra(__name__, "Stageflow", error.name) from error

from holdfast.integrations.stageflow.pipeline import DurablePipeline, durable
from holdfast.integrations.stageflow.records import results_of, snapshot_of

__all__ = ["DurablePipeline", "durable", "results_of", "snapshot_of"]
