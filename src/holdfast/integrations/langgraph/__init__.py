"""LangGraph's checkpoints as versions: `HoldfastSaver`, a checkpointer on any store.

LangGraph's terms map to Holdfast's as follows:

- A **thread**, and each checkpoint namespace in it, is a run. Its id is the thread's id, if that is a valid
  run id, and `thread|namespace` (`layout`). So `hf.diff`, `blame`, `tag`, `rollback`, `prune`, `verify` and
  export work on it.
- A **checkpoint** is a version. Its state has `channel_values`, the other fields as `checkpoint`, `metadata`,
  `pending_writes` (`layout`). It is stored in the state tree: a list of messages that grew by one adds only
  that message.
- **Pending writes** are also a version, which follows their checkpoint and has the same checkpoint id. Writes
  that arrive before their checkpoint wait in the state of the head (`ahead`).
- The **latest** checkpoint is the head of the run: a rollback moves it. A checkpoint that arrives late and is
  older than the head does not.
- A checkpoint whose parent already has a successor starts a **timeline**; its writer continues there. With
  `single_writer=True` it is refused with `StaleVersion`. The timeline branches off at the checkpoint, without
  the writes that the other branch made there (`thread`).
- A `DeltaChannel` is rebuilt from the **trail** of writes that led to a checkpoint since the channel was last
  stored in full. Each checkpoint carries its own trail, so pruning, copying and forking cannot break it.

Values keep their type and value; only registered classes are stored (`layout`). Nothing is unpickled,
imported or constructed by a name in the data.
"""

from holdfast.integrations import missing_extra

try:
    import langchain_core as _langchain  # noqa: F401
    import langgraph.checkpoint.base as _langgraph  # noqa: F401 - the error below names the extra
except ModuleNotFoundError as error:
    raise missing_extra(__name__, "LangGraph", error.name) from error

from holdfast.integrations.langgraph.saver import HoldfastSaver

__all__ = ["HoldfastSaver"]
