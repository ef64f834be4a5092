"""Check the language of the project: names, docstrings, comments, messages, documentation and page labels.

    python .ci/check_words.py [PATH …]

Prints each word that the project does not use, with what to write instead, and exits with 1 if there is one.

Invariant: text inside code blocks of documentation is code, and is checked where that code is defined.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: What is checked if no path is given.
CHECKED = ("src/holdfast", "docs", "README.md", "CONTRIBUTING.md", "SECURITY.md", "examples", "page/src")
#: Words that a line may hold although they are listed, with the reason after it: `# words: tell is a method of files`.
EXCUSE = "words:"

#: Phrases that are ruled out in prose (a pattern), and what to write instead.
PROSE = {
    r"whoever|somebody|nobody|anybody": "name the subject: a process, a caller, another writer",
    r"told|tells?|telling": "say, report, return, show",
    r"(?:stands?|stood) (?!for\b)|standing": "is, is stored",
    r"beside": "next to, along with, during",
    r"(?:go|goes|going|gone|went) on(?: with| from)?(?! to\b)": "continue, resume, happen",
    r"(?:giv(?:e|es|en|ing)|gave) (?:it |them )?up": "stop, abandon, cancel, time out",
    r"let(?:s|ting)? go(?: of)?": "release, free",
    r"begun": "started",
    r"afresh|anew": "again",
    r"befalls?|luck\b": "use the technical term",
    r"(?<!there )(?:is|are) no (?!longer|more|less|other|need|way|such|one)[a-z]+": "is not a",
    r"ways? in\b(?! which| that)": "integration",
    r"kept by hand|history by hand|histories by hand": "manual run",
    r"frozen (?:run|agent)s?|runs? (?:that )?(?:is|are|was|were) frozen": "stalled",
    r"the (?:mail|letters?) (?:of|for)": "signals",
    r"for want of": "because there is no",
    r"in the meantime of|to and fro": "back and forth",
}
#: Words that a docstring does not start with, and what to write instead.
STARTS = {"What": "a noun phrase, or Return …", "That": "a noun phrase"}
#: Words that no class, function, method, parameter or module is named with, and what to use instead.
NAMES = {
    "told": "reported, recorded",
    "tell": "report, notify",
    "telling": "report",
    "whoever": "owner",
    "somebody": "owner",
    "nobody": "none",
    "beside": "next, attached",
    "begun": "started",
    "afresh": "again",
    "mail": "signals",
    "letter": "signal",
    "pulse": "heartbeat",
    "pulses": "heartbeats",
    "desk": "operator_view",
    "prompts": "questions",
    "strand": "thread",
    "hush": "secret",
    "luck": "random",
    "wish": "request",
    "stands": "status, is",
    "whosoever": "owner",
}


def main(paths: list[str]) -> int:
    """Check files and return the exit code."""
    found = 0
    for path in _files([ROOT / each for each in CHECKED] if not paths else [Path(each) for each in paths]):
        for line, text, advice in check(path):
            shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
            print(f"{shown}:{line}: {text!r}: write instead: {advice}")
            found += 1
    if found:
        print(f"{found} places to rewrite", file=sys.stderr)
    return 1 if found else 0


def check(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the words and the advice of each finding in a file."""
    text = path.read_text()
    lines = text.splitlines()
    if path.suffix == ".py":
        places = [*_python_prose(text)]
        tree = ast.parse(text)
        yield from _names(tree, path.stem)
        yield from _docstring_starts(tree)
    elif path.suffix == ".md":
        places = [*_markdown_prose(lines)]
    else:
        places = list(enumerate(lines, 1))
    for line, prose in places:
        if line <= len(lines) and EXCUSE in lines[line - 1]:
            continue
        for pattern, advice in PROSE.items():
            for match in re.finditer(rf"\b(?:{pattern})\b", prose, re.IGNORECASE):
                yield line + prose.count("\n", 0, match.start()), match.group(), advice


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_file():
            yield path
        for found in sorted(path.rglob("*")):
            if found.suffix in (".py", ".md", ".ts", ".tsx", ".sql") and "node_modules" not in found.parts:
                yield found


def _python_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield comments and strings, docstrings included, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            yield token.start[0], token.string


def _markdown_prose(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines outside code blocks, without code spans and comments."""
    in_code = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, re.sub(r"`[^`]*`|<!--.*?-->", "", line)


def _docstring_starts(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield the docstrings that start with a word of `STARTS`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            first = docstring.split(maxsplit=1)[:1]
            if first and first[0] in STARTS:
                yield node.body[0].lineno, docstring.splitlines()[0], STARTS[first[0]]


def _names(tree: ast.AST, module: str) -> Iterator[tuple[int, str, str]]:
    """Yield the defined names that hold a word of `NAMES`."""
    defined = [(1, module)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            defined.append((node.lineno, node.name))
        elif isinstance(node, ast.arg):
            defined.append((node.lineno, node.arg))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.append((node.lineno, node.id))
    for line, name in defined:
        words = re.findall(r"[a-z]+|[A-Z][a-z]*", name)
        yield from ((line, name, NAMES[word.lower()]) for word in words if word.lower() in NAMES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
