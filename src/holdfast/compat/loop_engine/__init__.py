"""Agent loops that keep their own state: snapshots, restores, stalled agents, questions to the operator.

replies    results of calls: a dict with a status, also for errors
control    data that a restore does not touch: configuration, agents, questions, the audit
project    the state of a project: reading, writing, snapshots, restores
snapshots  calls of the engine for states and snapshots
questions  calls of the engine for questions to the operator and their answers
agents     running agents, their heartbeats, and the thread that looks for stalled ones
engine     LoopEngine: all of the calls
"""

from holdfast.compat.loop_engine.agents import Checker
from holdfast.compat.loop_engine.engine import LoopEngine

__all__ = ["Checker", "LoopEngine"]
