"""`holdfast doctor`"""

from __future__ import annotations

import msgspec

from holdfast.checkup import Finding, checkup
from holdfast.cli import exits
from holdfast.cli.call import Call, command
from holdfast.cli.settings import find_app, load_app
from holdfast.desk.words import plain
from holdfast.errors import InvalidCall


@command("doctor")
def doctor_command(call: Call) -> int:
    """Look for what could become a problem: interrupted runs, space, questions that wait, the linked SQLite.

    Exits with 1 if there is something to be done. `holdfast verify` checks the data itself.
    """
    found = [
        Finding("store", True, f"{call.place.shown}, named by {call.place.source}"),
        *checkup(call.hf, call.place.where),
        _app(call),
    ]
    out = call.out
    if out.json:
        out.document([msgspec.structs.asdict(each) for each in found])
    for each in () if out.json else found:
        line = out.styled("✓ " if each.ok else "! ", "green" if each.ok else "yellow")
        line.append(f"{each.check:11} ", "bold").append(plain(each.what))
        if each.advice:
            line.append(f"\n  {'':11} → {plain(each.advice)}", "cyan")
        if out.for_people:
            out.text(line)
        else:
            out.fields(("ok" if each.ok else "look", each.check, each.what, each.advice))
    return exits.DONE if all(each.ok for each in found) else exits.FINDINGS


def _app(call: Call) -> Finding:
    name = find_app(call.app)
    if name is None:
        return Finding("app", True, "none is named", "resume and rollback need --app, or [tool.holdfast] app")
    try:
        engine = load_app(name)
    except InvalidCall as error:
        return Finding("app", False, str(error), "mend the module, or name another")
    if engine is not None:
        engine.close()
    return Finding("app", True, f"{name} can be imported")
