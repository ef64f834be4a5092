"""The runs of a project, named by its id, which may contain any character.

Run ids are `loop/NAME`, `loop/NAME/control`, `loop/NAME/beats`. In NAME, letters and digits of the project id stay as
they are, characters special in a run id are escaped as in `%2F`, and a name that would be too long ends in a hash.

Invariant: two project ids never share a run, and a project id maps to the same runs in every process and Python
version.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from unicodedata import ucd_3_2_0
from urllib.parse import unquote_to_bytes

from holdfast.errors import InvalidReference
from holdfast.execution.loops import BEATS, CONTROL, PREFIX, is_control_run

#: Maximum characters of a name, such that prefix, name and suffix fit into a run id.
_MAX_RUN_NAME = 180
#: Maximum characters of a project id.
_MAX_PROJECT_ID = 10_000
#: Before the hash in a shortened name. A quoted text never contains it.
_HASHED = "%-"


def check_project(project_id: Any) -> str:
    """Return a project id, or raise `InvalidReference`."""
    if not isinstance(project_id, str):
        raise InvalidReference(f"a project id is a string, not {type(project_id).__name__}")
    # For a subclass of str, the text itself, regardless of overridden methods.
    text: str = str.__str__(project_id)
    if not text:
        raise InvalidReference("a project id is not empty")
    if len(text) > _MAX_PROJECT_ID:
        raise InvalidReference(f"a project id has at most {_MAX_PROJECT_ID} characters, not {len(text)}")
    return text


def quoted(project_id: str) -> str:
    """Return a project id quoted in characters that are valid in a run id."""
    text = "".join(map(_quoted_character, project_id))
    return text.replace(".", "%2E") if text in (".", "..") else text


def _quoted_character(character: str) -> str:
    # Uses an old Unicode database, which is the same in every Python version.
    if character in "-_." or ucd_3_2_0.category(character)[0] in "LN":
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogatepass"))


def unquoted(text: str) -> str:
    """Return the project id of a quoted text."""
    return unquote_to_bytes(text.encode()).decode(errors="surrogatepass")


def name_of(project_id: str) -> str:
    """Return the name of a project within the ids of its runs."""
    text = quoted(project_id)
    if len(text) <= _MAX_RUN_NAME:
        return text
    return f"{text[:100]}{_HASHED}{sha256(text.encode()).hexdigest()[:40]}"


def id_in(name: str) -> str | None:
    """Return the project id in a name; None if the name is shortened."""
    return None if _HASHED in name else unquoted(name)


def state_run(name: str) -> str:
    """Return the id of the run with a project's state."""
    return PREFIX + name


def control_run(name: str) -> str:
    """Return the id of the run with a project's control record."""
    return PREFIX + name + CONTROL


def heartbeat_run(name: str) -> str:
    """Return the id of the run with the heartbeats of a project's agents."""
    return PREFIX + name + BEATS


def name_in(run_id: str) -> str | None:
    """Return the name in the id of a control run; None for another run."""
    name = run_id[len(PREFIX) : -len(CONTROL)] if is_control_run(run_id) else ""
    return name if _is_name(name) else None


def name_in_state_run(run_id: str) -> str | None:
    """Return the name in the id of a run with a project's state; None for another run."""
    name = run_id.removeprefix(PREFIX)
    return name if name != run_id and _is_name(name) else None


def _is_name(text: str) -> bool:
    """Return whether a text is the name of a project; a run that a program named itself may have another."""
    if not text or "/" in text:
        return False
    try:
        return _HASHED in text or quoted(unquoted(text)) == text
    except UnicodeDecodeError:
        return False
