"""An embedding and a short helper for tests of LangGraph's long-term memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def embed(texts: Sequence[str]) -> list[list[float]]:
    """A vector of how often a text has each of four letters."""
    return [[float(text.count(letter)) for letter in "aeio"] for text in texts]


async def aembed(texts: Sequence[str]) -> list[list[float]]:
    return embed(texts)


INDEX: Any = {"dims": 4, "embed": embed, "fields": ["text"]}


def keys(found: Any) -> list[str]:
    return [item.key for item in found]
