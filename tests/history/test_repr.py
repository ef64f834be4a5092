"""How versions and runs show themselves: nothing that is recorded steers a terminal."""

from __future__ import annotations

import holdfast

EVIL = "a\x1b[2Jb\r\u202ec\x9b"


def test_repr_escapes_control_characters() -> None:
    @holdfast.workflow(name="repr_quiet")
    def quiet() -> None: ...

    with holdfast.open(":memory:") as hf:
        version = hf.history("log").commit({EVIL: 1}, step=EVIL)
        run = hf.run(quiet, run_id="quiet", tags=["t"])
        shown = [repr(each) for each in (version, run, hf.get("log").summary, hf.history("log").versions())]
    for text in shown:
        assert text.isprintable(), text
    assert shown[0] == "<Version log@1 a\\e[2Jb\\r\\u202ec\\u009b>"
