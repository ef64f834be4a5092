"""Agent loops that keep their own state: snapshots, restores, stalled agents, questions to the operator.

engine     LoopEngine: the calls, and the parts that it owns
states     states that callers read, set and save
questions  questions to the operator, their answers, and the execution of decisions
agents     agents, their heartbeats, and the thread that looks for stalled ones
project    the state of one project: versions, snapshots, restores
control    data that a restore does not touch: configuration, agents, questions, the audit
replies    results of calls: a dict with a status, also for errors
"""
