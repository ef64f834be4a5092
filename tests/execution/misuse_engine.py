"""What the tests of mistakes share: an engine with a run that is done."""

from __future__ import annotations

from collections.abc import Iterator

import flows_steps as f
import pytest
import step_fixtures

import holdfast
from holdfast import Holdfast

fresh = step_fixtures.fresh


@pytest.fixture
def engine() -> Iterator[Holdfast]:
    with holdfast.open(":memory:") as found:
        found.run(f.book, "kelp", run_id="done")
        yield found
