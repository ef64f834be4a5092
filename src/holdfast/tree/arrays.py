"""Kinds for numpy arrays and scalars; imported only where numpy is already in use.

Invariant: dtype, shape and bytes come back as they were; an array of Python objects is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.errors import UnsupportedValue
from holdfast.tree.values import Kind


def _type_name(dtype: np.dtype[Any]) -> Any:
    if dtype.hasobject:
        raise UnsupportedValue(f"a numpy array of dtype {dtype} holds Python objects: store a list instead")
    return dtype.str if dtype.names is None else [list(field) for field in dtype.descr]


def _dtype(name: Any) -> np.dtype[Any]:
    return np.dtype(name if isinstance(name, str) else [tuple(field) for field in name])


def _split_array(array: Any) -> list[Any]:
    return [_type_name(array.dtype), list(array.shape), array.tobytes()]


def _join_array(parts: list[Any]) -> Any:
    name, shape, data = parts
    return np.frombuffer(data, dtype=_dtype(name)).reshape(shape).copy()


def _split_scalar(scalar: Any) -> list[Any]:
    return [_type_name(scalar.dtype), scalar.tobytes()]


def _join_scalar(parts: list[Any]) -> Any:
    name, data = parts
    return np.frombuffer(data, dtype=_dtype(name))[0]


ARRAY = Kind(22, _split_array, _join_array, True)
SCALAR = Kind(23, _split_scalar, _join_scalar, False)
BY_CODE = {22: ARRAY, 23: SCALAR}


def kind(value: Any) -> Kind | None:
    """The kind of a numpy value, if it is one that can be stored."""
    if type(value) is np.ndarray:
        return ARRAY
    return SCALAR if isinstance(value, np.generic) and not isinstance(value, np.void) else None
