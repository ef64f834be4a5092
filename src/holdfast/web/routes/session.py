"""Who is here: the session of a browser, codes for others, the description of the API."""

from __future__ import annotations

from importlib.metadata import version
from typing import Literal, TypedDict

from starlette.responses import PlainTextResponse, RedirectResponse, Response

from holdfast.runtime.definition import workflows
from holdfast.web.auth import CODE_LIVES, Caller
from holdfast.web.fields import Body, Name, Query
from holdfast.web.operation import Role, Table
from holdfast.web.problems import Refused
from holdfast.web.service import Service

TABLE = Table("session")
#: What a browser opens first.
LAUNCH = Table("session", "")

_TOO_LATE = (
    "This link was used already, or is too old: it opens the page once, within a few minutes.\n\n"
    "Start `holdfast ui` again for another one, or ask the server with its token: POST /api/v1/codes\n"
)


class Session(TypedDict):
    """Who you are to the server, and what it serves. `workflows` are those whose code it knows."""

    role: str
    #: Kept as the actor of what you do.
    name: str
    read_only: bool
    store: str
    version: str
    workflows: list[str]
    legacy_get: bool


class CodeBody(Body):
    """The role that the code gives; yours, if it is not said."""

    role: Literal["viewer", "operator", "admin"] | None = None


class Code(TypedDict):
    """A URL that opens the page once, and for how many seconds."""

    code: str
    url: str
    seconds: float


class LaunchQuery(Query):
    """The code that `holdfast serve` printed."""

    code: Name


@TABLE.add("GET", "/session", Role.VIEWER)
def get_session(service: Service, caller: Caller) -> Session:
    """Who you are, and what is served."""
    return {
        "role": caller.role.name.lower(),
        "name": caller.name,
        "read_only": service.keys.read_only,
        "store": service.settings.store,
        "version": version("holdfast"),
        "workflows": sorted(workflows()),
        "legacy_get": service.settings.legacy_get,
    }


@TABLE.add("DELETE", "/session", Role.VIEWER)
def end_session(service: Service, caller: Caller) -> None:
    """End the session of this browser, and those that came from codes of it. A token stays as it is."""
    service.keys.end(caller)


@TABLE.add("POST", "/codes", Role.VIEWER)
def make_code(service: Service, body: CodeBody, caller: Caller) -> Code:
    """A one-time code that opens the page in another browser, with your role or a lesser one.

    The session that it becomes ends when yours does. A session that came from the code of another session gets none."""
    role = caller.role if body.role is None else Role[body.role.upper()]
    if role > caller.role:
        raise Refused(
            403, "wrong_role", f"you cannot give the role {role.name.lower()}, which you do not have"
        )
    code = service.keys.code(role, caller)
    return {"code": code, "url": launch_url(service.settings.origin, code), "seconds": CODE_LIVES}


@LAUNCH.add("GET", "/launch", Role.PUBLIC, changes=True)
def launch(service: Service, query: LaunchQuery) -> Response:
    """Open the page: the code becomes a session, and leaves the URL."""
    session = service.keys.redeem(query.code)
    if session is None:
        return PlainTextResponse(_TOO_LATE, status_code=403)
    response = RedirectResponse("/", status_code=303)
    response.set_cookie(
        service.settings.cookie,
        session,
        max_age=int(service.keys.seconds_left(session)),
        httponly=True,
        samesite="strict",
        secure=service.settings.https,
        path="/",
    )
    return response


def launch_url(origin: str, code: str) -> str:
    """The URL that opens the page once."""
    return f"{origin}/launch?code={code}"
