"""What handlers work with: the engine, tasks, the live stream, and what the server was told."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.engine import Holdfast
from holdfast.loops import LoopEngine
from holdfast.web.auth import Keys
from holdfast.web.live import Hub
from holdfast.web.recent import Recent
from holdfast.web.tasks import Tasks


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the server was told."""

    #: The store as it may be shown, and as it was named.
    store: str
    where: str
    #: Hosts, as a browser writes them, that are answered.
    hosts: Sequence[str]
    #: Where the page is, for a launch URL.
    origin: str
    cookie: str = "holdfast"
    https: bool = False
    legacy_get: bool = False
    #: Seconds between signs of life on a stream.
    heartbeat: float = 15.0
    #: Streams that are open at once, and other requests.
    streams: int = 400
    requests: int = 600
    #: Bytes of a file that is sent here: a bundle, a snapshot, a large value.
    upload: int = 256 << 20


class Service:
    """The parts that handlers use."""

    def __init__(self, hf: Holdfast, keys: Keys, settings: Settings, hub: Hub) -> None:
        self.hf = hf
        self.keys = keys
        self.settings = settings
        self.hub = hub
        self.tasks = Tasks()
        self.loops = LoopEngine(hf)
        self.recent = Recent()
