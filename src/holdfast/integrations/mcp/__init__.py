"""Holdfast for agents: the tools of `holdfast mcp`, over the Model Context Protocol.

    server    tools → a server: arguments checked, results marked as data, errors told as errors of a tool
    wires     the process's stdin and stdout, for the protocol alone
    bounds    large values, cut to what an agent can read, with where to look deeper
    arguments what they take
    looking, changing   the tools: those that read, and those that change something and tell first what

Invariant: whatever a run has recorded is handed on as data, cut to a bounded size, and nothing is changed
unless a call says `confirm=true`.
"""
