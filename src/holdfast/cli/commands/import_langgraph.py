"""`holdfast import-langgraph`"""

from __future__ import annotations

import importlib
from typing import Any

import click

from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.desk.words import count, plain
from holdfast.errors import InvalidCall


@command("import-langgraph")
@click.argument("file", metavar="FILE")
@click.option(
    "--allow", multiple=True, metavar="MODULE.CLASS", help="A class of yours that stands in channels."
)
def import_langgraph_command(call: Call, file: str, *, allow: tuple[str, ...]) -> int:
    """Copy the threads of a database of LangGraph's SqliteSaver, and compare each checkpoint with its copy.

    The file is only read. What is there already is compared, not written again: a second call goes on where the first
    was cut short.

    \b
    holdfast import-langgraph old.sqlite --store runs.db
    """
    try:
        from holdfast.integrations.langgraph import HoldfastSaver
        from holdfast.integrations.langgraph.importing import import_sqlite, opened
    except ImportError as error:
        raise InvalidCall(f"this needs LangGraph: pip install 'holdfast[langgraph]' ({error})") from None
    classes = [_class(name) for name in allow]
    with opened(file):
        # What cannot be read makes no store.
        saver = HoldfastSaver(call.make(), allow=classes)
    with call.out.progress("importing") as advance:
        done = import_sqlite(file, saver, allow=classes, progress=advance)
    for thread, namespace, why in done.refused:
        call.out.say(plain(f"thread {thread!r}{f', namespace {namespace!r}' if namespace else ''}: {why}"))
    record = {
        "threads": done.threads,
        "checkpoints": done.checkpoints,
        "writes": done.writes,
        "refused": [
            {"thread": thread, "namespace": namespace, "why": str(why)}
            for thread, namespace, why in done.refused
        ],
    }
    told = (
        f"{count(done.checkpoints, 'checkpoint')} of {count(done.threads, 'thread')} copied, each as it was"
    )
    call.out.done(record, told)
    return exits.code_of(done.refused[0][2]) if done.refused else exits.DONE


def _class(name: str) -> type:
    module, _, inner = name.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), inner) if module else None
    except (ImportError, AttributeError) as error:
        raise InvalidCall(f"--allow {name}: {error}") from None
    if not isinstance(found, type):
        raise InvalidCall(f"--allow takes a class, such as shop.models.Order, not {name!r}")
    return found
