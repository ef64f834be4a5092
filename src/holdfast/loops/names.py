"""Any project id as the ids of its runs: `loop/NAME`, `loop/NAME/control`, `loop/NAME/beats`.

Letters and digits stay as they are, whatever could mean something to a run id is written as `%2F`, and what would be
too long ends in a hash.

Invariant: two project ids never share a run, and a project id names the same runs in every process and with every
version of Python.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from unicodedata import ucd_3_2_0
from urllib.parse import unquote_to_bytes

from holdfast.errors import InvalidReference

_PREFIX = "loop/"
_CONTROL = "/control"
_BEATS = "/beats"
#: Characters of a name: prefix, name and suffix are not longer than a run id may be.
_LONGEST = 180
#: Characters of a project id; beyond this it is no id.
_MOST = 10_000
_KEPT = frozenset("-_.")


def check_project(project_id: Any) -> str:
    """A project id, or `InvalidReference`."""
    if not isinstance(project_id, str):
        raise InvalidReference(f"a project id is a string, not {type(project_id).__name__}")
    # Of a subclass, the text itself, whatever its methods say.
    text: str = str.__str__(project_id)
    if not text:
        raise InvalidReference("a project id is not empty")
    if len(text) > _MOST:
        raise InvalidReference(f"a project id has at most {_MOST} characters, not {len(text)}")
    return text


def quoted(project_id: str) -> str:
    """A project id in characters that any run id may hold."""
    text = "".join(sign if _is_plain(sign) else _escaped(sign) for sign in project_id)
    return text.replace(".", "%2E") if text in (".", "..") else text


def unquoted(text: str) -> str:
    """The project id that was quoted."""
    return unquote_to_bytes(text.encode()).decode(errors="surrogatepass")


def name_of(project_id: str) -> str:
    """The name of a project within the ids of its runs."""
    text = quoted(project_id)
    if len(text) <= _LONGEST:
        return text
    # No quoted text holds a "%-".
    return f"{text[:100]}%-{sha256(text.encode()).hexdigest()[:40]}"


def state_run(name: str) -> str:
    """The run of a project's state."""
    return _PREFIX + name


def control_run(name: str) -> str:
    """The run of what a restore does not touch."""
    return _PREFIX + name + _CONTROL


def beats_run(name: str) -> str:
    """The run of signs of life."""
    return _PREFIX + name + _BEATS


def name_in(run_id: str) -> str | None:
    """The name in the id of a control run; None if it is none."""
    if not run_id.startswith(_PREFIX) or not run_id.endswith(_CONTROL):
        return None
    name = run_id[len(_PREFIX) : -len(_CONTROL)]
    return name if name and "/" not in name else None


def state_name(run_id: str) -> str | None:
    """The name in the id of a state's run, if the project id can be told from it."""
    name = run_id.removeprefix(_PREFIX)
    return None if name == run_id or not name or "/" in name or "%-" in name else name


def _is_plain(sign: str) -> bool:
    # Of an old Unicode, which every Python knows alike.
    return sign in _KEPT or ucd_3_2_0.category(sign)[0] in "LN"


def _escaped(sign: str) -> str:
    return "".join(f"%{byte:02X}" for byte in sign.encode(errors="surrogatepass"))
