"""Ways in for people who already have a framework: one module a framework, each over the engine's public door.

A module here imports its framework at the top; nothing else in Holdfast imports it. A framework that is not installed
costs nothing, and importing its module tells which extra to install.
"""
