"""The tests that every store must pass, for the authors of stores.

Subclass `StoreConformance` in a test module and give it a fixture `store` that yields an empty store:

    import pytest
    from holdfast.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self, tmp_path):
            store = MyStore(tmp_path / "runs")
            yield store
            store.close()

Invariant: what is tested here is what `holdfast.store.base` promises, and nothing that only one store does.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "holdfast.testing.conformance_artifacts",
    "holdfast.testing.conformance_finding",
    "holdfast.testing.conformance_journal",
    "holdfast.testing.conformance_leases",
    "holdfast.testing.conformance_many",
    "holdfast.testing.conformance_queue",
    "holdfast.testing.conformance_runs",
    "holdfast.testing.conformance_threads",
    "holdfast.testing.conformance_values",
    "holdfast.testing.conformance_versions",
    "holdfast.testing.conformance_whole",
)

from holdfast.testing.conformance_artifacts import ArtifactContract  # noqa: E402 - after the rewriting
from holdfast.testing.conformance_finding import FindContract  # noqa: E402
from holdfast.testing.conformance_journal import JournalContract  # noqa: E402
from holdfast.testing.conformance_leases import LeaseContract  # noqa: E402
from holdfast.testing.conformance_many import ManyContract  # noqa: E402
from holdfast.testing.conformance_queue import QueueContract  # noqa: E402
from holdfast.testing.conformance_runs import RunContract  # noqa: E402
from holdfast.testing.conformance_threads import ThreadContract  # noqa: E402
from holdfast.testing.conformance_values import ValueContract  # noqa: E402
from holdfast.testing.conformance_versions import VersionContract  # noqa: E402
from holdfast.testing.conformance_whole import WholeContract  # noqa: E402


class StoreConformance(
    RunContract,
    FindContract,
    ManyContract,
    VersionContract,
    JournalContract,
    ArtifactContract,
    ValueContract,
    QueueContract,
    LeaseContract,
    WholeContract,
    ThreadContract,
):
    """All contracts of a store. Subclasses provide the fixture `store`: an empty one for each test."""
