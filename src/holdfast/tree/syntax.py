"""Parse Python source, and describe a syntax tree in a form that does not depend on Python's version.

Before 3.11.8 and 3.12.2, `ast.parse` raises SystemError if something else is parsed while it builds a tree: by an
object that the garbage collector finalises meanwhile, or by another thread. `parse` repeats the call.

`ast.dump` differs between 3.11, 3.12 (`type_params`) and 3.13 (empty lists are omitted); `canonical` does not.

Invariant: imports the standard library only, so that tests can load it in every Python.
"""

from __future__ import annotations

import ast
from typing import Any

_TIMES = 20
#: Fields that say nothing about behaviour, or that depend on Python's version.
_SKIPPED = frozenset(("ctx", "kind", "type_comment", "type_ignores"))


def parse(text: str, mode: str = "exec") -> ast.AST:
    """Return the syntax tree of a text."""
    for _ in range(_TIMES):
        try:
            return ast.parse(text, mode=mode)
        except SystemError:
            continue
    return ast.parse(text, mode=mode)


def canonical(tree: Any) -> str:
    """Describe a syntax tree: equal for equal code on every version of Python, without decorators and docstrings."""
    if isinstance(tree, list):
        return f"[{', '.join(map(canonical, tree))}]"
    if not isinstance(tree, ast.AST):
        # ascii: which characters repr escapes depends on Python's Unicode tables.
        return ascii(tree)
    parts = [f"{name}={canonical(value)}" for name, value in _fields(tree)]
    return f"{type(tree).__name__}({', '.join(parts)})"


def _fields(node: ast.AST) -> list[tuple[str, Any]]:
    """Return the fields of a node that matter, without None and empty lists, which some versions of Python omit."""
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _SKIPPED}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        del fields["decorator_list"]
        if ast.get_docstring(node, clean=False) is not None:
            fields["body"] = node.body[1:]
    elif isinstance(node, ast.JoinedStr):
        fields["values"] = _joined(node.values)
    return [(name, value) for name, value in fields.items() if value is not None and value != []]


def _joined(values: list[ast.expr]) -> list[Any]:
    """Merge neighbouring texts of an f-string, which versions of Python divide differently."""
    merged: list[Any] = []
    for value in values:
        text = value.value if isinstance(value, ast.Constant) else None
        if not isinstance(text, str):
            merged.append(value)
        elif merged and isinstance(merged[-1], str):
            merged[-1] += text
        elif text:
            merged.append(text)
    return merged
