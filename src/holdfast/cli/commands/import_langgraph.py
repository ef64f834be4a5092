"""`holdfast import-langgraph`"""

from __future__ import annotations

import importlib
from typing import Any

import click

from holdfast.cli import exit_codes
from holdfast.cli.context import CommandContext, command
from holdfast.errors import InvalidCall
from holdfast.operator_view.text import count, plain


@command("import-langgraph")
@click.argument("file", metavar="FILE")
@click.option(
    "--allow", multiple=True, metavar="MODULE.CLASS", help="An application class that channels contain."
)
def import_langgraph_command(ctx: CommandContext, file: str, *, allow: tuple[str, ...]) -> int:
    """Copy the threads of a LangGraph SqliteSaver database, and compare each checkpoint with its copy.

    The file is only read. Checkpoints that were copied before are compared, not written again, so an interrupted import
    can be repeated.

    \b
    holdfast import-langgraph old.sqlite --store runs.db
    """
    try:
        from holdfast.integrations.langgraph import HoldfastSaver
        from holdfast.integrations.langgraph.import_sqlite import import_sqlite, open_database
    except ImportError as error:
        raise InvalidCall(f"this needs LangGraph: pip install 'holdfast[langgraph]' ({error})") from None
    classes = [_class(name) for name in allow]
    with open_database(file):
        # Create no store for a file that cannot be read.
        saver = HoldfastSaver(ctx.create_store(), allow=classes)
    with ctx.out.progress("importing") as advance:
        done = import_sqlite(file, saver, allow=classes, progress=advance)
    for thread, namespace, why in done.refused:
        ctx.out.say(plain(f"thread {thread!r}{f', namespace {namespace!r}' if namespace else ''}: {why}"))
    record = {
        "threads": done.threads,
        "checkpoints": done.checkpoints,
        "writes": done.writes,
        "refused": [
            {"thread": thread, "namespace": namespace, "why": str(why)}
            for thread, namespace, why in done.refused
        ],
    }
    total = f"{count(done.checkpoints, 'checkpoint')} of {count(done.threads, 'thread')}"
    ctx.out.done(record, f"copied {total}, all verified")
    return exit_codes.code_of(done.refused[0][2]) if done.refused else exit_codes.DONE


def _class(name: str) -> type:
    module, _, inner = name.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), inner) if module else None
    except (ImportError, AttributeError) as error:
        raise InvalidCall(f"--allow {name}: {error}") from None
    if not isinstance(found, type):
        raise InvalidCall(f"--allow takes a class, such as shop.models.Order, not {name!r}")
    return found
