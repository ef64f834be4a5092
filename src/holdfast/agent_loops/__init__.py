"""Agent loops that keep their own state: snapshots, restores, stalled agents, questions to the operator.

`holdfast.loops.LoopEngine` (`compat/loop_engine.py`) has the calls for users; the inbox and the monitor use `loops`.

loops      AgentLoops: the parts of one store, checked by monitors, their questions in the inbox
checker    the thread of a process that checks loops
states     states that callers read, set and save
questions  questions to the operator, their answers, and the execution of decisions
agents     agents, their heartbeats, and the reaction to those that stalled
project    the state of one project: versions, snapshots, restores
control    data that a restore does not touch: configuration, agents, questions, the audit
config     the configuration of a project
names      the runs of a project, and ids that may contain any character
replies    results of calls: a dict with a status, also for errors
"""
