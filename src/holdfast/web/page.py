"""The files of the page, read at the start; without them, a text that says how to install them.

Invariant: only files that were found at the start are served, by the names under which they were found.
"""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

#: Output folder of the build hook and `make page`.
FOLDER = Path(__file__).parent / "page"
REMEDY = (
    "install Node.js 20 or newer, then run `pip install --force-reinstall --no-deps .` in a checkout of Holdfast "
    "(`make page` for an editable install)"
)
MISSING = (
    "This installation of Holdfast does not include the web page; the API and the command line work.\n\n"
    f"To get the page: {REMEDY}.\n"
)
_INDEX = "index.html"
#: For names with a hash: the content never changes.
_FOREVER = "public, max-age=31536000, immutable"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}


class _File(NamedTuple):
    content: bytes
    media_type: str
    forever: bool


class PageFiles:
    """Files of the page."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {
            "/" + path.relative_to(folder).as_posix(): _read(path, folder)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    @property
    def is_built(self) -> bool:
        """Return whether the page was built."""
        return f"/{_INDEX}" in self._files

    def __call__(self, request: Request) -> Response:
        """Return the file that a request names."""
        path = request.scope["path"]
        file = self._files.get(f"/{_INDEX}" if path == "/" else path)
        if file is None:
            if path == "/":
                return PlainTextResponse(MISSING)
            return PlainTextResponse("Not found.\n", status_code=404)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("Method not allowed.\n", status_code=405, headers={"allow": "GET, HEAD"})
        headers = {"cache-control": _FOREVER if file.forever else "no-cache"}
        return Response(file.content, media_type=file.media_type, headers=headers)


def _read(path: Path, folder: Path) -> _File:
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return _File(path.read_bytes(), kind, path.parent != folder)
