"""Output of a command: tables on a terminal, tab-separated fields in a pipe, JSON with `--json`.

Invariant: standard output carries only the result; progress and questions go to standard error, and only to a terminal.
No control character of stored text reaches a terminal.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from holdfast.operator_view.records import status_of
from holdfast.operator_view.text import age, display_width, dumps, plain, printable_lines, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


#: Fields that a spreadsheet would evaluate, quoted or not; and numbers, which it may evaluate.
_FORMULA = re.compile(r'"?[=+\-@]')
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
#: Colours of statuses.
COLOURS = {
    "completed": "green",
    "failed": "red",
    "stalled": "red",
    "interrupted": "yellow",
    "suspended": "magenta",
    "paused": "yellow",
    "cancelled": "bright_black",
    "running": "cyan",
    "queued": "blue",
    "manual": "",
}

#: Characters between the columns of a table.
_BETWEEN = 2

Advance = Callable[[int, int], None]


class Column(NamedTuple):
    """A column of a table: its title, its value for programs, and its text for people if that differs."""

    title: str
    value: Callable[[Any], Any]
    shown: Callable[[Any], str | Text] | None = None
    style: str = ""
    right: bool = False
    #: The width to which a narrow terminal may shorten it; None for not at all.
    min_width: int | None = None
    #: If that is not enough, columns are dropped, the highest number first; 0 is never dropped.
    drop_order: int = 0


class _SizedColumn(NamedTuple):
    """A column with its cells, its full width and its minimal width."""

    column: Column
    width: int
    min_width: int
    cells: list[Text]


class Output:
    """The output of one command."""

    def __init__(self) -> None:
        self.json = False
        self._console: Console | None = None
        self._recorded = False

    @property
    def is_for_people(self) -> bool:
        """Whether the output is formatted for people: on a terminal, without `--json`."""
        return not self.json and (sys.stdout.isatty() or self._recorded)

    @property
    def can_redraw(self) -> bool:
        """Whether lines can be redrawn."""
        return self.is_for_people and not self._recorded

    @property
    def can_ask(self) -> bool:
        """Whether the user can be asked."""
        return sys.stdin.isatty() and sys.stderr.isatty() and not self.json

    @property
    def console(self) -> Console:
        """The terminal that colours are written to."""
        if self._console is None:
            self._console = _console(sys.stdout)
        return self._console

    @property
    def width(self) -> int:
        return self.console.width

    # Pictures

    def record(self, width: int) -> None:
        """Record the output from now on, for `save_picture`."""
        from rich.console import Console

        self._console = Console(
            file=sys.stdout,
            record=True,
            width=width,
            force_terminal=True,
            color_system="truecolor",
            emoji=False,
            highlight=False,
        )
        self._recorded = True

    def save_picture(self, path: Path, title: str) -> None:
        """Write the recorded output as an SVG file that loads no fonts."""
        drawn = self.console.export_svg(title=title)
        drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
        drawn = re.sub(r"<!--.*?-->\s*", "", drawn, flags=re.DOTALL)
        drawn = re.sub(r"Fira Code(, monospace)?", "ui-monospace, Menlo, Consolas, monospace", drawn)
        path.write_text(drawn, encoding="utf-8")

    # Results

    def rows(
        self,
        items: Iterable[Any],
        columns: Sequence[Column],
        record: Callable[[Any], Mapping[str, Any]],
        *,
        empty: str = "",
    ) -> None:
        """Print a list, one item per row."""
        items = list(items)
        if self.json:
            self.document([record(item) for item in items])
        elif not self.is_for_people:
            for item in items:
                self.fields(column.value(item) for column in columns)
        elif items:
            self.console.print(self.table(items, columns))
        elif empty:
            self.text(empty)

    def facts(self, facts: Mapping[str, Any], shown: Mapping[str, str | Text] | None = None) -> None:
        """Print named values, one per line; `shown` overrides what people see. With `--json` they are one document."""
        if self.json:
            self.document(facts)
            return
        if not self.is_for_people:
            for name, value in facts.items():
                self.fields((name, value))
            return
        known = {
            name: value
            for name, value in {**facts, **(shown or {})}.items()
            if value not in (None, "", (), [])
        }
        wide = max((len(name) for name in known), default=0)
        for name, value in known.items():
            line = self.styled(f"{name:{wide}}  ", "bright_black")
            self.console.print(
                line.append_text(value) if hasattr(value, "plain") else line.append(_format_field(value))
            )

    def document(self, document: Any) -> None:
        """Print a document as JSON: indented on a terminal, else on one line."""
        print(dumps(document, indent=2 if sys.stdout.isatty() or self._recorded else None))

    def line(self, record: Mapping[str, Any], values: Iterable[Any], shown: Text | str) -> None:
        """Print one line of a stream, and flush it."""
        if self.json:
            print(dumps(record), flush=True)
        elif self.is_for_people:
            self.text(shown)
        else:
            self.fields(values)
            sys.stdout.flush()

    def done(self, record: Mapping[str, Any], shown: Text | str) -> None:
        """Print the result of an action: a sentence, or a record with `--json`."""
        if self.json:
            self.document(record)
        else:
            self.text(shown)

    def fields(self, values: Iterable[Any]) -> None:
        """Print tab-separated values. A text that a spreadsheet would evaluate as a formula is prefixed with `'`."""
        print("\t".join(_quote_formula(_format_field(value)) for value in values))

    def text(self, text: Text | str) -> None:
        """Print text; without colours in a pipe."""
        if self.is_for_people:
            _print(self.console, text)
        else:
            print(printable_lines(text if isinstance(text, str) else text.plain))

    def styled(self, text: str, style: str = "") -> Text:
        """Return a text in a colour."""
        from rich.text import Text

        return Text().append(text, style)

    def status(self, status: str) -> Text:
        """Return a status in its colour."""
        return self.styled(status, COLOURS.get(status, ""))

    # Messages

    def say(self, text: Text | str) -> None:
        """Print a message that is not part of the result, to standard error."""
        if self.json:
            return
        # A closed standard error does not stop the command.
        with suppress(OSError):
            if sys.stderr.isatty():
                _print(_console(sys.stderr), text)
            else:
                print(printable_lines(text if isinstance(text, str) else text.plain), file=sys.stderr)

    @contextmanager
    def progress(self, what: str) -> Iterator[Advance]:
        """Show a progress bar on a terminal; yield a function that takes the work done and the total."""
        if self.json or not sys.stderr.isatty():
            yield lambda done, total: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=_console(sys.stderr), transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def table(self, items: Sequence[Any], columns: Sequence[Column]) -> Table:
        """Return a table that fits the terminal."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bright_black", padding=(0, _BETWEEN, 0, 0))
        drawn = self._fit_columns(
            [_size_column(column, [self._cell(column, item) for item in items]) for column in columns]
        )
        for column, width, _, _ in drawn:
            table.add_column(
                self.styled(plain(column.title)),
                justify="right" if column.right else "left",
                style=column.style,
                no_wrap=True,
                overflow="ellipsis",
                width=width,
            )
        for number in range(len(items)):
            table.add_row(*(each.cells[number] for each in drawn))
        return table

    def _fit_columns(self, drawn: list[_SizedColumn]) -> list[_SizedColumn]:
        """Return the columns that fit the terminal, shortened where that is allowed."""
        room = self.width + _BETWEEN
        while sum(each.min_width + _BETWEEN for each in drawn) > room:
            first = max(drawn, key=lambda each: each.column.drop_order)
            if not first.column.drop_order:
                break
            drawn = [each for each in drawn if each is not first]
        widths = [min(each.width, self.width) for each in drawn]
        while sum(width + _BETWEEN for width in widths) > room:
            loose = [place for place, each in enumerate(drawn) if widths[place] > each.min_width]
            if not loose:
                break
            widths[max(loose, key=lambda place: widths[place])] -= 1
        return [each._replace(width=width) for each, width in zip(drawn, widths, strict=True)]

    def _cell(self, column: Column, item: Any) -> Text:
        shown = column.value(item) if column.shown is None else column.shown(item)
        if isinstance(shown, str) or not hasattr(shown, "plain"):
            return self.styled(_format_field(shown))
        return shown


def _size_column(column: Column, cells: list[Text]) -> _SizedColumn:
    width = max(display_width(plain(column.title)), *(cell.cell_len for cell in cells), 1)
    return _SizedColumn(
        column, width, width if column.min_width is None else min(width, column.min_width), cells
    )


def _print(console: Console, text: Text | str) -> None:
    if isinstance(text, str):
        text = printable_lines(text)
    elif printable_lines(text.plain) != text.plain:
        from rich.text import Text

        text = Text(printable_lines(text.plain), style=text.style)
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _console(file: IO[str]) -> Console:
    from rich.console import Console

    return Console(file=file, no_color=bool(os.environ.get("NO_COLOR")), emoji=False, highlight=False)


def _format_field(value: Any) -> str:
    """Return a value as the text of a field."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple | list) and all(isinstance(item, str) for item in value):
        return plain(",".join(value))
    if isinstance(value, float):
        return _format_number(value)
    if isinstance(value, str | int):
        return plain(str(value))
    return plain(dumps(value))


def _quote_formula(field: str) -> str:
    """Return a field that no spreadsheet evaluates; numbers are unchanged."""
    return f"'{field}" if _FORMULA.match(field) and not _NUMBER.fullmatch(field) else field


def _format_number(number: float) -> str:
    """Return all digits of a number, without an exponent unless it is extremely small."""
    text = repr(number)
    if "e-" in text and abs(number) > 1e-15:
        text = f"{Decimal(text):f}"
    return text.removesuffix(".0")


def run_columns(out: Output) -> list[Column]:
    """Return the columns of a list of runs."""
    return [
        Column("run", lambda run: run.id, style="bold", min_width=22),
        Column("status", status_of, lambda run: out.status(status_of(run))),
        Column(
            "workflow", lambda run: run.workflow, lambda run: run.workflow or "—", min_width=16, drop_order=3
        ),
        Column("step", lambda run: run.step, min_width=12, drop_order=2),
        Column("versions", lambda run: run.versions, right=True, drop_order=4),
        Column("age", lambda run: run.updated, lambda run: age(run.updated), drop_order=1),
        Column("size", lambda run: run.size, lambda run: size(run.size), right=True, drop_order=6),
        Column("tags", lambda run: run.tags, style="yellow", min_width=8, drop_order=5),
    ]
