"""Stageflow pipelines that survive: each stage's output and the context's snapshot are a version of a run.

    flow = durable(pipeline, hf, "order-7")
    results = await flow.run(input_text="…")    # a second time, in whatever process: completed stages are passed

`records` turns Stageflow's records into trees and back, `session` is one execution on a run, `pipeline` is what
`durable` gives. Needs `pip install 'holdfast[stageflow]'`.
"""

from __future__ import annotations

try:
    import stageflow as _stageflow  # noqa: F401 - told by name if it is not there
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "holdfast.integrations.stageflow needs Stageflow: pip install 'holdfast[stageflow]'", name=error.name
    ) from error

from holdfast.integrations.stageflow.pipeline import DurablePipeline, durable
from holdfast.integrations.stageflow.records import results_of, snapshot_of

__all__ = ["DurablePipeline", "durable", "results_of", "snapshot_of"]
