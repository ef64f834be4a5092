"""Public import path of the loop engine: `from holdfast.loops import LoopEngine`."""

from holdfast.compat.loop_engine import Checker, LoopEngine

__all__ = ["Checker", "LoopEngine"]
