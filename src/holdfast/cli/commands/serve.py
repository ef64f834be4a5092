"""`holdfast serve` and `holdfast ui`"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.settings import find_app
from holdfast.desk.words import plain
from holdfast.errors import InvalidCall
from holdfast.operating_system import has_file_modes

if TYPE_CHECKING:
    from holdfast.web.auth import Token
    from holdfast.web.server import Server

F = TypeVar("F", bound=Callable[..., Any])
#: Characters of a token; fewer could be guessed.
_SHORTEST = 20
_LONGEST_NAME = 100
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
            help="Tokens, one a line: role (viewer, operator, admin), token, name; made if it is not there.",
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
    with runs here, it needs their code: --app, or HOLDFAST_APP. An app that pyproject.toml names is not imported.
    """
    return _serve(call, how, opens=False)


@command("ui")
@_served
def ui_command(call: Call, **how: Any) -> int:
    """Serve the page, as `serve` does, and open it in a browser."""
    return _serve(call, how, opens=True)


def _serve(call: Call, how: dict[str, Any], *, opens: bool) -> int:
    from holdfast.web import server as server_module

    # To look at the store in a folder is not to ask for the code in it.
    hf = call.with_code(asked=True)
    hf.listen()
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
        _tell(call, server, place.shown, redirect, token_file)

    server: Server = server_module.Server(
        hf, options, store=place.shown, where=hf.where or place.where, started=started
    )
    redirect = Redirect() if opens else None
    try:
        server.serve_until_told()
    finally:
        if redirect is not None:
            redirect.remove()
    if not call.out.json:
        for run in server.left():
            call.out.say(plain(f"{run} was under way here: `holdfast resume {run}` goes on with it"))
        call.out.say("stopped")
    return exits.DONE


class Redirect:
    """A file that leads a browser to the launch URL. The command line of a browser, which others on this machine can
    read, names the file, which only its owner can read. It is removed when the code in it has been used."""

    def __init__(self) -> None:
        self._folder: str | None = None

    def open(self, url: str) -> bool:
        """Open the URL in a browser; return whether one was found."""
        import tempfile
        import webbrowser
        from html import escape

        # For its owner alone, and so is what lies in it.
        self._folder = tempfile.mkdtemp(prefix="holdfast-")
        path = Path(self._folder) / "open.html"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(
                '<!doctype html><meta charset="utf-8"><title>Holdfast</title>'
                f'<meta http-equiv="refresh" content="0;url={escape(url)}">'
            )
        return webbrowser.open(path.as_uri())

    def remove(self) -> None:
        """Remove the file."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _tell(call: Call, server: Server, store: str, redirect: Redirect | None, token_file: str | None) -> None:
    """Print where it is. Secrets are printed on a terminal or as JSON only: never into a log."""
    out = call.out
    if out.json:
        launch = server.launch()
        record = {
            "url": server.origin,
            "launch": launch,
            "store": store,
            "pid": os.getpid(),
            "page": server.app.page.there,
        }
        out.document({**record, "token": server.token} if server.token else record)
    else:
        out.say(plain(f"serves {store} at {server.origin}; Ctrl-C ends it"))
        if not server.app.page.there:
            from holdfast.web.page import REMEDY

            out.say(f"this installation does not include the web page, only the API is served: {REMEDY}")
        named, meant = find_app(call.app, asked=True), find_app(call.app)
        if named is None and meant is not None:
            out.say(
                plain(f"the code that pyproject.toml names is not imported: say --app {meant} to run it here")
            )
        if out.for_people:
            out.text(f"open   {server.launch()}")
            if server.token:
                out.text(f"token  {server.token}")
        else:
            missing = "" if token_file is None and server.token else "; or POST /api/v1/codes with your token"
            out.say(f"the URL that opens the page is printed on a terminal, or with --json{missing}")
            if server.token:
                out.say("programs need a token: say --token-file FILE, or --json")
    sys.stdout.flush()
    if redirect is not None and not redirect.open(server.launch(used=redirect.remove)):
        out.say("no browser could be opened: open the URL yourself")


def _tokens(file: str | None) -> list[Token]:
    """The tokens that are given: those in a file, and the one in the environment, which is an admin's."""
    from holdfast.web.auth import Token, new_token
    from holdfast.web.operation import Role

    found: list[Token] = []
    named = os.environ.get("HOLDFAST_TOKEN")
    if named:
        found.append(Token(_checked(named, "HOLDFAST_TOKEN"), Role.ADMIN))
    if file is None:
        return found
    path = Path(file)
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return [*found, *_read(path, found)]
    token = new_token()
    with os.fdopen(opened, "w", encoding="utf-8") as made:
        made.write(f"admin {token}\n")
    return [*found, Token(token, Role.ADMIN)]


def _read(path: Path, known: list[Token]) -> list[Token]:
    """Return the tokens in a file, each of which must differ from the others and from those that are known."""
    from holdfast.web.auth import LAUNCH, Token
    from holdfast.web.operation import Role

    sources = {token.secret: "HOLDFAST_TOKEN" for token in known}
    found: list[Token] = []
    for number, line in enumerate(_content(path).splitlines(), 1):
        role, _, rest = line.strip().partition(" ")
        if not role or role.startswith("#"):
            continue
        if role not in ("viewer", "operator", "admin"):
            raise InvalidCall(
                f"{path}, line {number}: write the role (viewer, operator, admin), then the token, then its name"
            )
        secret, _, name = rest.strip().partition(" ")
        name = name.strip()
        if name == LAUNCH or any(name == token.name for token in found if name):
            raise InvalidCall(f"{path}, line {number}: the name {name!r:.60} is taken: choose another")
        if len(name) > _LONGEST_NAME or not name.isprintable():
            raise InvalidCall(
                f"{path}, line {number}: a name has at most {_LONGEST_NAME} printable characters"
            )
        if secret in sources:
            raise InvalidCall(
                f"{path}, line {number}: the token is the same as in {sources[secret]}: use a different one"
            )
        sources[secret] = f"line {number}"
        found.append(Token(_checked(secret, f"{path}, line {number}"), Role[role.upper()], name))
    if not found:
        raise InvalidCall(f"{path} holds no token: write a role and a token in a line, or delete the file")
    return found


def _content(path: Path) -> str:
    """Return the text of a file that only its owner can read."""
    # Opening a named pipe must not wait for a writer.
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        mode = os.fstat(opened).st_mode
        if not stat.S_ISREG(mode):
            raise InvalidCall(f"{path} is not a regular file: write the tokens into one")
        if has_file_modes() and stat.S_IMODE(mode) & 0o077:
            raise InvalidCall(f"{path} can be read by others: chmod 600 {path}")
        with open(opened, encoding="utf-8-sig", closefd=False) as file:
            return file.read()
    except UnicodeDecodeError:
        raise InvalidCall(f"{path} is not UTF-8 text: save it in that encoding") from None
    finally:
        os.close(opened)


def _checked(token: str, where: str) -> str:
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidCall(
            f"{where}: a token has at least {_SHORTEST} letters, digits and signs, without spaces"
        )
    return token
