"""`holdfast mcp` in its environment: other clients, running workflows, broken stores and code.

Here each test has a server of its own.
"""

from __future__ import annotations

import flows
import pytest
from filled_store import STORE
from mcp import MCPError
from project_folder import ProjectFolder, project, until
from test_answer_stalled import frozen
from test_mcp_read_tools import READING, SECRET
from tool_agent import agent

__all__ = ["frozen", "project"]


def test_read_only_server_offers_no_write_tools(project: ProjectFolder) -> None:
    """It offers no tools that change something, and imports no code. With the handshake of older clients."""
    project.run(flows.shop, run_id="shop-1")
    (project.folder / "flows.py").write_text("raise SystemExit('imported')")
    with agent(project.folder, "--read-only", "--app", "flows", mode="legacy") as found:
        assert set(found.tools()) == READING
        assert found.client.instructions is not None
        assert "This server only reads." in found.client.instructions
        with pytest.raises(MCPError, match="unknown tool 'rollback'"):
            found.result("rollback", run="shop-1", to=1, confirm=True)
        assert found.call("runs")["runs"][0]["id"] == "shop-1"


def test_server_answers_while_a_tool_runs(project: ProjectFolder) -> None:
    """Output of a run stays out of the protocol, and a long run does not block other calls."""
    project.rewrite('    did(f"begin {name}")\n', '    print("loud")\n    did(f"begin {name}")\n')
    project.run(flows.asking, None, run_id="ask-1")
    with project.open() as hf:
        hf.history("plain").commit({})
        project.touch("go-a")
        hf.run(flows.long, ["a"], run_id="long-1")
    (project.folder / "go-a").unlink()
    project.forget()
    with agent(project.folder, "--app", "flows") as found:
        under_way = found.start("rollback", run="long-1", to=2, confirm=True)
        project.until("begin a")
        runs = {run["id"]: run["status"] for run in found.call("runs")["runs"]}
        assert runs["long-1"] == "running"
        assert found.refused("rollback", run="long-1", to=1, confirm=True)["code"] == "already_running"
        project.touch("go-a")
        assert under_way.result().structured_content["status"] == "completed"
    assert "loud" in (project.folder / "stderr.txt").read_text()


def test_run_can_be_resumed_after_the_client_left(project: ProjectFolder) -> None:
    project.touch("go-a")
    project.run(flows.long, ["a"], run_id="long-1")
    (project.folder / "go-a").unlink()
    project.forget()
    with agent(project.folder, "--app", "flows") as found:
        found.start("rollback", run="long-1", to=2, confirm=True)
        project.until("begin a")
    with project.open() as hf:
        until(lambda: not hf.get("long-1").alive)
        assert hf.get("long-1").status == "running"
        project.touch("go-a")
        assert hf.resume("long-1").result == 2
    assert "Traceback" not in (project.folder / "stderr.txt").read_text()


def test_store_error_is_reported_until_it_is_repaired(project: ProjectFolder) -> None:
    file = project.folder / STORE
    with agent(project.folder) as found:
        error = found.refused("runs")
        assert error["code"] == "store_unavailable"
        assert "there is no store at holdfast.db" in error["message"]
        assert "holdfast init" in error["message"]
        assert not file.exists()
        file.write_text("this is not a database" * 100)
        for name, given in (("runs", {}), ("show", {"ref": "a"}), ("fork", {"ref": "a", "confirm": True})):
            assert found.refused(name, **given)["code"] in ("corrupt_store", "incompatible_format")
        file.unlink()
        with project.open() as hf:
            hf.history("late").commit({})
        assert [run["id"] for run in found.call("runs")["runs"]] == ["late"]


def test_app_error_is_reported_until_it_is_repaired(project: ProjectFolder) -> None:
    with project.open() as hf:
        hf.history("a").commit({})
    with agent(project.folder, "--app", "late_app") as found:
        assert "cannot be found" in found.refused("runs")["message"]
        for code, message in (
            ("1 / 0", "cannot be imported: ZeroDivisionError"),
            ("exit(3)", "cannot be imported"),
        ):
            (project.folder / "late_app.py").write_text(code)
            assert message in found.refused("runs")["message"]
        (project.folder / "late_app.py").write_text("import holdfast\n")
        assert found.call("runs")["runs"][0]["id"] == "a"


def test_unexpected_error_is_reported_without_a_traceback(project: ProjectFolder) -> None:
    (project.folder / "faulty.py").write_text(
        "from holdfast import Holdfast\n"
        "def get(self, text, **_):\n    raise RuntimeError('a leak')\n"
        "Holdfast.get = get\n"
    )
    with project.open() as hf:
        hf.history("a").commit({})
    with agent(project.folder, "--debug", "--app", "faulty") as found:
        assert found.refused("log", run="a")["message"] == "a fault in Holdfast: RuntimeError: a leak"
        assert found.call("runs")["runs"]
    assert "Traceback" in (project.folder / "stderr.txt").read_text()


def test_failed_resume_reports_the_completed_part(project: ProjectFolder) -> None:
    project.run(flows.strict, run_id="strict-1")
    with project.open() as hf:
        hf.history("plain").commit({})
    project.rewrite('version="strict 1"', 'version="strict 2"')
    with agent(project.folder, "--app", "flows") as found:
        error = found.refused("rollback", run="strict-1", to=2, confirm=True)
        assert error["code"] == "code_changed"
        assert error["message"].startswith(
            "run 'strict-1' was rolled back, but could not be resumed: the code of"
        )
        assert found.call("log", run="strict-1")["timelines"][-1]["parent"] == 2
        error = found.refused("fork", ref="strict-1@2", new="strict-2", resume=True, confirm=True)
        assert error["message"].startswith("run 'strict-2' was made, but could not be resumed: the code of")
        assert error["details"]["run"] == "strict-2"
        # A run without a workflow is not resumed, without an error.
        for given in ({"ref": "plain", "new": "plain-2"}, {"run": "plain", "to": 1}):
            name = "fork" if "ref" in given else "rollback"
            assert found.call(name, **given, resume=True, confirm=True)["changed"]


def test_fork_is_redacted_by_the_store_of_the_app(project: ProjectFolder) -> None:
    (project.folder / "kept.py").write_text(
        "import holdfast\nhf = holdfast.open('own.db', redact=['api_key'])\n"
        "if not hf.runs():\n    hf.history('a').commit({'client': {}})\n"
    )
    with agent(project.folder, "--app", "kept:hf") as found:
        found.call("fork", ref="a", new="b", set={"client": {"api_key": SECRET}}, confirm=True)
        assert SECRET not in found.result("show", ref="b").model_dump_json()


def test_stalled_run_is_answered(frozen: ProjectFolder) -> None:
    with agent(frozen.folder, "--app", "thaw") as found:
        (question,) = found.call("inbox")["questions"]
        assert question["details"]["symptom"] == "silent"
        before = frozen.bytes()
        for choice, expected in (
            ("resume", "2 completed steps will be replayed from history"),
            ("rollback", "on a new timeline"),
            ("reinitialize", "of the state, these parts are kept: none"),
            ("cancel", "frozen-1 is cancelled, for good"),
        ):
            given = {"version": 2} if choice == "rollback" else {}
            plan = found.call("answer", question="frozen-1", value=choice, **given)
            assert any(expected in line for line in plan["would"]), plan
        assert found.refused("answer", question="frozen-1", value="burn")["code"] == "invalid_answer"
        assert frozen.bytes() == before
        done = found.call("answer", question="frozen-1", value="rollback", version=2, confirm=True)
        assert (done["status"], done["result"]) == ("completed", "over")
        assert found.call("log", run="frozen-1")["timelines"][-1]["parent"] == 2
