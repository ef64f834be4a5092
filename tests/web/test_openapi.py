"""The description of the API: it is one, it describes what is served, and whatever is sent is answered as it says."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from filled_store import STORE
from hypothesis import HealthCheck, settings
from jsonschema import Draft202012Validator
from schemathesis import Case, CheckContext, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from web_server import TOKENS, Served, serving

import holdfast
from holdfast import Holdfast
from holdfast.loops import LoopEngine
from holdfast.web import app
from holdfast.web.app import table
from holdfast.web.operation import Role

DOCUMENT = app.openapi_document(table(legacy_get=True))
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
# A query that is larger than all headers may be is refused for that.
_REJECTION = SCHEMA.config.checks.negative_data_rejection
_REJECTION.expected_statuses = [*(_REJECTION.expected_statuses or []), "431"]
#: How a refusal begins that is about the form.
_FORM = ("parameters:", "the body:", "the body is not JSON", "unknown parameter")


@schemathesis.check
def what_fits_is_understood(ctx: CheckContext, response: Response, case: Case[Any]) -> bool | None:
    """A request that fits the description is refused for its meaning only, never for its form."""
    if case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE:
        detail = str(response.json().get("detail", "")) if response.status_code in (400, 422) else ""
        # JSON Schema takes 3.0 for a whole number.
        assert not detail.startswith(_FORM) or "got `float`" in detail, detail
    return None


#: What every answer is held to. That all that fits is accepted is not among it: a description cannot say which runs
#: there are, nor what is a reference. But it is understood.
CHECKS = [
    what_fits_is_understood,
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
#: Existing names, for parts of paths that cannot be guessed.
THERE = {
    "run": ["report-1", "hand", "asks", "forked", "[red]hostile[/red]", "died"],
    "version": ["head", "2", "~1", "1"],
    "question": ["asks#1"],
    "tag": ["good", "a/b"],
    "queue": ["default"],
    "project_id": ["loop one"],
}


#: Examples of each operation, in addition to those in its description.
EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "3"))
#: Kept open: to make a connection takes longer than to answer.
SESSION = requests.Session()


def add_loops(hf: Holdfast) -> None:
    """Add the projects of `THERE`, with a snapshot, an agent and a question."""
    engine = LoopEngine(hf, check_every=None)
    for project in THERE["project_id"]:
        engine.save_loop_snapshot(project, {"loop_count": 1})
        engine.log_agent_start(project, "writer")
        engine.auto_restore_if_configured(project, "crash")


@pytest.fixture(scope="module")
def fuzzed(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("fuzzed") / "store"
    shutil.copytree(filled, folder)
    where = str(folder / STORE)
    with holdfast.open(where, durability="memory") as hf, serving(hf, where=where, legacy_get=True) as found:
        add_loops(hf)
        # Streams end at once.
        found.server.app.broadcaster.end_streams()
        yield found


@pytest.mark.slow
@SCHEMA.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_response_matches_the_description(case: Case[Any], fuzzed: Served) -> None:
    headers = {"Authorization": f"Bearer {TOKENS[Role.ADMIN]}"}
    case.call_and_validate(base_url=fuzzed.url, headers=headers, checks=CHECKS, session=SESSION)
    for number in range(2):
        for name in case.path_parameters or {}:
            if name in THERE:
                case.path_parameters[name] = THERE[name][number % len(THERE[name])].replace("/", "%2F")
        if case.method != "DELETE" or case.path[-12:] not in ("1/runs/{run}", "{project_id}"):
            case.call_and_validate(base_url=fuzzed.url, headers=headers, checks=CHECKS, session=SESSION)


def test_request_lists_are_bounded() -> None:
    taken = {kind for operation in table() for kind in (operation.query, operation.body) if kind is not None}
    lists = {
        (kind.__name__, name): schema
        for kind in taken
        for name, schema in msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"].items()
        if schema.get("type") == "array"
    }
    assert ("RunsQuery", "tag") in lists
    assert [name for name, schema in lists.items() if "maxItems" not in schema] == []


def test_description_lists_every_operation(served: Served) -> None:
    client = served.client()
    cookie = served.server.app.service.settings.cookie
    reported = client.get("/api/v1/openapi.json").json()
    assert reported == json.loads(json.dumps(app.openapi_document(table(), cookie)))
    found = {
        (method.upper(), path)
        for path, methods in app.openapi_document(table())["paths"].items()
        for method in methods
    }
    assert found == {(operation.method, operation.path) for operation in table()}
    assert len({operation.name for operation in table(legacy_get=True)}) == len(table(legacy_get=True))


def test_description_is_valid_openapi() -> None:
    """Every reference leads somewhere, every schema is one, every part of a path is described."""
    text = json.dumps(DOCUMENT)
    for name in set(re.findall(r"#/components/schemas/([\w.]+)", text)):
        Draft202012Validator.check_schema(DOCUMENT["components"]["schemas"][name])
    for path, methods in DOCUMENT["paths"].items():
        for described in methods.values():
            names = {each["name"] for each in described["parameters"] if each["in"] == "path"}
            assert names == set(re.findall(r"\{(\w+)\}", path))
            assert described["summary"].endswith(".")
            assert described["x-role"] in ("public", "viewer", "operator", "admin")


def test_responses_have_no_undescribed_fields(own: Holdfast, mine: Served) -> None:
    """The records are closed for this: an undescribed field would not be found otherwise."""
    add_loops(own)
    schemas = json.loads(json.dumps(DOCUMENT["components"]["schemas"]))
    for schema in schemas.values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    whole = {"$defs": schemas}
    for operation in table():
        if operation.method != "GET" or operation.subject in ("debug",) or "{task}" in operation.path:
            continue
        path = operation.path
        for name, there in {**THERE, "digest": ["0"]}.items():
            path = path.replace(f"{{{name}}}", there[0].replace("#", "%23"))
        query: dict[str, Any] = {
            "a": "report-1@2",
            "b": "report-1@4",
            "depth": 2,
            "annotations": True,
            "values": True,
        }
        known = {each["name"] for each in DOCUMENT["paths"][operation.path]["get"]["parameters"]}
        if operation.name in ("stream_events", "launch", "get_raw", "export_bundle", "get_artifact"):
            continue
        found = mine.client().get(
            path, params={name: value for name, value in query.items() if name in known}
        )
        assert found.status_code == 200, found.text
        content = DOCUMENT["paths"][operation.path]["get"]["responses"]["200"]["content"]
        schema = json.loads(
            json.dumps(content["application/json"]["schema"]).replace("components/schemas", "$defs")
        )
        closed = json.loads(json.dumps(whole).replace("components/schemas", "$defs"))
        Draft202012Validator({**closed, **schema}).validate(found.json())
