"""The policy by which old versions are pruned."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from holdfast.errors import InvalidCall
from holdfast.model.checks import check_integer
from holdfast.model.names import short


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for the versions to keep: a version is kept if any rule keeps it. The head, tagged and pinned versions,
    fork points, and the versions that a live run or an agent loop needs are always kept."""

    #: Keep this many of the newest versions.
    last: int | None = None
    #: Keep versions that are not older than this.
    within: timedelta | None = None
    #: Keep the newest version of each of this many hours that have one, the latest hours first.
    hourly: int | None = None
    #: The same for days.
    daily: int | None = None
    #: The same for weeks, which start on Monday.
    weekly: int | None = None
    #: Apply the rules to the versions of this step only; `last` also keeps all versions since the oldest that it keeps.
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
