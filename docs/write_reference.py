"""Write the reference pages: signatures, defaults, fields and docstrings of the public API, as plain Markdown.

    python docs/write_reference.py            write the pages
    python docs/write_reference.py --check    exit with 1 if a page is not current

A page holds prose, and lines of the form

    <!-- reference: holdfast.Retry -->
    …
    <!-- end -->

Between the two lines is what this script writes. Options after the name: `level=3` is the level of the heading (2 by
default), `members=no` leaves out methods and fields, `without=start,wake` leaves out some.

Invariant: text outside the marked parts is never changed.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

PAGES = Path(__file__).parent
WIDTH = 110
_PART = re.compile(r"(?P<start><!-- reference: (?P<options>[^\n]+) -->\n).*?(?P<end><!-- end -->)", re.S)
#: Defaults that say nothing to a reader: private names, and markers for "not given".
_PRIVATE = re.compile(r"(?:^|\W)_[A-Za-z]|\b[A-Z_]{3,}$|\n")
_FACTORIES = {"list": "[]", "dict": "{}", "set": "set()", "tuple": "()"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """A parsed module."""

    lines: list[str]
    tree: ast.Module
    #: What the module's names stand for.
    names: dict[str, Any]

    def node(self, qualname: str) -> Any:
        """Return the definition of a class or function; of several, such as overloads, the last."""
        found: Any = self.tree
        for name in qualname.split("."):
            found = [each for each in found.body if getattr(each, "name", None) == name][-1]
        return found

    def value(self, node: ast.expr) -> str:
        """Return a default as readers should see it: a constant's value, and `…` in place of a private object."""
        if isinstance(node, ast.Call):
            given = {each.arg: each.value for each in node.keywords}
            factory = given.get("default_factory")
            if isinstance(factory, ast.Name) and factory.id in _FACTORIES:
                return _FACTORIES[factory.id]
            if "default" in given:
                return self.value(given["default"])
        text = ast.unparse(node)
        if isinstance(node, ast.Name) and isinstance(self.names.get(text), str | int | float):
            text = repr(self.names[text])
        return "…" if _PRIVATE.search(text) else text.replace("'", '"')

    def comment_above(self, lineno: int) -> str:
        """Return the comment above a line if it starts with `#:`."""
        found: list[str] = []
        for line in reversed(self.lines[: lineno - 1]):
            if not line.strip().startswith("#"):
                break
            found.insert(0, line.strip())
        while found and not found[0].startswith("#:"):
            del found[0]
        return " ".join(line.removeprefix("#:").removeprefix("#").strip() for line in found)


@dataclass(frozen=True)
class Options:
    """The name after `reference:`, and its options."""

    name: str
    level: int = 2
    init: bool = True
    members: bool = True
    only: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Options:
        """Read the text of a marker."""
        name, *rest = text.split()
        given = dict(each.split("=", 1) for each in rest)
        unknown = given.keys() - {"level", "init", "members", "only", "without"}
        if unknown:
            raise SystemExit(f"{text}: unknown options {sorted(unknown)}")
        only, without = (frozenset(given.get(key, "").split(",")) - {""} for key in ("only", "without"))
        init, members = (given.get(key) != "no" for key in ("init", "members"))
        return cls(name, int(given.get("level", 2)), init, members, only, without)

    def wants(self, name: str) -> bool:
        """Return whether a member is shown."""
        return not name.startswith("_") and name not in self.without and (not self.only or name in self.only)


def written(page: str) -> str:
    """Return a page with its marked parts written again."""

    def replace(match: re.Match[str]) -> str:
        options = Options.parse(match["options"])
        return match["start"] + "\n" + "\n\n".join(parts(options)) + "\n\n" + match["end"]

    return _PART.sub(replace, page)


def parts(options: Options) -> Iterator[str]:
    """Yield the paragraphs about a module, class or function."""
    found = resolve(options.name)
    if isinstance(found, ModuleType):
        source = source_of(found.__name__)
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and options.wants(node.name):
                yield from class_parts(source, node, options)
        return
    source = source_of(found.__module__)
    node = source.node(found.__qualname__)
    if isinstance(node, ast.ClassDef):
        yield from class_parts(source, node, options)
    else:
        owner = found.__qualname__.rpartition(".")[0]
        yield from function_parts(source, node, options.level, owner)


def class_parts(source: Source, node: ast.ClassDef, options: Options) -> Iterator[str]:
    """Yield the paragraphs about a class: its docstring, its constructor, its fields, its methods."""
    yield f"{'#' * options.level} {node.name}"
    functions = [
        each for each in node.body if isinstance(each, _Function) and "overload" not in names_on(each)
    ]
    for function in functions:
        if (
            options.init
            and function.name == "__init__"
            and len(function.args.args) + len(function.args.kwonlyargs) > 1
        ):
            yield code(signature(source, function, node.name))
    yield from docstring(node)
    if not options.members:
        return
    fields = [*field_lines(source, node, options), *property_lines(functions, options)]
    if fields:
        yield "\n".join(fields)
    for function in functions:
        if options.wants(function.name) and not is_property(function):
            yield from function_parts(source, function, options.level + 1, node.name)


def function_parts(source: Source, node: _Function, level: int, owner: str) -> Iterator[str]:
    """Yield the paragraphs about a function, method or property."""
    yield f"{'#' * level} {node.name}"
    name = f"{owner}.{node.name}" if owner else node.name
    if is_property(node):
        yield code(f"{name}: {ast.unparse(node.returns)}" if node.returns else name)
    else:
        yield code(
            ("async " if isinstance(node, ast.AsyncFunctionDef) else "") + signature(source, node, name)
        )
    yield from docstring(node)


def field_lines(source: Source, node: ast.ClassDef, options: Options) -> Iterator[str]:
    """Yield a list item for each field of a class."""
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            name, default = each.target.id, "" if each.value is None else f" = {source.value(each.value)}"
            kind = ast.unparse(each.annotation).removeprefix("ClassVar[")
            shown = f"`{name}: {kind if kind in ast.unparse(each.annotation) else kind[:-1]}{default}`"
        elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            name = each.targets[0].id
            shown = f"`{name} = {source.value(each.value)}`"
        else:
            continue
        if options.wants(name):
            yield item(shown, source.comment_above(each.lineno))


def property_lines(functions: list[_Function], options: Options) -> Iterator[str]:
    """Yield a list item for each property."""
    for each in functions:
        if is_property(each) and options.wants(each.name):
            kind = f": {ast.unparse(each.returns)}" if each.returns else ""
            yield item(f"`{each.name}{kind}`", " ".join((ast.get_docstring(each) or "").split()))


def item(shown: str, text: str) -> str:
    """Return a list item, wrapped."""
    joined = f"- {shown}: {text}" if text else f"- {shown}"
    return textwrap.fill(
        joined, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def signature(source: Source, node: _Function, name: str) -> str:
    """Return a call as it is written in code, without `self`; one parameter a line if it is long."""
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    shown = [parameter(source, each, default) for each, default in zip(plain, defaults, strict=True)]
    if arguments.posonlyargs:
        shown.insert(len(arguments.posonlyargs), "/")
    if plain and (plain[0].arg == "self" or "classmethod" in names_on(node)):
        shown = shown[1:]
    if arguments.vararg:
        shown.append(f"*{parameter(source, arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        shown.append("*")
    shown += [
        parameter(source, each, default)
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        shown.append(f"**{parameter(source, arguments.kwarg, None)}")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    line = f"{name}({', '.join(shown)}){returns}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in shown), f"){returns}"])


def parameter(source: Source, node: ast.arg, default: ast.expr | None) -> str:
    """Return a parameter with its type and default."""
    kind = (
        ""
        if node.annotation is None or ast.unparse(node.annotation) == "Any"
        else ast.unparse(node.annotation)
    )
    if default is None:
        return f"{node.arg}: {kind}" if kind else node.arg
    return f"{node.arg}: {kind} = {source.value(default)}" if kind else f"{node.arg}={source.value(default)}"


def docstring(node: ast.ClassDef | _Function) -> Iterator[str]:
    """Yield the docstring of a definition, if it has one."""
    text = ast.get_docstring(node)
    if text:
        yield text


def code(text: str) -> str:
    """Return a block of code that is not run as a test."""
    return f"```py\n{text}\n```"


def names_on(node: _Function) -> set[str]:
    """Return the names of the decorators of a function."""
    return {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}


def is_property(node: _Function) -> bool:
    """Return whether a function is read like an attribute."""
    return bool(names_on(node) & {"property", "cached_property"})


def resolve(name: str) -> Any:
    """Return a module, class or function by its dotted name. Attributes come first: `holdfast.workflow` is the
    decorator, although there is a package of that name."""
    first, *rest = name.split(".")
    found: Any = importlib.import_module(first)
    path = first
    for each in rest:
        path = f"{path}.{each}"
        if isinstance(found, ModuleType):
            found = getattr(found, each, None) or importlib.import_module(path)
            continue
        try:
            found = inspect.getattr_static(found, each)
        except AttributeError:
            found = importlib.import_module(path)
        found = getattr(found, "__func__", found)
        found = found.fget if isinstance(found, property) else found
    return found


def source_of(module: str) -> Source:
    """Return the parsed source of a module."""
    found = importlib.import_module(module)
    path = inspect.getsourcefile(found)
    assert path is not None, module
    text = Path(path).read_text()
    return Source(text.splitlines(), ast.parse(text), vars(found))


def main(arguments: list[str]) -> int:
    """Write or check all pages and return the exit code."""
    stale = []
    for path in sorted(PAGES.rglob("*.md")):
        text = path.read_text()
        new = written(text)
        if new != text:
            stale.append(str(path.relative_to(PAGES.parent)))
            if "--check" not in arguments:
                path.write_text(new)
    if stale and "--check" in arguments:
        print(f"not current: {', '.join(stale)}; run: make reference", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
