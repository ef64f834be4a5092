"""Runs the session tests of the OpenAI Agents SDK on `HoldfastSession`: a pytest plugin, loaded with `-p`.

The SDK's `SQLiteSession`, `AsyncSQLiteSession` and `SQLAlchemySession` are replaced before a test module
imports them. A path is a store at that path, and `:memory:` a store of its own.

A test that needs private attributes or tables of the replaced classes cannot pass. Those tests are listed here, with
their reason, and are reported as expected failures. Every other failure is a fault of ours.

Invariant: the substitutes add only the constructors and the public attributes of the replaced classes; `close` also
closes the store that the constructor has opened. Everything else is the adapter as users have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import agents
import agents.extensions.memory
import agents.memory
import pytest

import holdfast
from holdfast import Holdfast
from holdfast.integrations.openai_agents import HoldfastSession

_MEMORY = "agents.extensions.memory"
_ROWS = "write or read rows of the replaced class's tables"
_CONNECTIONS = "look at connections, locks, statements or caches of the replaced class"
_FAULTS = (
    "pause or break a database call inside the replaced class; "
    "tests/integrations/test_openai_faults.py has such cases for HoldfastSession"
)
#: Starts of the names of tests that cannot pass, by reason.
_EXPECTED_FAILURES = {
    _ROWS: (
        # Rows that are not JSON, or have a certain time.
        "test_async_sqlite_session_get_items_limit_skips_corrupt_newest_rows",
        "test_async_sqlite_session_get_items_same_timestamp_consistent_order",
        "test_async_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows",
        "test_async_sqlite_session_pop_item_same_timestamp_returns_latest",
        "test_async_sqlite_session_pop_item_skips_corrupt_most_recent",
        "test_get_items_limit_skips_corrupt_newest_rows",
        "test_get_items_orders_by_id_for_ties",
        "test_get_items_same_timestamp_consistent_order",
        "test_pop_item_returns_none_after_dropping_only_corrupt_rows",
        "test_pop_item_same_timestamp_returns_latest",
        "test_pop_item_skips_corrupt_most_recent",
        "test_replacement_uses_timestamp_order_not_id_order",
        "test_sqlite_session_get_items_limit_skips_corrupt_newest_rows",
        "test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows",
        "test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows",
        "test_sqlite_session_pop_item_skips_corrupt_most_recent",
        # The stored text.
        "test_sqlalchemy_session_can_store_non_ascii_without_escaping",
        "test_sqlalchemy_session_defaults_to_escaped_non_ascii_storage",
        # The rows before and after a call that fails.
        "test_encrypted_pop_authentication_is_atomic_with_concurrent_mutations",
        "test_encrypted_pop_wrong_key_preserves_row_identity",
        "test_sqlite_session_failed_add_items_releases_write_lock",
    ),
    _CONNECTIONS: (
        "test_add_items_cancelled_waiter_does_not_strand_table_init_lock",
        "test_create_tables_false_does_not_allocate_shared_init_lock",
        "test_failed_add_items_rolls_back_and_reuses_connection",
        "test_sqlite_configuration_registry_does_not_grow_unbounded",
        "test_sqlite_configuration_registry_releases_collected_engines",
        "test_sqlite_fallback_reserves_writer_before_tail_claim",
        "test_sqlite_session_close_closes_worker_thread_connections",
        "test_sqlite_session_closes_retired_connections_before_the_next_allocation",
        "test_sqlite_session_file_lock_is_shared_across_instances",
        "test_sqlite_session_keeps_connections_of_live_worker_threads",
        "test_sqlite_session_reaps_connections_from_exited_worker_threads",
    ),
    _FAULTS: (
        # While it connects.
        "test_close_retries_quarantined_failed_initialization_candidate",
        "test_failed_initialization_closes_candidate_connection",
        "test_initialization_does_not_retry_unrecoverable_wal_errors",
        "test_initialization_retries_transient_wal_lock",
        # While it writes.
        "test_cancelled_add_items_rolls_back_write_transaction",
        "test_failed_clear_session_rolls_back",
        "test_failed_pop_item_releases_write_lock",
        "test_mutation_cancellation_waits_for_transaction_exit",
        "test_operation_failure_then_cancellation_during_rollback",
        "test_parent_constraint_rejection_propagates",
        "test_pop_item_retries_returning_claim_lost_to_concurrent_delete",
        "test_pop_item_supports_unknown_delete_rowcount",
        "test_post_commit_cancellation_propagates_after_known_mutation_outcome",
        "test_rollback_failure_closes_and_evicts_connection",
        "test_settled_clear_failure_invalidates_response_chain",
        "test_settled_pop_failure_invalidates_response_chain",
        "test_sqlite_session_failed_clear_session_rolls_back",
        "test_sqlite_session_failed_pop_item_releases_write_lock",
        "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome",
        "test_sqlite_session_rollback_failure_evicts_connection",
        # While it is compacted.
        "test_cancelled_replacement_settles_before_other_instance_append",
        "test_cancelled_suffix_transaction_settles_before_newer_append",
        "test_encrypted_prefix_cleanup_is_atomic[file-True-",
        "test_encrypted_prefix_cleanup_is_atomic[memory-True-",
        "test_failed_encrypted_suffix_transaction_preserves_original_tokens",
        "test_failed_replacement_preserves_history_during_other_instance_access",
        "test_handoff_resume_after_cancelled_compaction_commits",
        "test_suffix_transaction_rolls_back_failed_insert",
        # While it is closed.
        "test_cancelled_close_finishes_cleanup_and_propagates_cancellation",
        "test_close_retries_connection_quarantined_after_rollback_failure",
        "test_sqlite_session_close_retries_quarantined_connection",
    ),
}
#: Tests that wait for such a call for ever.
_NOT_RUN = (
    "test_cancelled_wal_retry_closes_startup_connection",
    "test_cancelled_initialization_finishes_candidate_close",
    "test_initialization_failure_then_cancellation_during_candidate_close",
    "test_cancelled_connect_closes_eventually_acquired_connection",
)
#: Stores that the current test has opened; those of an engine also by its identity.
_opened: list[Holdfast] = []
_by_engine: dict[int, Holdfast] = {}


def _open(path: str | Path) -> Holdfast:
    _opened.append(holdfast.open(str(path), durability="fast"))
    return _opened[-1]


class SQLiteSession(HoldfastSession):
    """`HoldfastSession` with the constructor of `agents.SQLiteSession`."""

    def __init__(
        self,
        session_id: str,
        db_path: str | Path = ":memory:",
        sessions_table: str = "agent_sessions",
        messages_table: str = "agent_messages",
        session_settings: Any = None,
    ) -> None:
        self.db_path = db_path
        self.sessions_table, self.messages_table = sessions_table, messages_table
        self._store = _open(db_path)
        super().__init__(session_id, self._store, session_settings=session_settings)

    def close(self) -> Any:
        super().close()
        self._store.close()


class AsyncSQLiteSession(SQLiteSession):
    """`HoldfastSession` with the constructor of `agents.extensions.memory.AsyncSQLiteSession`."""

    async def close(self) -> None:  # type: ignore[override]
        super().close()


class SQLAlchemySession(HoldfastSession):
    """`HoldfastSession` with the constructors of `agents.extensions.memory.SQLAlchemySession`."""

    def __init__(self, session_id: str, *, engine: Any, session_settings: Any = None, **options: Any) -> None:
        self._engine = engine
        store = _by_engine.get(id(engine))
        if store is None:
            path = engine.url.database or ":memory:"
            store = _by_engine[id(engine)] = _open(path if path == ":memory:" else f"{path}.holdfast")
        super().__init__(session_id, store, session_settings=session_settings)

    @property
    def engine(self) -> Any:
        return self._engine

    @classmethod
    def from_url(
        cls, session_id: str, *, url: str, engine_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> SQLAlchemySession:
        create = import_module("sqlalchemy.ext.asyncio").create_async_engine
        return cls(session_id, engine=create(url, **(engine_kwargs or {})), **options)


def _replace(cls: type[HoldfastSession], *modules: Any) -> None:
    for module in modules:
        vars(module)[cls.__name__] = cls


def pytest_configure() -> None:
    # Built on the class of the SDK, and imported before it is replaced.
    for name in ("advanced_sqlite_session", "encrypt_session"):
        import_module(f"{_MEMORY}.{name}")
    _replace(SQLiteSession, agents, agents.memory, import_module("agents.memory.sqlite_session"))
    for cls, name in (
        (AsyncSQLiteSession, "async_sqlite_session"),
        (SQLAlchemySession, "sqlalchemy_session"),
    ):
        _replace(cls, agents.extensions.memory, import_module(f"{_MEMORY}.{name}"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for reason, names in _EXPECTED_FAILURES.items():
            if item.name.startswith(names):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
        if item.name in _NOT_RUN:
            item.add_marker(pytest.mark.xfail(reason=_FAULTS, run=False))


@pytest.fixture(autouse=True)
def _close_stores() -> Iterator[None]:
    yield
    _by_engine.clear()
    while _opened:
        _opened.pop().close()
