"""Holdfast for agents: the tools of `holdfast mcp`, over the Model Context Protocol.

server       tools as an MCP server on stdin and stdout: checks arguments, marks results as data, reports errors
read_tools   tools that read
write_tools  tools that change something, and describe the change first

Invariant: whatever a run has recorded is returned as data, truncated to a bounded size, and nothing is changed
unless a call says `confirm=true`.
"""

from importlib.util import find_spec

from holdfast.integrations import missing_extra

if find_spec("mcp") is None:
    raise missing_extra(__name__, "the package mcp", "mcp")
