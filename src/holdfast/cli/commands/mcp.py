"""`holdfast mcp`"""

from __future__ import annotations

import sys
import traceback
from importlib.util import find_spec
from threading import Lock

import click

from holdfast.cli.context import CommandContext, command
from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall
from holdfast.execution.preview import Preview


@command("mcp")
@click.option("--read-only", is_flag=True, help="Offer no tools that change runs, and import no code.")
def mcp_command(ctx: CommandContext, *, read_only: bool) -> None:
    """Serve the store to agents over the Model Context Protocol.

    The server uses standard input and output: configure it in an agent as "command": "holdfast", "args": ["mcp",
    "--store", "/path/to/runs.db"]. The tools fork, rollback and answer only describe their effect unless they are
    called with confirm=true.
    """
    if find_spec("mcp") is None:
        raise InvalidCall(
            "`holdfast mcp` needs the package mcp, which is not installed: pip install 'holdfast[mcp]'"
        )
    from holdfast.integrations.mcp.read_tools import read_tools
    from holdfast.integrations.mcp.server import make_server, serve
    from holdfast.integrations.mcp.write_tools import write_tools

    source = _Source(ctx, code=not read_only)
    tools = read_tools(source.hf) + ([] if read_only else write_tools(source))
    if sys.stdin.isatty():
        ctx.out.say("serving MCP on standard input and output: configure it in an agent; Ctrl-C stops it")
    serve(make_server(tools, _print_traceback if ctx.debug else None))


class _Source:
    """The store, opened by the first call of a tool: the call reports an error, and the next call tries again."""

    def __init__(self, ctx: CommandContext, *, code: bool) -> None:
        self._ctx = ctx
        self._code = code
        self._lock = Lock()
        self._hf: Holdfast | None = None

    def hf(self) -> Holdfast:
        with self._lock:
            if self._hf is None:
                self._hf = self._ctx.open_with_app() if self._code else self._ctx.hf
            return self._hf

    def need_code(self, preview: Preview, what: str) -> None:
        self._ctx.require_code(preview, what)


def _print_traceback(error: BaseException) -> None:
    traceback.print_exception(error, file=sys.stderr)
