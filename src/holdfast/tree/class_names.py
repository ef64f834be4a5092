"""Names of classes, as tags of values, types of errors and types of arguments store them.

Invariant: a class has one name in every process, whether its module is the program that was started or was imported.
"""

from __future__ import annotations

import pathlib
import sys
from functools import lru_cache

#: Module names of the running program: `python agent.py`, and in processes that multiprocessing starts.
_PROGRAM = ("__main__", "__mp_main__")


def is_of_program(cls: type) -> bool:
    """Return whether a class is defined in the program that was started, not in a module that was imported."""
    return cls.__module__ in _PROGRAM


def own_name(cls: type) -> str:
    """Return the module and name of a class as this process knows it."""
    return f"{cls.__module__}.{cls.__qualname__}"


def type_name(cls: type) -> str:
    """Return the module and name of a class, the same in every process: a class of the running program has the module
    name under which other programs import it."""
    if is_of_program(cls):
        return f"{_import_name(cls.__module__)}.{cls.__qualname__}"
    return own_name(cls)


def _import_name(program: str) -> str:
    """Return the name under which the running program can be imported; `__main__` for a notebook, or if there is
    none."""
    module = sys.modules.get(program)
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:
        # It was started by `python -m`.
        return str(spec.name)
    return _module_at(file) if isinstance(file, str) else "__main__"


@lru_cache(maxsize=16)
def _module_at(file: str) -> str:
    path = pathlib.Path(file).absolute()
    parts = [path.stem]
    for folder in path.parents:
        if not (folder / "__init__.py").is_file():
            break
        parts.insert(0, folder.name)
    return ".".join(parts) if all(map(str.isidentifier, parts)) else "__main__"
