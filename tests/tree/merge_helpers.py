"""Helpers for merge tests: trees to merge, and checks of the result and its spine."""

from __future__ import annotations

from typing import Any

from holdfast.tree import frozen
from holdfast.tree.codec import encode
from holdfast.tree.containers import assemble_dict, assemble_list
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import DICTS, LISTS, aux_of


def trees(base: Any, ours: Any, theirs: Any) -> tuple[Any, Any, Any]:
    """Three plain trees frozen as a run would: both sides share with the base what they kept of it."""
    folder = Folder(object())
    root = folder.fold(base)
    return root, folder.fold(ours, root), folder.fold(theirs, root)


def check(tree: Any) -> None:
    """Containers must be of the right kind, and their spines must say what they hold."""
    if type(tree) not in (*DICTS, *LISTS):
        return
    is_dict = type(tree) in DICTS
    if len(tree) > 32:
        assert encode((assemble_dict if is_dict else assemble_list)(aux_of(tree))) == encode(tree)
    children = list(tree.values()) if is_dict else list(tree)
    boxed = not frozen.BOXED.isdisjoint(map(type, children))
    assert type(tree) is (DICTS if is_dict else LISTS)[boxed]
    for child in children:
        check(child)


def exactly(tree: Any, plain: Any) -> bool:
    check(tree)
    return encode(tree) == encode(plain)
