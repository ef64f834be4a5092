"""Kinds for numpy arrays and scalars; imported only if numpy is in use.

Invariant: dtype, shape and items are read as they were written; the order of items in memory is not part of the value.
Arrays of Python objects are refused, when written and when read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.format import descr_to_dtype

from holdfast.errors import UnsupportedValue
from holdfast.tree.values import Kind


def _type_name(dtype: np.dtype[Any]) -> Any:
    if dtype.hasobject:
        raise UnsupportedValue(f"a numpy array of dtype {dtype} holds Python objects: store a list instead")
    if dtype.names is not None:
        name: Any = [list(field) for field in dtype.descr]
    else:
        # Two types of one size share a `str`, such as int64 and longlong, but not a `char`.
        name = dtype.str if np.dtype(dtype.str).type is dtype.type else dtype.str[0] + dtype.char
    if _dtype(name) != dtype:
        raise UnsupportedValue(f"numpy dtype {dtype} cannot be stored exactly")
    return name


def _dtype(name: Any) -> np.dtype[Any]:
    dtype = np.dtype(name) if isinstance(name, str) else _structured(name)
    if dtype.hasobject:
        # Its bytes would be used as addresses.
        raise ValueError(f"a stored array cannot be of dtype {dtype}")
    return dtype


def _structured(name: list[Any]) -> np.dtype[Any]:
    """Return a structured dtype with its padding, which `np.dtype` would treat as a field."""
    described: Any = list(map(tuple, name))
    return descr_to_dtype(described)


def _split_array(array: Any) -> list[Any]:
    return [_type_name(array.dtype), list(array.shape), array.tobytes()]


def _join_array(parts: list[Any]) -> Any:
    name, shape, data = parts
    dtype = _dtype(name)
    if type(data) is not bytes or any(type(length) is not int or length < 0 for length in shape):
        raise ValueError("an array consists of a dtype, lengths and bytes")
    array: Any = np.ndarray(tuple(shape), dtype, buffer=bytearray(data))
    if array.nbytes != len(data):
        raise ValueError(f"{len(data)} bytes for an array of {array.nbytes}")
    # A copy owns its memory, but loses the bytes between the fields of a structured array.
    return array.copy() if dtype.names is None else array


def _split_scalar(scalar: Any) -> list[Any]:
    # An array would drop trailing zeros of a text.
    if isinstance(scalar, np.str_):
        return ["U", str.__str__(scalar)]
    if isinstance(scalar, np.bytes_):
        return ["S", bytes.__getitem__(scalar, slice(None))]
    return [_type_name(scalar.dtype), scalar.tobytes()]


def _join_scalar(parts: list[Any]) -> Any:
    name, data = parts
    if name == "U" and type(data) is str:
        return np.str_(data)
    if name == "S" and type(data) is bytes:
        return np.bytes_(data)
    return _join_array([name, (), data])[()]


ARRAY = Kind(22, _split_array, _join_array, True)
SCALAR = Kind(23, _split_scalar, _join_scalar, False)
BY_CODE = {22: ARRAY, 23: SCALAR}


def kind(value: Any) -> Kind | None:
    """Return the kind of a numpy value; None if it cannot be stored."""
    if type(value) is np.ndarray:
        return ARRAY
    return SCALAR if isinstance(value, np.generic) and not isinstance(value, np.void) else None
