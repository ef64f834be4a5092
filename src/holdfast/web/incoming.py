"""Values that a request carries: from JSON to Python, without secrets.

Redaction goes by the keys of Python dicts, so it comes after reading: a dict can be written in JSON as pairs, and lie
within a tuple or a registered type.

Invariant: no value from a request reaches the engine under a key, at whatever depth, or at a path that the store or the
usual patterns redact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall
from holdfast.tree import path as paths
from holdfast.tree.codec import REDACTED, decode, encode
from holdfast.tree.portable import from_json


class Incoming:
    """Reads the values of one request."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._known: dict[Any, bool] = {}

    def value(self, document: Any) -> Any:
        """Return the value that a JSON document describes."""
        return decode(encode(from_json(document), self._hides))

    def named(self, documents: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by their names."""
        return {name: REDACTED if self._hides(name) else self.value(each) for name, each in documents.items()}

    def edits(self, documents: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by the paths in a state that they are for."""
        return {
            path: REDACTED if self._is_secret(paths.parse(path)) else self.value(each)
            for path, each in documents.items()
        }

    def refuse_secret(self, segments: Sequence[Any]) -> None:
        """Refuse a path in a state whose value would have to be redacted."""
        if self._is_secret(segments):
            raise InvalidCall(
                f"{paths.show(segments)!r:.200} is the path of a secret, which is not stored: choose another path, or "
                "see `holdfast config redact`"
            )

    def _is_secret(self, segments: Sequence[Any]) -> bool:
        return any(map(self._hides, segments))

    def _hides(self, key: Any) -> bool:
        """Is the value under a key redacted?"""
        if key not in self._known:
            self._known[key] = self._hf.redacted_by_default({key: None})[key] is not None
        return self._known[key]
