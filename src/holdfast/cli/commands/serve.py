"""`holdfast serve` and `holdfast ui`"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.desk.words import plain
from holdfast.errors import InvalidCall

if TYPE_CHECKING:
    from holdfast.web.operation import Role
    from holdfast.web.server import Server

F = TypeVar("F", bound=Callable[..., Any])
#: Characters of a token; fewer could be guessed.
_SHORTEST = 20
_PORT = 7433


def _served(function: F) -> F:
    """The options of both commands."""
    for option in (
        click.option(
            "--https", is_flag=True, help="It stands behind a proxy that speaks HTTPS: cookies are Secure."
        ),
        click.option(
            "--legacy-get", is_flag=True, help="Also take debug routes that change something by GET."
        ),
        click.option("--read-only", is_flag=True, help="Let nobody change anything, whatever their role."),
        click.option(
            "--token-file",
            metavar="FILE",
            help="Tokens, one a line, each after its role (viewer, operator, admin); made if it is not there.",
        ),
        click.option(
            "--allowed-host",
            "allowed_hosts",
            multiple=True,
            metavar="HOST[:PORT]",
            help="Another name by which it may be called, as a browser writes it. Repeatable.",
        ),
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            show_default=str(_PORT),
            help="0 for any that is free. Where it is not said and taken, `ui` takes another.",
        ),
        click.option(
            "--host",
            default="127.0.0.1",
            show_default=True,
            metavar="ADDRESS",
            help="The address to listen on.",
        ),
    ):
        function = option(function)
    return function


@command("serve")
@_served
def serve_command(call: Call, **how: Any) -> int:
    """Serve the page and the API, for this machine, until a signal comes.

    Prints a URL that opens the page once. Programs send the token as Authorization: Bearer. Elsewhere than on this
    machine it listens only if it has a token (--token-file, or HOLDFAST_TOKEN) and a name (--allowed-host). To go on
    with runs here, it needs their code: --app.
    """
    return _serve(call, how, opens=False)


@command("ui")
@_served
def ui_command(call: Call, **how: Any) -> int:
    """Serve the page, as `serve` does, and open it in a browser."""
    return _serve(call, how, opens=True)


def _serve(call: Call, how: dict[str, Any], *, opens: bool) -> int:
    from holdfast.web import server as server_module

    hf = call.with_code()
    place = call.place
    token_file = how.pop("token_file")
    port = how.pop("port")
    options = server_module.Options(
        tokens=_tokens(token_file),
        port=_PORT if port is None else port,
        any_port=opens and port is None,
        **how,
    )

    def started() -> None:
        _tell(call, server, place.shown, opens, token_file)

    server: Server = server_module.Server(
        hf, options, store=place.shown, where=hf.where or place.where, started=started
    )
    server.serve_until_told()
    if not call.out.json:
        for run in server.left():
            call.out.say(plain(f"{run} was under way here: `holdfast resume {run}` goes on with it"))
        call.out.say("stopped")
    return exits.DONE


def _tell(call: Call, server: Server, store: str, opens: bool, token_file: str | None) -> None:
    """Where it is. The token is told to whoever asked for JSON, or sits at the terminal: never to a log."""
    out = call.out
    launch = server.launch()
    if out.json:
        record = {"url": server.origin, "launch": launch, "store": store, "pid": os.getpid()}
        out.document({**record, "token": server.token} if server.token else record)
    else:
        out.say(plain(f"serves {store} at {server.origin}; Ctrl-C ends it"))
        if not server.app.page.there:
            out.say(
                "the page is not built: the API works; install Node.js and run `make setup` in a checkout for the page"
            )
        out.text(f"open   {launch}")
        if server.token and out.for_people:
            out.text(f"token  {server.token}")
        elif server.token and token_file is None:
            out.say("programs need a token: say --token-file FILE, or --json")
    sys.stdout.flush()
    if opens:
        import webbrowser

        if not webbrowser.open(launch):
            out.say("no browser could be opened: open the URL yourself")


def _tokens(file: str | None) -> list[tuple[str, Role]]:
    """The tokens that are given: those in a file, and the one in the environment, which is an admin's."""
    from holdfast.web.auth import new_token
    from holdfast.web.operation import Role

    found: list[tuple[str, Role]] = []
    named = os.environ.get("HOLDFAST_TOKEN")
    if named:
        found.append((_checked(named, "HOLDFAST_TOKEN"), Role.ADMIN))
    if file is None:
        return found
    path = Path(file)
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return [*found, *_read(path)]
    token = new_token()
    with os.fdopen(opened, "w") as made:
        made.write(f"admin {token}\n")
    return [*found, (token, Role.ADMIN)]


def _read(path: Path) -> list[tuple[str, Role]]:
    from holdfast.web.operation import Role

    with path.open() as file:
        if os.name == "posix" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise InvalidCall(f"{path} can be read by others: chmod 600 {path}")
        lines = file.read().splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        role, _, token = line.strip().partition(" ")
        if not role or role.startswith("#"):
            continue
        if role not in ("viewer", "operator", "admin"):
            raise InvalidCall(
                f"{path}, line {number}: write the role (viewer, operator, admin), then the token"
            )
        found.append((_checked(token.strip(), f"{path}, line {number}"), Role[role.upper()]))
    if not found:
        raise InvalidCall(f"{path} holds no token: write a role and a token in a line, or delete the file")
    return found


def _checked(token: str, where: str) -> str:
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidCall(
            f"{where}: a token has at least {_SHORTEST} letters, digits and signs, without spaces"
        )
    return token
