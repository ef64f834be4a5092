"""LangGraph's checkpoints as versions: `HoldfastSaver`, a checkpointer over any store.

How LangGraph's words map to ours:

- A **thread**, and each checkpoint namespace in it, is a run. Its id is the thread's id, where that can be a run id,
  and `thread|namespace` (`names`). So `hf.diff`, `blame`, `tag`, `rollback`, `prune`, `verify`, export work on it.
- A **checkpoint** is a version. Its state has `channel_values`, the other fields as `checkpoint`, `metadata`,
  `pending_writes` (`layout`). It goes through the state tree: a list of messages that grew by one is stored as that
  one message.
- **Pending writes** are a version, too, which follows the checkpoint that they belong to and has the same id.
  Writes that come before their checkpoint wait in the state of the head (`ahead`).
- The **latest** checkpoint is the head of the run: a rollback moves it. A checkpoint that is older than the head,
  because it comes late, does not.
- A checkpoint whose parent was continued already begins a **timeline**; its writer goes on there. With
  `single_writer=True` it is refused with `StaleVersion`. It leaves at the checkpoint, not at the writes that the
  other branch made there (`strand`).
- What a `DeltaChannel` is rebuilt from is the **trail** of writes that led to a checkpoint since the channel was last
  stored whole. Each checkpoint carries its own, so pruning, copying and forking cannot tear it.

Values are kept as they are, type and value; classes are those that are registered (`types`). Nothing is unpickled,
imported or constructed by a name that stands in the data.
"""

try:
    from holdfast.integrations.langgraph.saver import HoldfastSaver
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("langgraph", "langchain_core"):
        raise
    raise ModuleNotFoundError(
        "holdfast.integrations.langgraph needs LangGraph: pip install 'holdfast[langgraph]'"
    ) from error

__all__ = ["HoldfastSaver"]
