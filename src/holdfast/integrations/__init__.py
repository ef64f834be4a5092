"""Integrations with other frameworks: one module per framework, each on the public API of the engine.

A module here imports its framework at the top; nothing else in Holdfast imports it. A framework that is not
installed costs nothing, and the error on importing its module names the extra to install.
"""
