"""`holdfast show`"""

from __future__ import annotations

import json
import subprocess

import pytest
from filled_store import EVIL, LONG, SampleStore
from terminal import PROGRAM, environment

from database import Database
from holdfast import step, workflow


@step
def shown_search(topic: str, pages: int) -> str:
    return topic


@workflow
def shown_flow(topic: str) -> None:
    shown_search(topic, pages=2)


def test_show_on_a_terminal_describes_a_version(sample: SampleStore) -> None:
    lines = sample.screen("show", "report-1@3").splitlines()
    facts = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[: lines.index("")]}
    assert facts["version"] == "report-1@3"
    assert facts["kind"] == "step"
    assert facts["address"] == "search"
    assert facts["result"] == '"kelp"'
    assert facts["annotations"] == '{model: "small-1", tokens: 5, cost: 0.01}'
    assert lines[lines.index("state") :] == [
        "state",
        "├─ plan  (2 items)",
        "│  ├─ days  3",
        '│  └─ tasks  [{name: "a", done: false}, {name: "b", done: true}]',
        '└─ found  ["kelp"]',
    ]


def test_show_in_a_pipe_prints_fields(sample: SampleStore) -> None:
    facts = dict(sample.rows("show", "report-1"))
    assert facts["version"] == "report-1@6"
    assert facts["status"] == "completed"
    assert json.loads(facts["state"])["found"] == ["kelp", "urchin"]
    assert facts["error"] == ""


def test_show_in_a_pipe_prints_values_as_json(own: SampleStore) -> None:
    with own.open() as hf:
        hf.history("values").commit({"n": 1.2e-9, "t": "3"}, step="s", result="3", annotations=["a"])
    facts = dict(own.rows("show", "values"))
    assert (facts["result"], facts["annotations"]) == ('"3"', '["a"]')
    assert json.loads(facts["state"]) == {"n": 1.2e-9, "t": "3"}
    assert [row[-1] for row in own.rows("blame", "values")] == ["1.2e-09", '"3"']


def test_show_raw_refuses_a_lone_surrogate(own: SampleStore) -> None:
    with own.open() as hf:
        hf.history("torn").commit({"text": "a\ud800"})
    assert "lone surrogate" in own.refused("show", "torn", "text", "--raw", code=2)
    assert json.loads(own.pipe("show", "torn", "text"))["value"] == "a\\ud800"


def test_show_prints_json(sample: SampleStore) -> None:
    found = json.loads(sample.pipe("show", "report-1@2", "--json"))
    assert (found["run"], found["version"], found["step"]) == ("report-1", 2, "plan")
    assert found["result"] == {"ok": True}
    assert found["state"]["plan"]["days"] == 3
    assert found["failure"] is None


@pytest.mark.parametrize(
    ("ref", "number"),
    [("hand", 9), ("hand@head", 9), ("hand@4", 4), ("hand~1", 8), ("hand:good", 7), ("han@2", 2)],
)
def test_show_accepts_every_reference(sample: SampleStore, ref: str, number: int) -> None:
    assert sample.json("show", ref)["version"] == number


def test_show_of_a_failed_run_includes_the_failure(sample: SampleStore) -> None:
    """The failed step left no version; the head shows the failure."""
    text = sample.screen("show", "report-2", columns=300)
    assert "the run failed after this: ValueError: no [bold]press[/bold] \\e[2J" in text
    assert "Traceback (most recent call last):" in text
    assert "in boom" in text
    found = sample.json("show", "report-2")
    assert found["failure"]["type"].endswith("ValueError")
    assert sample.json("show", "report-2@2")["failure"] is None


def test_show_includes_the_error_of_a_version(sample: SampleStore) -> None:
    text = sample.screen("show", "[red]hostile[/red]", columns=400)
    assert "traceback\nTraceback\n" in text
    assert "[red]loud[/red]" in text
    assert "[bold]key[/bold]  " in text


def test_show_lists_the_key_and_the_names_of_attachments(own: SampleStore) -> None:
    with own.open() as hf:
        log = hf.history("keyed")
        log.commit({"n": 1})
        log.commit({"n": 2}, key="thread 1")
        log.attach("thread 1", {"writes": [1], "odd\x1b[2J\nname": 2})
    found = own.json("show", "keyed")
    assert (found["key"], found["attachments"]) == ("thread 1", ["odd\x1b[2J\nname", "writes"])
    first = own.json("show", "keyed@1")
    assert (first["key"], first["attachments"]) == (None, [])
    text = own.screen("show", "keyed", columns=200)
    assert "key          thread 1\n" in text
    assert "\x1b[2J" not in text
    assert "writes" in text
    assert "attachments" not in own.screen("show", "keyed@1", columns=200)


def test_show_of_a_version_with_a_damaged_attachment_lists_its_name(own: SampleStore) -> None:
    with own.open() as hf:
        hf.history("keyed").commit({"n": 1}, key="key")
        hf.history("keyed").attach("key", {"a": 1})
    with Database(own.store) as connection:
        assert connection.change("UPDATE attachment SET at = 0") == 1
    assert own.json("show", "keyed")["attachments"] == ["a"]
    assert "fails its hash" in own.call("verify").out


def test_show_of_a_path_prints_a_part_of_the_state(sample: SampleStore) -> None:
    assert sample.screen("show", "report-1", "plan.tasks[0]") == '├─ name  "a"\n└─ done  false'
    assert json.loads(sample.pipe("show", "report-1", "plan.tasks[0]")) == {"name": "a", "done": False}
    assert sample.json("show", "report-1", "plan.days") == 3


def test_show_options_select_one_part(sample: SampleStore) -> None:
    assert sample.json("show", "report-1@3", "--state")["found"] == ["kelp"]
    assert sample.json("show", "report-1@3", "--annotations")["tokens"] == 5
    assert sample.json("show", "report-1@3", "--result") == "kelp"
    assert sample.screen("show", "report-1@3", "--annotations").splitlines()[0] == '├─ model  "small-1"'


def test_show_raw_prints_the_value_itself(sample: SampleStore) -> None:
    assert sample.pipe("show", "report-1", "found[0]", "--raw") == "kelp"
    assert sample.pipe("show", "report-1", "--raw") == sample.pipe("show", "report-1", "--raw", "--json")
    done = subprocess.run(
        [*PROGRAM, "show", "[red]hostile[/red]", "bytes", "--raw"],
        cwd=sample.folder,
        env=environment(),
        capture_output=True,
        check=True,
    )
    assert done.stdout == EVIL.encode()


def test_show_raw_never_controls_a_terminal(sample: SampleStore) -> None:
    assert "\\e[2J" in sample.screen("show", "[red]hostile[/red]", f'["{_quoted(EVIL)}"]', "--raw")
    assert "use a pipe" in sample.screen("show", "[red]hostile[/red]", "bytes", "--raw", code=2)


def test_show_shortens_long_values_unless_all(sample: SampleStore) -> None:
    lines = sample.screen("show", LONG, "--state", columns=60).splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("…")
    assert lines[1].endswith("… (100 items)")
    assert sample.screen("show", LONG, "語", "--all", columns=1000) == f'"{"海" * 200}"'
    assert sample.screen("show", LONG, "numbers", "--all").endswith("└─ [99]  99")


def test_show_of_a_deep_state(sample: SampleStore) -> None:
    assert "{a: {b: {c: {d: {e: {f: {g: 1}}}}}}}" in sample.screen("show", "hand@1")
    assert sample.json("show", "hand@1", "deep.a.b.c.d.e.f") == {"g": 1}


def test_show_of_the_deepest_state(own: SampleStore) -> None:
    deep: object = "bottom"
    for _ in range(190):
        deep = {"a": deep}
    with own.open() as hf:
        hf.history("deep").commit({"deep": deep})
    own.screen("show", "deep", columns=40)
    assert "bottom" in own.screen("show", "deep", "--all", columns=2000)
    assert own.json("show", "deep", "deep" + ".a" * 190) == "bottom"


def test_show_of_a_huge_value(own: SampleStore) -> None:
    with own.open() as hf:
        hf.history("huge").commit({"text": "x" * 60_000, "list": [{"n": n} for n in range(20_000)]})
    text = own.screen("show", "huge")
    assert "… 19,970 more" in text
    assert len(own.json("show", "huge", "--state")["list"]) == 20_000


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (["report-1@99"], 3, "run 'report-1' has no version 99: `holdfast log report-1` lists them"),
        (["report-1@0"], 2, "versions are numbered from 1"),
        (
            ["report-1~99"],
            3,
            "has no version 99 before its head: `holdfast log report-1` lists them",
        ),
        (["HAND"], 3, "there is no run 'HAND': did you mean 'hand'?"),
        (["hand:goof"], 3, "did you mean 'good'?"),
        (["pruned@2"], 3, "version 2"),
        (["report-1", "plan.dys"], 3, "there is nothing at plan.dys: did you mean 'days'?"),
        (["report-1", "nowhere"], 3, "there is nothing at nowhere: `holdfast show REF` shows the state"),
        (["report-1", "found[9]"], 3, "there is nothing at found[9]: the list has 2 items"),
        (["report-1", "plan.["], 2, "wrong at character"),
        (["report-1", "\x1b[2J"], 2, "path"),
        (["a@b@c"], 2, "write RUN, RUN@12"),
        (["x" * 5000], 2, "too long"),
    ],
)
def test_show_of_a_missing_version_is_refused(
    sample: SampleStore, arguments: list[str], code: int, reported: str
) -> None:
    assert reported in sample.refused("show", *arguments, code=code)


def test_show_respects_no_color(sample: SampleStore) -> None:
    from terminal import Terminal

    plain = Terminal("show", "report-1", cwd=sample.folder, NO_COLOR="1")
    assert plain.end() == 0
    assert b"\x1b[3" not in plain.raw
    assert b"\x1b[9" not in plain.raw
    coloured = Terminal("show", "report-1", cwd=sample.folder)
    assert coloured.end() == 0
    assert b"\x1b[32m" in coloured.raw


def _quoted(text: str) -> str:
    return json.dumps(text)[1:-1]


def test_show_prints_arguments_by_parameter(own: SampleStore) -> None:
    with own.open() as hf:
        assert hf.run(shown_flow, "kelp", run_id="called").status == "completed"
    first = json.loads(own.pipe("show", "called@1", "--json"))
    assert first["arguments"] == {"topic": "kelp"}
    assert json.loads(own.pipe("show", "called@2", "--arguments")) == {"topic": "kelp", "pages": 2}
    lines = own.screen("show", "called@2").splitlines()
    assert lines[lines.index("arguments") :][:3] == ["arguments", '├─ topic  "kelp"', "└─ pages  2"]
    assert json.loads(own.pipe("show", "called@3", "--json"))["arguments"] is None


def test_show_and_compare_print_the_code_that_ran(own: SampleStore) -> None:
    with own.open() as hf:
        hf.run(shown_flow, "kelp", run_id="called")
        hf.fork("called@1", "other", overrides={"shown_search": lambda topic, pages: "more"})
        assert hf.resume("other").status == "completed"
    ran = json.loads(own.pipe("show", "other@2", "--json"))["implementation"]
    assert (ran["overridden"], "lambda" in ran["name"]) == (True, True)
    assert dict(own.rows("show", "called@2"))["ran"].startswith(f"{__name__}.shown_search ")
    pair = json.loads(own.pipe("compare", "called", "other", "--json"))["steps"][0]
    assert (pair["same_code"], pair["a_code"]["overridden"], pair["b_code"]) == (False, False, ran)
    assert "(override)" in own.pipe("compare", "called", "other")
