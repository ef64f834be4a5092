"""Which integration stores the values of a framework, by the module of their class. No framework is imported.

Invariant: a class that merely has a similar name in the user's own code is not taken for one of a framework.
"""

from __future__ import annotations

import sys
from typing import NamedTuple


class _Framework(NamedTuple):
    """A framework, and what stores its values."""

    name: str
    #: The integration, and its part to use; empty if Holdfast has none.
    module: str
    use: str
    #: A name in the framework's first module; empty if no other package is likely to have the name of that module.
    mark: str = ""


_LANGGRAPH = _Framework("LangGraph", "holdfast.integrations.langgraph", "HoldfastSaver")
_OPENAI = _Framework("the OpenAI Agents SDK", "holdfast.integrations.openai_agents", "HoldfastSession")
#: Many applications have a package `agents` of their own.
_AGENTS = _OPENAI._replace(mark="set_default_openai_client")
_BURR = _Framework("Burr", "holdfast.integrations.burr", "HoldfastPersister")
_STAGEFLOW = _Framework("Stageflow", "holdfast.integrations.stageflow", "durable()")
_AGENT_FRAMEWORK = _Framework(
    "Agent Framework", "holdfast.integrations.agent_framework", "HoldfastCheckpointStorage"
)
_PYDANTIC_AI = _Framework(
    "Pydantic AI",
    "",
    "ModelMessagesTypeAdapter.dump_python(messages, mode='json')",
)
#: By the first part of a module, or the first two where another package could have the same name.
_FRAMEWORKS = {
    "langgraph": _LANGGRAPH,
    "langchain_core": _LANGGRAPH,
    "langchain": _LANGGRAPH,
    "agents": _AGENTS,
    "openai.types": _OPENAI,
    "burr.core": _BURR,
    "stageflow": _STAGEFLOW,
    "agent_framework": _AGENT_FRAMEWORK,
    "pydantic_ai": _PYDANTIC_AI,
}


def integration_hint(cls: type) -> str:
    """Return, as part of a sentence, which integration stores the values of a class or of one that it inherits from;
    empty if it is not of a known framework."""
    for base in cls.__mro__:
        module = base.__module__ if isinstance(base.__module__, str) else ""
        root, *rest = module.split(".")
        found = _FRAMEWORKS.get(root) or _FRAMEWORKS.get(".".join([root, *rest[:1]]))
        if found is not None and (not found.mark or hasattr(sys.modules.get(root), found.mark)):
            if not found.module:
                return f"a type of {found.name}: store {found.use}"
            return f"a type of {found.name}: import {found.module}, whose {found.use} stores it"
    return ""
