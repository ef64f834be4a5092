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

from holdfast.cli import exit_codes
from holdfast.cli.context import CommandContext, command
from holdfast.cli.settings import find_app
from holdfast.errors import InvalidCall
from holdfast.operating_system import has_file_modes
from holdfast.operator_view.text import plain

if TYPE_CHECKING:
    from holdfast.web.auth import Token
    from holdfast.web.server import Server

F = TypeVar("F", bound=Callable[..., Any])
#: Characters of a token; shorter ones could be guessed.
_MIN_TOKEN = 20
_MAX_NAME = 100
_PORT = 7433
#: Seconds between two checks for stalled agents of loops.
_CHECK_LOOPS = 2.0


def _serve_options(function: F) -> F:
    """Add the options of both commands."""
    for option in (
        click.option("--https", is_flag=True, help="It runs behind an HTTPS proxy: set Secure on cookies."),
        click.option(
            "--legacy-get", is_flag=True, help="Also accept GET on debug routes that change something."
        ),
        click.option("--read-only", is_flag=True, help="Refuse all changes, whatever the role."),
        click.option(
            "--token-file",
            metavar="FILE",
            help="Tokens, one per line: role (viewer, operator, admin), token, name. Created if it does not exist.",
        ),
        click.option(
            "--allowed-host",
            "allowed_hosts",
            multiple=True,
            metavar="HOST[:PORT]",
            help="Another host name to accept, as a browser sends it. Repeatable.",
        ),
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            show_default=str(_PORT),
            help="The port; 0 for any free one. If the default port is in use, `ui` chooses another.",
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
@_serve_options
def serve_command(ctx: CommandContext, **how: Any) -> int:
    """Serve the web page and the HTTP API until interrupted.

    Prints a URL that opens the page once. Programs send the token as Authorization: Bearer. Listening beyond this
    machine requires a token (--token-file or HOLDFAST_TOKEN) and a host name (--allowed-host). Resuming runs here
    requires their code: --app or HOLDFAST_APP. An app that only pyproject.toml names is not imported.
    """
    return _serve(ctx, how, opens=False)


@command("ui")
@_serve_options
def ui_command(ctx: CommandContext, **how: Any) -> int:
    """Serve the web page as `serve` does, and open it in a browser."""
    return _serve(ctx, how, opens=True)


def _serve(ctx: CommandContext, how: dict[str, Any], *, opens: bool) -> int:
    from holdfast.web import server as server_module

    # Opening the store of a folder does not permit running the code in it.
    hf = ctx.open_with_app(explicit=True)
    hf.start_triggers()
    if not how["read_only"]:
        hf.loops.checker(_CHECK_LOOPS).start()
    location = ctx.location
    token_file = how.pop("token_file")
    port = how.pop("port")
    options = server_module.ServeOptions(
        tokens=_load_tokens(token_file),
        port=_PORT if port is None else port,
        any_port=opens and port is None,
        **how,
    )

    def started() -> None:
        _print_start(ctx, server, location.public, redirect, token_file)

    server: Server = server_module.Server(
        hf, options, store=location.public, where=hf.where or location.where, started=started
    )
    redirect = Redirect() if opens else None
    try:
        server.serve_until_stopped()
    finally:
        if redirect is not None:
            redirect.remove()
    if not ctx.out.json:
        for run in server.unfinished_runs():
            ctx.out.say(plain(f"{run} was running here: continue it with `holdfast resume {run}`"))
        ctx.out.say("stopped")
    return exit_codes.DONE


class Redirect:
    """A private file that redirects a browser to the launch URL. Other users can read the command line of the browser,
    which therefore names the file, not the URL. The file is removed when the code in it has been used."""

    def __init__(self) -> None:
        self._folder: str | None = None

    def open(self, url: str) -> bool:
        """Open the URL in a browser; return whether one was found."""
        import tempfile
        import webbrowser
        from html import escape

        # Readable by its owner only.
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


def _print_start(
    ctx: CommandContext, server: Server, store: str, redirect: Redirect | None, token_file: str | None
) -> None:
    """Print the URL. Secrets are printed only to a terminal or as JSON, never to a log."""
    out = ctx.out
    if out.json:
        launch = server.launch()
        record = {
            "url": server.origin,
            "launch": launch,
            "store": store,
            "pid": os.getpid(),
            "page": server.app.page.is_built,
        }
        out.document({**record, "token": server.token} if server.token else record)
    else:
        out.say(plain(f"serving {store} at {server.origin}; Ctrl-C stops it"))
        if not server.app.page.is_built:
            from holdfast.web.page import REMEDY

            out.say(f"this installation does not include the web page, only the API is served: {REMEDY}")
        named, meant = find_app(ctx.app, explicit=True), find_app(ctx.app)
        if named is None and meant is not None:
            out.say(
                plain(f"the app of pyproject.toml is not imported: use --app {meant} to run its code here")
            )
        if out.is_for_people:
            out.text(f"open   {server.launch()}")
            if server.token:
                out.text(f"token  {server.token}")
        else:
            missing = "" if token_file is None and server.token else "; or POST /api/v1/codes with your token"
            out.say(f"the URL that opens the page is printed on a terminal, or with --json{missing}")
            if server.token:
                out.say("programs need a token: use --token-file FILE, or --json")
    sys.stdout.flush()
    if redirect is not None and not redirect.open(server.launch(used=redirect.remove)):
        out.say("no browser could be opened: open the URL yourself")


def _load_tokens(file: str | None) -> list[Token]:
    """Return the tokens of a file, and the admin token of the environment."""
    from holdfast.web.auth import Token, new_token
    from holdfast.web.operation import Role

    found: list[Token] = []
    named = os.environ.get("HOLDFAST_TOKEN")
    if named:
        found.append(Token(_check_token(named, "HOLDFAST_TOKEN"), Role.ADMIN))
    if file is None:
        return found
    path = Path(file)
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return [*found, *_read_tokens(path, found)]
    token = new_token()
    with os.fdopen(opened, "w", encoding="utf-8") as made:
        made.write(f"admin {token}\n")
    return [*found, Token(token, Role.ADMIN)]


def _read_tokens(path: Path, known: list[Token]) -> list[Token]:
    """Return the tokens in a file; each must be unique, also among the known ones."""
    from holdfast.web.auth import LAUNCH_NAME, Token
    from holdfast.web.operation import Role

    sources = {token.secret: "HOLDFAST_TOKEN" for token in known}
    found: list[Token] = []
    for number, line in enumerate(_read_private_text(path).splitlines(), 1):
        role, _, rest = line.strip().partition(" ")
        if not role or role.startswith("#"):
            continue
        if role not in ("viewer", "operator", "admin"):
            raise InvalidCall(
                f"{path}, line {number}: write the role (viewer, operator, admin), then the token, then its name"
            )
        secret, _, name = rest.strip().partition(" ")
        name = name.strip()
        if name == LAUNCH_NAME or any(name == token.name for token in found if name):
            raise InvalidCall(f"{path}, line {number}: the name {name!r:.60} is taken: choose another")
        if len(name) > _MAX_NAME or not name.isprintable():
            raise InvalidCall(f"{path}, line {number}: a name has at most {_MAX_NAME} printable characters")
        if secret in sources:
            raise InvalidCall(
                f"{path}, line {number}: the token is the same as in {sources[secret]}: use a different one"
            )
        sources[secret] = f"line {number}"
        found.append(Token(_check_token(secret, f"{path}, line {number}"), Role[role.upper()], name))
    if not found:
        raise InvalidCall(f"{path} has no tokens: write a role and a token on a line, or delete the file")
    return found


def _read_private_text(path: Path) -> str:
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


def _check_token(token: str, where: str) -> str:
    if len(token) < _MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidCall(
            f"{where}: a token has at least {_MIN_TOKEN} letters, digits and signs, without spaces"
        )
    return token
