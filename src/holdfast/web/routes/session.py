"""Sessions: the current caller, launch codes, and the launch URL."""

from __future__ import annotations

from importlib.metadata import version
from typing import Literal, TypedDict

from starlette.responses import PlainTextResponse, RedirectResponse, Response

from holdfast.web.auth import CODE_SECONDS, Caller
from holdfast.web.errors import RequestRefused
from holdfast.web.operation import Body, Name, OperationTable, Query, Role
from holdfast.web.service import Service
from holdfast.workflow.definition import workflows

TABLE = OperationTable("session")
#: The operation that a browser opens first.
LAUNCH = OperationTable("session", "")

_TOO_LATE = (
    "This link has been used already, or has expired: it opens the page once, within a few minutes.\n\n"
    "Start `holdfast ui` again for another one, or ask the server with its token: POST /api/v1/codes\n"
)


class SessionView(TypedDict):
    """Current caller, and the server. `workflows` are those whose code the server has."""

    role: str
    #: Recorded as the actor of your changes.
    name: str
    read_only: bool
    store: str
    version: str
    workflows: list[str]
    legacy_get: bool


class CodeBody(Body):
    """Role of the code; by default your own."""

    role: Literal["viewer", "operator", "admin"] | None = None


class LaunchCode(TypedDict):
    """URL that opens the page once, and the seconds for which it is valid."""

    code: str
    url: str
    seconds: float


class LaunchQuery(Query):
    """The launch code in the URL that `holdfast serve` printed."""

    code: Name


@TABLE.add("GET", "/session", Role.VIEWER)
def get_session(service: Service, caller: Caller) -> SessionView:
    """Return the current caller, and facts about the server."""
    return {
        "role": caller.role.name.lower(),
        "name": caller.name,
        "read_only": service.credentials.read_only,
        "store": service.settings.store,
        "version": version("holdfast"),
        "workflows": sorted(workflows()),
        "legacy_get": service.settings.legacy_get,
    }


@TABLE.add("DELETE", "/session", Role.VIEWER)
def end_session(service: Service, caller: Caller) -> None:
    """End the session of this browser, and those that came from its codes. A token stays valid."""
    service.credentials.end(caller)


@TABLE.add("POST", "/codes", Role.VIEWER)
def make_code(service: Service, body: CodeBody, caller: Caller) -> LaunchCode:
    """Create a one-time code that opens the page in another browser, with your role or a lower one.

    Its session ends with yours. A session that came from the code of another session cannot create codes."""
    role = caller.role if body.role is None else Role[body.role.upper()]
    if role > caller.role:
        raise RequestRefused(
            403, "wrong_role", f"you cannot grant the role {role.name.lower()}, which you do not have"
        )
    code = service.credentials.code(role, caller)
    return {"code": code, "url": launch_url(service.settings.origin, code), "seconds": CODE_SECONDS}


@LAUNCH.add("GET", "/launch", Role.PUBLIC, changes=True)
def launch(service: Service, query: LaunchQuery) -> Response:
    """Open the page: exchange the code for a session, and redirect to a URL without it."""
    session = service.credentials.redeem(query.code)
    if session is None:
        return PlainTextResponse(_TOO_LATE, status_code=403)
    response = RedirectResponse("/", status_code=303)
    response.set_cookie(
        service.settings.cookie,
        session,
        max_age=int(service.credentials.seconds_left(session)),
        httponly=True,
        samesite="strict",
        secure=service.settings.https,
        path="/",
    )
    return response


def launch_url(origin: str, code: str) -> str:
    """Return the URL that opens the page once."""
    return f"{origin}/launch?code={code}"
