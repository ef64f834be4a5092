"""Which versions to keep."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from holdfast.errors import InvalidCall
from holdfast.model.checks import check_integer
from holdfast.model.names import short


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """A version is kept if any of these rules keeps it. The head, tagged and pinned versions, fork points and
    whatever a live run needs are kept always."""

    #: The last so many.
    last: int | None = None
    #: Those that are not older than this.
    within: timedelta | None = None
    #: The newest of each of the last so many hours that have any.
    hourly: int | None = None
    #: The same for days.
    daily: int | None = None
    #: The same for weeks, which begin on Monday.
    weekly: int | None = None
    #: The rules look at versions that this step made; of others only what came since the oldest that `last` keeps.
    step: str | None = None

    def __post_init__(self) -> None:
        for name in ("last", "hourly", "daily", "weekly"):
            if getattr(self, name) is not None:
                check_integer(f"Retention.{name}", getattr(self, name), 0)
        if self.within is not None and not isinstance(self.within, timedelta):
            raise InvalidCall(f"Retention(within={short(self.within)}): give a datetime.timedelta")
        if self.step is not None and not isinstance(self.step, str):
            raise InvalidCall(f"Retention(step={short(self.step)}): give the name of a step")
        if all(getattr(self, name) is None for name in ("last", "within", "hourly", "daily", "weekly")):
            raise InvalidCall("Retention() would keep nothing but the head: give at least one rule")
