"""`holdfast mcp`"""

from __future__ import annotations

import sys
import traceback
from importlib.util import find_spec
from threading import Lock

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall
from holdfast.runtime.preview import Preview


@command("mcp")
@click.option("--read-only", is_flag=True, help="Leave out what changes something, and import no code.")
def mcp_command(call: Call, *, read_only: bool) -> int:
    """Let agents look at runs and put them right: a server of the Model Context Protocol.

    It speaks the protocol on standard input and output: name it in the settings of an agent, as in "command":
    "holdfast", "args": ["mcp", "--store", "/path/to/runs.db"]. fork, rollback and answer only describe what they would
    do, unless they are told confirm=true.
    """
    if find_spec("mcp") is None:
        raise InvalidCall(
            "`holdfast mcp` needs the package mcp, which is not installed: pip install 'holdfast[mcp]'"
        )
    from holdfast.integrations.mcp.changing import changing
    from holdfast.integrations.mcp.looking import looking
    from holdfast.integrations.mcp.server import make_server
    from holdfast.integrations.mcp.wires import serve

    source = _Source(call, code=not read_only)
    tools = looking(source.hf) + ([] if read_only else changing(source))
    if sys.stdin.isatty():
        call.out.say(
            "speaks MCP on standard input and output: name it in the settings of an agent; Ctrl-C ends it"
        )
    serve(make_server(tools, _tell_fault if call.debug else None))
    return exits.DONE


class _Source:
    """The store, opened by the first call of a tool: what is wrong with it is told to whoever calls, and once it is
    mended, the next call finds it so."""

    def __init__(self, call: Call, *, code: bool) -> None:
        self._call = call
        self._code = code
        self._lock = Lock()
        self._hf: Holdfast | None = None

    def hf(self) -> Holdfast:
        with self._lock:
            if self._hf is None:
                self._hf = self._call.with_code() if self._code else self._call.hf
            return self._hf

    def need_code(self, preview: Preview, what: str) -> None:
        self._call.need_code(preview, what)


def _tell_fault(error: BaseException) -> None:
    traceback.print_exception(error, file=sys.stderr)
