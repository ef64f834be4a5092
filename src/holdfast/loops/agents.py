"""Which agents of a project run, which show signs of life, and which have frozen.

A sign of life is written to a run of its own, of which only the last few versions are kept: there may be many, and they
are no part of the audit. One that comes soon after another is not written at all.

Invariant: an agent has frozen when nothing was heard of it for longer than its timeout, by the clocks of those who
write and look; neither a restart nor another process changes that.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.engine import Holdfast
from holdfast.errors import NotFound, StaleVersion
from holdfast.loops import names
from holdfast.loops.control import Agent, Config, Control
from holdfast.model.retention import Retention
from holdfast.struct_types import resolved

#: Signs of life within this part of a timeout are as good as one.
_SOON = 0.1
#: After so many signs of life, old ones are removed, but for the last few.
_TIDY = 64
_KEPT = Retention(last=4)
#: Microseconds for which an agent that completes is left alone while its snapshot is saved.
_COMPLETING = 60_000_000


class Beat(msgspec.Struct, array_like=True):
    """The last sign of life of an agent: of which start, and when."""

    token: int
    at: int


class Beats:
    """Signs of life of the agents of one project."""

    def __init__(self, hf: Holdfast, name: str) -> None:
        self._log = hf.history(names.beats_run(name))

    def read(self) -> dict[str, Beat]:
        """The last of each agent."""
        return self._read()[0]

    def note(self, agent: str, agents: Mapping[str, Agent], now: int) -> bool:
        """Write down a sign of life of one of the agents that run; tells whether that was needed. Those of others are
        forgotten."""
        running = agents[agent]
        while True:
            beats, number = self._read()
            last = beats.get(agent)
            if last is not None and last.token == running.token:
                soon = last.at + int(running.timeout * _SOON * 1_000_000)
            else:
                soon = running.started
            if now <= soon:
                return False
            beats = {name: beat for name, beat in beats.items() if name in agents}
            beats[agent] = Beat(running.token, now)
            try:
                made = self._log.commit(msgspec.json.encode(beats).decode(), expected=number)
            except StaleVersion:
                continue
            if made.number % _TIDY == 0:
                self._log.prune(_KEPT)
            return True

    def _read(self) -> tuple[dict[str, Beat], int]:
        try:
            head = self._log.head
        except NotFound:
            return {}, 0
        return msgspec.json.decode(head.state, type=resolved(dict[str, Beat])), head.number


def timeout_for(config: Config, agent: str, default: float) -> float:
    """Seconds after which an agent has frozen; 0 for never."""
    if agent in config.timeouts:
        return config.timeouts[agent]
    return default if config.timeout is None else config.timeout


def deadline(agent: Agent, beat: Beat | None) -> int | None:
    """When an agent will have frozen, unless there is a sign of life; None for never."""
    if not agent.timeout:
        return None
    heard = agent.started
    if beat is not None and beat.token == agent.token:
        heard = max(heard, beat.at)
    end = heard + int(agent.timeout * 1_000_000)
    return max(end, left_alone_until(agent))


def left_alone_until(agent: Agent) -> int:
    """Until when nobody ends an agent, because it is completing; 0 if it is not."""
    return agent.completing + _COMPLETING if agent.completing else 0


def frozen(control: Control, beats: dict[str, Beat], now: int) -> dict[str, Agent]:
    """The agents that have frozen."""
    found = {}
    for name, agent in control.agents.items():
        end = deadline(agent, beats.get(name))
        if end is not None and end < now:
            found[name] = agent
    return found
