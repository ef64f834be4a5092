"""Views, texts and lookups that the command line, the web server and the MCP tools share.

Invariant: the three interfaces describe the same thing in the same way, because they use this package.
"""
