"""The program: finds the command, runs it, and reports errors.

Commands are modules of `commands`, imported when they are called, so that `--help` is fast.

Invariant: whatever is raised becomes one line on stderr and an exit code.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any

import click

from holdfast import __version__
from holdfast.cli.context import CommandContext, shared_options
from holdfast.cli.exit_codes import DONE, FAULT, FILES, INTERRUPTED, USAGE, code_of
from holdfast.errors import HoldfastError, NotFound
from holdfast.operator_view.text import details_as_json, dumps, plain

#: Set by a shell that wants to complete a command line.
_COMPLETE = "_HOLDFAST_COMPLETE"

#: Commands by their purpose: name, module, summary.
COMMANDS: dict[str, list[tuple[str, str, str]]] = {
    "Start": [
        ("demo", "demo", "Show an agent that is killed, resumed, and corrected by a rollback."),
        ("init", "init", "Create a store and record its location in pyproject.toml."),
    ],
    "Web": [
        ("serve", "serve", "Serve the web page and the HTTP API until interrupted."),
        ("ui", "serve", "Serve the web page as `serve` does, and open it in a browser."),
    ],
    "Inspect runs": [
        ("runs", "runs", "List runs, newest first."),
        ("log", "log", "List the versions of a run, newest first."),
        ("show", "show", "Show a version: step, arguments, result, error, state; or a part of the state."),
        ("diff", "diff", "Show the changes from version A to version B."),
        ("compare", "diff", "Compare two runs or timelines step by step."),
        ("blame", "blame", "Show which version last changed each part of the state."),
        ("bisect", "blame", "Find the first version for which a command fails."),
        ("events", "events", "List the events of a run or of the whole store, oldest first."),
        ("watch", "log", "Follow a run until it ends or waits for an operator."),
    ],
    "Change runs": [
        ("resume", "resume", "Resume a run from its head."),
        ("rollback", "resume", "Roll a run back to a version, on a new timeline, and resume it."),
        ("fork", "fork", "Start a new run from a version."),
        ("merge", "fork", "Merge the changes of another version or timeline into a run's head."),
        (
            "replay",
            "replay",
            "Run the recorded steps of a run again to validate them, or republish their events.",
        ),
        ("pause", "pause", "Pause a run at the next step, until it is resumed."),
        ("cancel", "pause", "Cancel a run and its children at the next step, permanently."),
    ],
    "Signals and questions": [
        ("inbox", "inbox", "List the questions that wait for an answer."),
        ("answer", "inbox", "Answer a question."),
        ("assign", "inbox", "Change who is to answer a question, and by when."),
        ("signal", "inbox", "Send a signal to a run that waits for it, now or later."),
    ],
    "Queues and workers": [
        ("worker", "worker", "Execute the runs of queues until interrupted."),
        ("monitor", "worker", "Detect runs that are dead, silent, looping or over budget, and act on them."),
        ("queues", "queues", "List the queues, their runs and their limits."),
        ("breakers", "breakers", "List the circuit breakers of steps, or close one by hand."),
        ("enqueue", "queues", "Add a run of a workflow to a queue."),
        ("requeue", "queues", "Put a stopped run back into a queue."),
    ],
    "Maintain the store": [
        ("tag", "tag", "Tag a version, or list the tags of a run."),
        ("pin", "tag", "Protect a version from being pruned."),
        ("prune", "prune", "Remove old versions that a retention policy does not keep."),
        ("delete", "prune", "Delete whole runs permanently."),
        ("gc", "prune", "Remove artifacts that no version refers to."),
        ("backup", "store", "Copy the store to a new file while it is in use."),
        ("verify", "store", "Verify every version, hash and artifact."),
        ("stats", "store", "Show what the store holds and how large it is."),
        ("check", "replay", "Check, before a deploy, that APP can resume every unfinished run of the store."),
        ("config", "config", "Change the settings that are stored in the store."),
        ("doctor", "store", "Look for problems with the store and this installation."),
        ("migrate", "init", "Upgrade a store to the current format."),
    ],
    "Import and export": [
        ("export", "export", "Write versions as JSON, or whole runs as bundles."),
        ("import", "export", "Import snapshots and bundles. Never overwrites."),
        ("artifacts", "artifacts", "List, read and add artifacts."),
    ],
    "Integrations": [
        ("mcp", "mcp", "Serve the store to agents over the Model Context Protocol."),
        ("import-langgraph", "export", "Copy the threads of a LangGraph SqliteSaver database."),
        (
            "completion",
            "completion",
            "Print the script that completes commands, options and runs in your shell.",
        ),
    ],
}
_MODULES = {name: module for group in COMMANDS.values() for name, module, _ in group}


class OutputClosed(Exception):
    """The reader of the output has closed the pipe."""


class Program(click.Group):
    """The group of all commands; each is imported when it is called."""

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
            # Click would report a failure.
            raise OutputClosed from None

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
    epilog="Write a version as RUN@12, RUN@head, RUN~2 (two before the head) or RUN:tag; RUN alone is its head. A "
    "unique prefix of a run's id is enough.",
)
@click.version_option(__version__, message="holdfast %(version)s")
@shared_options
@click.pass_context
def program(click_context: click.Context) -> None:
    """Durable, versioned state for agent workflows: resume, roll back, fork, compare and blame every step."""
    if click_context.invoked_subcommand is None:
        click.echo(click_context.get_help())


def run(arguments: list[str]) -> int:
    """Run the program and return its exit code."""
    _prepare_streams()
    arguments = list(map(_decode_argument, arguments))
    ctx = CommandContext()
    code: object = DONE
    # Errors before the options are parsed are reported as JSON, too.
    ctx.out.json = "--json" in arguments[: arguments.index("--") if "--" in arguments else None]
    try:
        if _COMPLETE in os.environ:
            code = program.main(arguments, "holdfast", standalone_mode=False, obj=ctx)
        else:
            # `main` would print an empty line for an interrupt.
            with program.make_context("holdfast", arguments, obj=ctx) as click_context:
                code = program.invoke(click_context)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        code = error.exit_code
    except (OutputClosed, BrokenPipeError):
        _discard_output()
    except (click.Abort, KeyboardInterrupt):
        # On a terminal, start a new line after the ^C.
        newline = "\n" if sys.stderr.isatty() else ""
        _report_error(ctx, "interrupted", "interrupted; nothing is lost", {}, before=newline)
        code = INTERRUPTED
    except click.ClickException as error:
        _report_error(ctx, "usage", _usage_text(error), {})
        code = USAGE
    except HoldfastError as error:
        if ctx.debug:
            raise
        _report_error(ctx, error.code, f"{error}{_hint(error)}", error.details)
        code = code_of(error)
    except OSError as error:
        if ctx.debug:
            raise
        _report_error(ctx, "files", _file_error_text(error), {"file": error.filename})
        _discard_output()
        code = FILES
    except Exception as error:
        if ctx.debug:
            raise
        text = f"internal error in Holdfast: {type(error).__name__}: {error} (--debug shows the traceback)"
        _report_error(ctx, "fault", text, {})
        code = FAULT
    finally:
        _close(ctx)
    return code if isinstance(code, int) else DONE


def _report_error(
    ctx: CommandContext, code: str, message: str, details: dict[str, Any], *, before: str = ""
) -> None:
    """Print one line: the error and what to do."""
    if ctx.out.json:
        text = dumps({"code": code, "message": message, "details": details_as_json(details)})
    else:
        text = f"holdfast: {plain(message)}"
    try:
        colour = sys.stderr.isatty() and not ctx.out.json and not os.environ.get("NO_COLOR")
        print(before + (f"\033[31m{text}\033[0m" if colour else text), file=sys.stderr)
    except OSError:
        _discard_output()


def _file_error_text(error: OSError) -> str:
    what = error.strerror or str(error)
    if error.filename is None:
        return f"the output cannot be written: {what}: write it elsewhere, or free some space"
    return f"{error.filename}: {what}: check the path and its permissions"


def _hint(error: HoldfastError) -> str:
    """Return which command lists what was not found, if the message does not say what to do."""
    if not isinstance(error, NotFound) or ": " in str(error):
        return ""
    if "path" in error.details:
        return ": `holdfast show REF` shows the state"
    if error.details.keys() & {"version", "tag", "back", "timeline"}:
        return f": `holdfast log {error.details.get('run', 'RUN')}` lists them"
    return ": `holdfast runs` lists them" if "run" in error.details else ""


def _usage_text(error: click.ClickException) -> str:
    text = error.format_message().rstrip(".")
    click_context = getattr(error, "ctx", None)
    if click_context is None or "--help" in text:
        return text
    return f"{text[0].lower()}{text[1:]} (see `{click_context.command_path} --help`)"


def _close(ctx: CommandContext) -> None:
    try:
        ctx.close()
    except HoldfastError as error:
        _report_error(ctx, error.code, str(error), error.details)


def _prepare_streams() -> None:
    """Replace streams that the caller closed, and escape characters that a stream cannot encode."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A pipe gets UTF-8 whatever the locale; a terminal gets its own encoding.
            named = stream.isatty() or os.environ.get("PYTHONIOENCODING")
            encoding = None if named else "utf-8"
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def _decode_argument(argument: str) -> str:
    """Decode an argument as UTF-8 whatever the locale; escape bytes that are not UTF-8."""
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        return argument.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _discard_output() -> None:
    """Redirect the streams to the null device, so that the flush at exit cannot fail."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(devnull, stream.fileno())
        except (OSError, ValueError):
            continue
