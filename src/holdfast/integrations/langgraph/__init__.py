"""LangGraph's checkpoints as versions: `HoldfastSaver`, a checkpointer on any store; and its long-term memory:
`HoldfastStore`, on the items of a store.

LangGraph's terms map to Holdfast's as follows:

- A **thread**, and each checkpoint namespace in it, is a run. Its id is the thread's id, if that is a valid
  run id, and `thread|namespace` (`layout`). So `hf.diff`, `blame`, `tag`, `rollback`, `prune`, `verify` and
  export work on it.
- A **checkpoint** is a version whose key is the checkpoint's id and whose step name is the nodes that ran. Its state
  has `channel_values`, the other fields as `checkpoint`, and `metadata` (`layout`). It is stored in the state tree: a
  list of messages that grew by one adds only that message.
- **Pending writes** are attachments of their checkpoint's id. They may arrive before it, and after its successor.
- The **latest** checkpoint is the head of the run: a rollback moves it, and hides the writes that led to the checkpoint
  after it. A checkpoint that arrives late and is older than the head does not move it.
- A checkpoint whose parent already has a successor starts a **timeline**; its writer continues there. With
  `single_writer=True` it is refused with `StaleVersion` (`thread`).
- A `DeltaChannel` is rebuilt from the **trail** of writes that led to a checkpoint since the channel was last
  stored in full. Each checkpoint carries its own trail, so pruning, copying and forking cannot break it.

Values keep their type and value where they are registered; others are stored as LangGraph's own savers do,
or refused (`values`). Nothing is unpickled or imported by a name in the data. With `serde=`, a serializer of LangGraph
stores the values.
"""

from holdfast.integrations import missing_extra

try:
    import langchain_core as _langchain  # noqa: F401
    import langgraph.checkpoint.base as _langgraph  # noqa: F401 - the error below names the extra
except ModuleNotFoundError as error:
    raise missing_extra(__name__, "LangGraph", error.name) from error

from holdfast.integrations.langgraph.saver import HoldfastSaver
from holdfast.integrations.langgraph.store import HoldfastStore

__all__ = ["HoldfastSaver", "HoldfastStore"]
