"""Python's own parser, asked again where it gives up for nothing.

Before 3.11.8 and 3.12.2 it does so if something else is parsed while it builds a tree: by what is collected meanwhile,
such as a forgotten task that tells its traceback, or by a thread that this lets in.
"""

from __future__ import annotations

import ast

_TIMES = 20


def parse(text: str, mode: str = "exec") -> ast.AST:
    """The tree of a text."""
    for _ in range(_TIMES):
        try:
            return ast.parse(text, mode=mode)
        except SystemError:
            continue
    return ast.parse(text, mode=mode)
