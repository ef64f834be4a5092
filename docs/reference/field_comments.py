"""For the reference: the comment above a field that begins with `#:` is what the page says of the field."""

from __future__ import annotations

from typing import Any

from griffe import Attribute, Docstring, Extension


class FieldComments(Extension):
    """Gives fields the comments above them as docstrings."""

    def on_attribute(self, *, attr: Attribute, **_: Any) -> None:
        """Called for each field when its module has been read."""
        if attr.docstring is None and attr.lineno is not None:
            text = _comment_above(attr.lines_collection[attr.filepath], attr.lineno)
            if text:
                attr.docstring = Docstring(text, parent=attr, lineno=attr.lineno)


def _comment_above(lines: list[str], lineno: int) -> str:
    found: list[str] = []
    for line in reversed(lines[: lineno - 1]):
        if not line.strip().startswith("#"):
            break
        found.insert(0, line.strip())
    while found and not found[0].startswith("#:"):
        del found[0]
    return "\n".join(line.removeprefix("#:").removeprefix("#").strip() for line in found)
