"""Agent loops that keep their own state: snapshots, restores, frozen agents, questions to the operator.

names      any project id as the ids of its runs
replies    what calls give back: a dict with a status, whatever happened
control    what a restore does not touch: configuration, agents, prompts, the audit
project    the state of a project: reading it, writing it, snapshots, restores
keeper     the half of the engine that looks after states and snapshots
agents     which agents run, and which have frozen
engine     LoopEngine: the other half
checker    the thread that looks for frozen agents
"""

from holdfast.loops.checker import Checker
from holdfast.loops.engine import LoopEngine

__all__ = ["Checker", "LoopEngine"]
