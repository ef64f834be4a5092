"""Public import path of the loop engine: `from holdfast.loops import LoopEngine`."""

from holdfast.compat.loop_engine.agents import Checker
from holdfast.compat.loop_engine.engine import LoopEngine

__all__ = ["Checker", "LoopEngine"]
