"""Where the runtime warns. Loaded when it does: most programs never need it."""

from __future__ import annotations

from typing import Any


def warn(message: str, *values: Any, trace: bool = False) -> None:
    """A line in the log, on the logger `holdfast`."""
    import logging

    logging.getLogger("holdfast").warning(message, *values, exc_info=trace)
