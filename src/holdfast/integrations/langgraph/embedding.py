"""The `index` of a store: which texts of an item are embedded, and by what.

Invariant: vectors are finite numbers of the configured length, or nothing is stored.
"""

from __future__ import annotations

import inspect
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from langgraph.store.base import ensure_embeddings, get_text_at_path, tokenize_path
from langgraph.store.base.embed import EmbeddingsLambda

from holdfast.errors import InvalidCall
from holdfast.model.checks import check_integer
from holdfast.model.names import short

#: Limit of `dims`.
_MAX_DIMENSIONS = 65_536
_KEYS = ("dims", "embed", "fields", "text_fields", "distance_type")
_METRICS = ("cosine", "inner_product", "l2")


class EmbeddingIndex:
    """A checked `index`."""

    def __init__(self, config: Any) -> None:
        if not isinstance(config, Mapping):
            raise InvalidCall(
                f'index is a dict, such as {{"dims": 1536, "embed": embed}}, not {short(config)}'
            )
        for key in config:
            if key not in _KEYS:
                raise InvalidCall(f"index has the key {short(key)}; there are {', '.join(_KEYS)}")
        self.dimensions = check_integer("index['dims']", config.get("dims"), 1, _MAX_DIMENSIONS)
        if not config.get("embed"):
            raise InvalidCall("index has no 'embed': give a function from texts to vectors, or an Embeddings")
        try:
            self.embeddings: Any = ensure_embeddings(config["embed"])
        except ValueError as error:
            raise InvalidCall(f"index['embed'] cannot be used: {error}") from error
        self.metric = config.get("distance_type") or "cosine"
        if self.metric not in _METRICS:
            raise InvalidCall(f"distance_type is one of {', '.join(_METRICS)}, not {short(self.metric)}")
        # `text_fields` is the name in LangGraph's stores on SQLite.
        fields = config.get("fields") or config.get("text_fields") or ["$"]
        self._fields = check_fields("index['fields']", [fields] if isinstance(fields, str) else fields)

    def texts(self, value: Any, fields: Sequence[str] | None) -> list[str]:
        """Return the texts of a value that are embedded: of its fields, or else of the configured ones."""
        try:
            return [
                text
                for path in (self._fields if fields is None else fields)
                for text in get_text_at_path(value, "$" if path == "$" else tokenize_path(path))
            ]
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidCall(
                f"a value cannot be written as JSON to embed it ({error}): name text fields with index=['text'], or "
                "store it with index=False"
            ) from error

    def embed(self, texts: list[str], queries: list[str]) -> Iterator[bytes]:
        """Yield the vectors of texts, then those of queries."""
        if texts or queries:
            self._refuse_async()
        if texts:
            yield from self._vectors(self.embeddings.embed_documents(texts), len(texts))
        for query in queries:
            if isinstance(self.embeddings, EmbeddingsLambda):
                # A function, whose result is checked here before one is taken from it.
                yield from self._vectors(self.embeddings.embed_documents([query]), 1)
            else:
                yield from self._vectors([self.embeddings.embed_query(query)], 1)

    async def aembed(self, texts: list[str], queries: list[str]) -> list[bytes]:
        """Return the vectors of texts, then those of queries, in an event loop."""
        found: list[bytes] = []
        if texts:
            found += self._vectors(await self.embeddings.aembed_documents(texts), len(texts))
        for query in queries:
            if isinstance(self.embeddings, EmbeddingsLambda):
                found += self._vectors(await self.embeddings.aembed_documents([query]), 1)
            else:
                found += self._vectors([await self.embeddings.aembed_query(query)], 1)
        return found

    def _refuse_async(self) -> None:
        if isinstance(self.embeddings, EmbeddingsLambda) and not hasattr(self.embeddings, "func"):
            raise InvalidCall(
                "index['embed'] is an async function: use aput, asearch and abatch, or give a blocking function"
            )

    def _vectors(self, made: Any, expected: int) -> Iterator[bytes]:
        if inspect.isawaitable(made):
            if inspect.iscoroutine(made):
                made.close()
            raise InvalidCall(
                "index['embed'] returned an awaitable: give a blocking function or an async def"
            )
        if not hasattr(made, "__len__") or len(made) != expected:
            count = len(made) if hasattr(made, "__len__") else short(made)
            raise InvalidCall(f"index['embed'] returned {count} vectors for {expected} texts")
        for vector in made:
            yield self._pack(vector)

    def _pack(self, vector: Any) -> bytes:
        try:
            numbers = [float(number) for number in vector]
            packed = struct.pack(f"<{len(numbers)}f", *numbers)
        except (TypeError, ValueError, OverflowError):
            self._refuse(vector)
        if len(numbers) != self.dimensions:
            raise InvalidCall(
                f"index['embed'] returned a vector of {len(numbers)} numbers, but index['dims'] is {self.dimensions}"
            )
        if not all(map(math.isfinite, numbers)):
            self._refuse(vector)
        return packed

    def _refuse(self, vector: Any) -> NoReturn:
        raise InvalidCall(
            f"index['embed'] returned {short(vector)}, which is not a vector of finite numbers of 32 bits"
        )


def check_fields(name: str, fields: Any) -> list[str]:
    """Return a list of paths of fields, or raise `InvalidCall`."""
    if not isinstance(fields, list | tuple) or not all(isinstance(path, str) and path for path in fields):
        raise InvalidCall(f"{name} is a list of fields, such as ['text'], not {short(fields)}")
    return list(fields)
