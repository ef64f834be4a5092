"""What a command prints: for people on a terminal, tab-separated in a pipe, JSON when asked for.

Invariant: standard output carries the result and nothing else; progress and questions go to standard error, and only to
a terminal. Whatever text comes by, no control character of it reaches a terminal.
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

from holdfast.desk.words import as_json, dumps, places, plain, plain_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

#: Fields that a spreadsheet computes, also if they stand in quotation marks, and numbers, which it may.
_FORMULA = re.compile(r'"?[=+\-@]')
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
#: How the state of a run looks.
COLOURS = {
    "completed": "green",
    "failed": "red",
    "interrupted": "yellow",
    "suspended": "magenta",
    "paused": "yellow",
    "cancelled": "bright_black",
    "running": "cyan",
}

#: Places between the columns of a table.
_BETWEEN = 2

Advance = Callable[[int, int], None]


class Column(NamedTuple):
    """A column of a table: its title, the value for programs, and what people see where that is another."""

    title: str
    value: Callable[[Any], Any]
    shown: Callable[[Any], str | Text] | None = None
    style: str = ""
    right: bool = False
    #: Places to which it may be shortened where a terminal is narrow; None for not at all.
    least: int | None = None
    #: Where that is not enough, columns are left out, those with the highest number first; 0 stays always.
    spare: int = 0


class _Drawn(NamedTuple):
    """A column with what is in it: the places that it wants, and those that it needs."""

    column: Column
    width: int
    least: int
    cells: list[Text]


class Output:
    """Where the result of one command goes."""

    def __init__(self) -> None:
        self.json = False
        self._console: Console | None = None
        self._recorded = False

    @property
    def for_people(self) -> bool:
        """Is somebody looking?"""
        return not self.json and (sys.stdout.isatty() or self._recorded)

    @property
    def moves(self) -> bool:
        """Can lines be drawn over, as on a terminal?"""
        return self.for_people and not self._recorded

    @property
    def can_ask(self) -> bool:
        """Is there somebody to be asked?"""
        return sys.stdin.isatty() and sys.stderr.isatty() and not self.json

    @property
    def console(self) -> Console:
        """The terminal, for what has colours."""
        if self._console is None:
            self._console = _console(sys.stdout)
        return self._console

    @property
    def width(self) -> int:
        return self.console.width

    # Pictures

    def record(self, width: int) -> None:
        """From now on, keep what is shown for a picture."""
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
        """Draw what was shown since `record`; the picture asks nobody for fonts."""
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
        """A list of things, one a row."""
        items = list(items)
        if self.json:
            self.document([record(item) for item in items])
        elif not self.for_people:
            for item in items:
                self.fields(column.value(item) for column in columns)
        elif items:
            self.console.print(self.table(items, columns))
        elif empty:
            self.text(empty)

    def facts(self, facts: Mapping[str, Any], shown: Mapping[str, str | Text] | None = None) -> None:
        """The facts of one thing, a line each; where people see something else, `shown` has it. In the JSON form
        they are the document."""
        if self.json:
            self.document(facts)
            return
        if not self.for_people:
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
                line.append_text(value) if hasattr(value, "plain") else line.append(_field(value))
            )

    def document(self, document: Any) -> None:
        """A document as JSON: indented on a terminal, one line for programs."""
        print(dumps(document, indent=2 if sys.stdout.isatty() or self._recorded else None))

    def line(self, record: Mapping[str, Any], values: Iterable[Any], shown: Text | str) -> None:
        """One line of a stream that goes on."""
        if self.json:
            print(dumps(record), flush=True)
        elif self.for_people:
            self.text(shown)
        else:
            self.fields(values)
            sys.stdout.flush()

    def done(self, record: Mapping[str, Any], shown: Text | str) -> None:
        """What was done, in a sentence; as a record under `--json`."""
        if self.json:
            self.document(record)
        else:
            self.text(shown)

    def fields(self, values: Iterable[Any]) -> None:
        """A line of values for programs. A text that a spreadsheet would take for a formula has a `'` before it."""
        print("\t".join(_quoted(_field(value)) for value in values))

    def value(self, value: Any) -> str:
        """A value of a state in a field of a line, as `--json` prints it."""
        return dumps(as_json(value))

    def text(self, text: Text | str) -> None:
        """Text for people; without colours in a pipe."""
        if self.for_people:
            _print(self.console, text)
        else:
            print(plain_lines(text if isinstance(text, str) else text.plain))

    def styled(self, text: str, style: str = "") -> Text:
        """A text in a colour."""
        from rich.text import Text

        return Text().append(text, style)

    def status(self, status: str) -> Text:
        """The status of a run in its colour."""
        return self.styled(status, COLOURS.get(status, ""))

    # Beside the result

    def say(self, text: Text | str) -> None:
        """Something that people want to know and that is no result: to standard error."""
        if self.json:
            return
        # Whoever does not listen keeps nobody from doing what was asked for.
        with suppress(OSError):
            if sys.stderr.isatty():
                _print(_console(sys.stderr), text)
            else:
                print(plain_lines(text if isinstance(text, str) else text.plain), file=sys.stderr)

    @contextmanager
    def progress(self, what: str) -> Iterator[Advance]:
        """Long work, with a bar on a terminal: call with what is done and what there is to do."""
        if self.json or not sys.stderr.isatty():
            yield lambda done, total: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=_console(sys.stderr), transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def table(self, items: Sequence[Any], columns: Sequence[Column]) -> Table:
        """The same for people, as wide as their terminal."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bright_black", padding=(0, _BETWEEN, 0, 0))
        drawn = self._fitted(
            [_drawn(column, [self._cell(column, item) for item in items]) for column in columns]
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

    def _fitted(self, drawn: list[_Drawn]) -> list[_Drawn]:
        """The columns for which there is room, shortened where they may be."""
        room = self.width + _BETWEEN
        while sum(each.least + _BETWEEN for each in drawn) > room:
            spare = max(drawn, key=lambda each: each.column.spare)
            if not spare.column.spare:
                break
            drawn = [each for each in drawn if each is not spare]
        widths = [min(each.width, self.width) for each in drawn]
        while sum(width + _BETWEEN for width in widths) > room:
            loose = [place for place, each in enumerate(drawn) if widths[place] > each.least]
            if not loose:
                break
            widths[max(loose, key=lambda place: widths[place])] -= 1
        return [each._replace(width=width) for each, width in zip(drawn, widths, strict=True)]

    def _cell(self, column: Column, item: Any) -> Text:
        shown = column.value(item) if column.shown is None else column.shown(item)
        if isinstance(shown, str) or not hasattr(shown, "plain"):
            return self.styled(_field(shown))
        return shown


def _drawn(column: Column, cells: list[Text]) -> _Drawn:
    width = max(places(plain(column.title)), *(cell.cell_len for cell in cells), 1)
    return _Drawn(column, width, width if column.least is None else min(width, column.least), cells)


def _print(console: Console, text: Text | str) -> None:
    if isinstance(text, str):
        text = plain_lines(text)
    elif plain_lines(text.plain) != text.plain:
        from rich.text import Text

        text = Text(plain_lines(text.plain), style=text.style)
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _console(file: IO[str]) -> Console:
    from rich.console import Console

    return Console(file=file, no_color=bool(os.environ.get("NO_COLOR")), emoji=False, highlight=False)


def _field(value: Any) -> str:
    """A value in a field of a line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple | list) and all(isinstance(item, str) for item in value):
        return plain(",".join(value))
    if isinstance(value, float):
        return _digits(value)
    if isinstance(value, str | int):
        return plain(str(value))
    return plain(dumps(value))


def _quoted(field: str) -> str:
    """Return a field that no spreadsheet computes; numbers stay as they are."""
    return f"'{field}" if _FORMULA.match(field) and not _NUMBER.fullmatch(field) else field


def _digits(number: float) -> str:
    """All digits of a number, without an exponent where it is of a size that people measure."""
    text = repr(number)
    if "e-" in text and abs(number) > 1e-15:
        text = f"{Decimal(text):f}"
    return text.removesuffix(".0")
