"""Public import path of the loop engine: `from holdfast.loops import LoopEngine`."""

from holdfast.agent_loops.checker import Checker
from holdfast.compat.loop_engine import LoopEngine

__all__ = ["Checker", "LoopEngine"]
