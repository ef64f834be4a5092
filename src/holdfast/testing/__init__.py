"""Helpers for tests of code that uses Holdfast, and of stores.

`isolated_definitions()` is a block whose steps and workflows are removed when it ends, so that tests can define
functions of the same name. `conformance` contains the contracts of `holdfast.store.protocol` as tests that every store
must pass; it needs pytest.
"""

from holdfast.workflow.definition import isolated_definitions

__all__ = ["isolated_definitions"]
