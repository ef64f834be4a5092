"""The logger `holdfast`. `logging` is imported at the first warning: most programs never need it."""

from __future__ import annotations

from typing import Any


def warn(message: str, *values: Any, trace: bool = False) -> None:
    """Write a warning to the logger `holdfast`."""
    import logging

    logging.getLogger("holdfast").warning(message, *values, exc_info=trace)


def debug(message: str, *values: Any) -> None:
    """Write a message for debugging to the logger `holdfast`."""
    import logging

    logging.getLogger("holdfast").debug(message, *values)
