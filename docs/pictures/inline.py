"""For the pages: a picture of ours is set into the page itself, so that it takes the page's colours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_PICTURE = re.compile(r'<img [^>]*src="(?:[^"]*/)?pictures/([a-z]+)\.svg"[^>]*>')
_HERE = Path(__file__).parent


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return _PICTURE.sub(lambda match: (_HERE / f"{match[1]}.svg").read_text(), html)
