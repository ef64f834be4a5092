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

Invariant: the tests check the promises of `holdfast.store.protocol`, and nothing that only one store does.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "holdfast.testing.conformance.attachments",
    "holdfast.testing.conformance.concurrency",
    "holdfast.testing.conformance.items",
    "holdfast.testing.conformance.meta",
    "holdfast.testing.conformance.questions",
    "holdfast.testing.conformance.queues",
    "holdfast.testing.conformance.runs",
    "holdfast.testing.conformance.versions",
    "holdfast.testing.conformance.whole_store",
)

# After the registration, which only affects modules that are imported later.
from holdfast.testing.conformance.attachments import AttachmentContract, KeyContract  # noqa: E402
from holdfast.testing.conformance.concurrency import AppendManyContract, ConcurrencyContract  # noqa: E402
from holdfast.testing.conformance.items import ItemContract, ItemVectorContract  # noqa: E402
from holdfast.testing.conformance.meta import MetaContract  # noqa: E402
from holdfast.testing.conformance.questions import QuestionContract  # noqa: E402
from holdfast.testing.conformance.queues import LeaseContract, QueueContract  # noqa: E402
from holdfast.testing.conformance.runs import RunContract, RunListContract  # noqa: E402
from holdfast.testing.conformance.versions import JournalContract, VersionContract  # noqa: E402
from holdfast.testing.conformance.whole_store import ArtifactContract, ValueContract, WholeStoreContract  # noqa: E402

__all__ = ["RunContract", "StoreConformance", "WholeStoreContract"]


class StoreConformance(
    RunContract,
    RunListContract,
    AppendManyContract,
    VersionContract,
    JournalContract,
    KeyContract,
    AttachmentContract,
    ArtifactContract,
    ValueContract,
    QueueContract,
    LeaseContract,
    QuestionContract,
    MetaContract,
    ItemContract,
    ItemVectorContract,
    WholeStoreContract,
    ConcurrencyContract,
):
    """All contracts of a store. Subclasses provide the fixture `store`, an empty store for each test."""
