"""The program: finds the command, runs it, and turns what goes wrong into one line and an exit code.

Commands are modules of `commands`, imported when they are called, so that help is there at once.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any

import click

from holdfast import __version__
from holdfast.cli import exits
from holdfast.cli.call import Call, shared
from holdfast.desk.words import details_as_json, dumps, plain
from holdfast.errors import HoldfastError, NotFound

#: Set by a shell that wants to complete a command line.
_COMPLETE = "_HOLDFAST_COMPLETE"

#: Commands by what they are for: name, module, what it does in a line.
COMMANDS: dict[str, list[tuple[str, str, str]]] = {
    "See it": [
        ("demo", "demo", "An agent is killed, goes on, makes a mistake and is put right."),
        ("init", "init", "Make a store, and tell this project where it is."),
    ],
    "In a browser": [
        ("serve", "serve", "Serve the page and the API, for this machine, until a signal comes."),
        ("ui", "serve", "Serve the page, as `serve` does, and open it in a browser."),
    ],
    "Look at runs": [
        ("runs", "runs", "List runs, newest first."),
        ("log", "log", "The versions of a run, newest first."),
        (
            "show",
            "show",
            "A version: step, arguments, result, error, state; or the part of the state at PATH.",
        ),
        ("diff", "diff", "What changed from version A to version B."),
        ("compare", "compare", "Two runs or timelines, step by step."),
        ("blame", "blame", "Which version last changed each part of the state."),
        ("bisect", "bisect", "Find the first version for which a command fails."),
        ("events", "events", "What happened to a run, or in the whole store, oldest first."),
        ("watch", "watch", "See a run at work until it ends."),
    ],
    "Put runs right": [
        ("resume", "resume", "Go on with a run from its head."),
        ("rollback", "rollback", "Move a run back to a version, on a new timeline, and go on from there."),
        ("fork", "fork", "Start another run from a version."),
        ("merge", "merge", "Bring what another version or timeline of a run changed into its head."),
        (
            "replay",
            "replay",
            "Run the recorded steps of a run again beside the record, or tell of them again.",
        ),
        ("pause", "stop", "Stop a run at the next step, until it is resumed."),
        ("cancel", "stop", "Stop a run for good, at the next step."),
    ],
    "Answer": [
        ("prompts", "prompts", "The questions that wait for an answer."),
        ("answer", "prompts", "Answer a question."),
        ("send", "prompts", "Send an event to a run that waits for it, now or later."),
        ("mcp", "mcp", "Let agents look at runs and put them right: a server of the Model Context Protocol."),
    ],
    "Run a fleet": [
        ("worker", "worker", "Execute runs of queues until a signal comes."),
        ("monitor", "monitor", "Look after runs that are dead, silent, looping or too expensive."),
        ("queues", "queues", "The queues, what waits in them, and their limits."),
        ("enqueue", "queues", "Let a worker run a workflow."),
        ("requeue", "queues", "Let a worker go on with a run that has stopped."),
    ],
    "Care for the store": [
        ("tag", "marks", "Give a version a name."),
        ("pin", "marks", "Keep a version from being forgotten."),
        ("forget", "forget", "Remove versions that a policy does not keep."),
        ("delete", "forget", "Remove whole runs for ever."),
        ("gc", "gc", "Remove large values that no version holds any more."),
        ("backup", "backup", "Copy the store, while it is in use, to a new file."),
        ("verify", "verify", "Check every version, every hash, every large value."),
        ("stats", "stats", "What the store holds, and how large it is."),
        ("check", "check", "Check, before a deploy, that APP can resume every unfinished run of the store."),
        ("config", "config", "Settings that the store keeps for all who use it."),
        ("doctor", "doctor", "Look for what could become a problem."),
        ("migrate", "migrate", "Bring a store to this Holdfast's format."),
    ],
    "Take along": [
        ("export", "exports", "Write versions as JSON, or whole runs as bundles."),
        ("import", "exports", "Read snapshots and bundles. Never overwrites."),
        (
            "import-langgraph",
            "import_langgraph",
            "Copy the threads of a database of LangGraph's SqliteSaver.",
        ),
        ("artifacts", "artifacts", "List, read and add large values."),
        ("completion", "completion", "Print what makes your shell complete commands, options and runs."),
    ],
}
_MODULES = {name: module for group in COMMANDS.values() for name, module, _ in group}


class Unread(Exception):
    """Whoever read the output has seen enough."""


class Program(click.Group):
    """The group of all commands, each loaded when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        module = importlib.import_module(f"holdfast.cli.commands.{_MODULES[cmd_name]}")
        found = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        assert isinstance(found, click.Command)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Click would print an empty line.
            raise click.Abort from None
        except BrokenPipeError:
            # Click would call it a failure.
            raise Unread from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _MODULES and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(args[0], _MODULES, 1)
            hint = f"did you mean {near[0]!r}?" if near else "`holdfast --help` lists the commands"
            ctx.fail(f"there is no command {plain(args[0])!r}: {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wide = max(map(len, _MODULES))
        for title, group in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(wide), text) for name, _, text in group])


@click.group(
    cls=Program,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="A version is written RUN@12, RUN@head, RUN~2 (two before the head) or RUN:tag; RUN alone is its head. The "
    "beginning of a run's id is enough where it is the only one.",
)
@click.version_option(__version__, message="holdfast %(version)s")
@shared
@click.pass_context
def program(context: click.Context) -> None:
    """Keeps the state of agent workflows: every step a version to resume, roll back, fork, compare and blame."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def run(arguments: list[str]) -> int:
    """Run the program and give its exit code."""
    _complete_streams()
    arguments = list(map(_decoded, arguments))
    call = Call()
    code: object = exits.DONE
    # What goes wrong before the options are read is told as they will say.
    call.out.json = "--json" in arguments[: arguments.index("--") if "--" in arguments else None]
    try:
        if _COMPLETE in os.environ:
            code = program.main(arguments, "holdfast", standalone_mode=False, obj=call)
        else:
            # `main` would print an empty line for an interrupt.
            with program.make_context("holdfast", arguments, obj=call) as context:
                code = program.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        code = error.exit_code
    except (Unread, BrokenPipeError):
        _silence()
    except (click.Abort, KeyboardInterrupt):
        # On a terminal, after what stands in the line of the ^C.
        _tell(
            call,
            "interrupted",
            "interrupted; nothing is lost",
            {},
            before="\n" if sys.stderr.isatty() else "",
        )
        code = exits.INTERRUPTED
    except click.ClickException as error:
        _tell(call, "usage", _usage(error), {})
        code = exits.USAGE
    except HoldfastError as error:
        if call.debug:
            raise
        _tell(call, error.code, f"{error}{_hint(error)}", error.details)
        code = exits.code_of(error)
    except OSError as error:
        if call.debug:
            raise
        _tell(call, "files", _files(error), {"file": error.filename})
        _silence()
        code = exits.FILES
    except Exception as error:
        if call.debug:
            raise
        text = f"a fault in Holdfast: {type(error).__name__}: {error} (--debug shows where)"
        _tell(call, "fault", text, {})
        code = exits.FAULT
    finally:
        _close(call)
    return code if isinstance(code, int) else exits.DONE


def _tell(call: Call, code: str, message: str, details: dict[str, Any], *, before: str = "") -> None:
    """One line that says what went wrong and what to do."""
    if call.out.json:
        text = dumps({"code": code, "message": message, "details": details_as_json(details)})
    else:
        text = f"holdfast: {plain(message)}"
    try:
        colour = sys.stderr.isatty() and not call.out.json and not os.environ.get("NO_COLOR")
        print(before + (f"\033[31m{text}\033[0m" if colour else text), file=sys.stderr)
    except OSError:
        _silence()


def _files(error: OSError) -> str:
    what = error.strerror or str(error)
    if error.filename is None:
        return f"the output cannot be written: {what}: write it elsewhere, or make room"
    return f"{error.filename}: {what}: check the path and your rights to it"


def _hint(error: HoldfastError) -> str:
    """Where to look for what was not found, if the message does not say what to do."""
    if not isinstance(error, NotFound) or ": " in str(error):
        return ""
    if "path" in error.details:
        return ": `holdfast show REF` shows what there is"
    if error.details.keys() & {"version", "tag", "back"}:
        return f": `holdfast log {error.details.get('run', 'RUN')}` lists what there is"
    return ": `holdfast runs` lists them" if "run" in error.details else ""


def _usage(error: click.ClickException) -> str:
    text = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None or "--help" in text:
        return text
    return f"{text[0].lower()}{text[1:]} (see `{context.command_path} --help`)"


def _close(call: Call) -> None:
    try:
        call.close()
    except HoldfastError as error:
        _tell(call, error.code, str(error), error.details)


def _complete_streams() -> None:
    """Python has none where the caller closed one; what is written there then goes nowhere. Signs that a stream cannot
    take are written as their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for as long as it runs
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Programs read UTF-8, whatever the locale; a terminal gets what it can show.
            named = stream.isatty() or os.environ.get("PYTHONIOENCODING")
            encoding = None if named else "utf-8"
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def _decoded(argument: str) -> str:
    """An argument as it was meant, where the locale is not UTF-8; what is no UTF-8 either keeps its escapes."""
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        return argument.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _silence() -> None:
    """Let Python's own flush at the end fail unheard."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(devnull, stream.fileno())
        except (OSError, ValueError):
            continue
