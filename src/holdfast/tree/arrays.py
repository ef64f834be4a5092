"""Kinds for numpy arrays and scalars; imported only where numpy is already in use.

Invariant: dtype, shape and items come back as they were; an array of Python objects is refused, when it is
written and when it is read. In which order memory holds the items is no part of the value.
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
        # Two types of one size share a `str`, such as int64 and longlong; `char` tells them apart.
        name = dtype.str if np.dtype(dtype.str).type is dtype.type else dtype.str[0] + dtype.char
    if _dtype(name) != dtype:
        raise UnsupportedValue(f"numpy dtype {dtype} would not come back as it is")
    return name


def _dtype(name: Any) -> np.dtype[Any]:
    dtype = np.dtype(name) if isinstance(name, str) else _structured(name)
    if dtype.hasobject:
        # Its bytes would be taken for addresses.
        raise ValueError(f"a stored array cannot be of dtype {dtype}")
    return dtype


def _structured(name: list[Any]) -> np.dtype[Any]:
    """With the padding between fields where it was, which `np.dtype` would take for a field."""
    described: Any = list(map(tuple, name))
    return descr_to_dtype(described)


def _split_array(array: Any) -> list[Any]:
    return [_type_name(array.dtype), list(array.shape), array.tobytes()]


def _join_array(parts: list[Any]) -> Any:
    name, shape, data = parts
    dtype = _dtype(name)
    if type(data) is not bytes or any(type(length) is not int or length < 0 for length in shape):
        raise ValueError("an array is made of a dtype, lengths and bytes")
    array: Any = np.ndarray(tuple(shape), dtype, buffer=bytearray(data))
    if array.nbytes != len(data):
        raise ValueError(f"{len(data)} bytes for an array of {array.nbytes}")
    # A copy owns its memory, but would not keep what lies between the fields of a structured one.
    return array.copy() if dtype.names is None else array


def _split_scalar(scalar: Any) -> list[Any]:
    # Texts keep their trailing zeros, which an array would drop.
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
    """The kind of a numpy value, if it is one that can be stored."""
    if type(value) is np.ndarray:
        return ARRAY
    return SCALAR if isinstance(value, np.generic) and not isinstance(value, np.void) else None
