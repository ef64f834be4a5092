"""The stored bytes of a run's detail."""

from __future__ import annotations

import pytest

from holdfast.errors import CorruptStore
from holdfast.model.records import RunRecord
from holdfast.model.run_detail import (
    PendingRollback,
    RunDetail,
    RunLimits,
    Signal,
    SpentBefore,
    StalledQuestion,
    Used,
    Wait,
    detail_of,
    encode_detail,
)
from holdfast.model.watchdog import RunWatchdog, Watchdog
from holdfast.tree.codec import decode, encode

#: A detail with every field, as the first release with this format wrote it.
STORED = bytes.fromhex(
    "de001da57761697473928ca761646472657373a361736ba46b696e64a670726f6d7074a46e616d65a572756e2331a3647565"
    "09a66f70656e656403a87175657374696f6ea74465706c6f793fa6736368656d6181a474797065a7626f6f6c65616ea66669"
    "6c6c6564c3a576616c7565c0a56163746f72a3416461a463616c6c920102a4686561640485a761646472657373a174a46b69"
    "6e64a474696d65a364756507a576616c7565c0a469646c65c3a46d61696c9286a46e616d65a2676fa576616c756581a16e01"
    "a46865616402a66e756d62657201a874696d656c696e6502a56163746f72a3426f6285a46e616d65a3626967a576616c7565"
    "c0a66e756d62657202a874696d656c696e6501a56170617274c3a56572726f72c4067061636b6564a66661696c65649103ab"
    "6661696c65645f73746570a4706c616ea77265747269656481a4706c616e02a4636f6465a3616263a96f7665727269646573"
    "81a4706c616ea56d2e662078a477697368a57061757365a6726561736f6ea3776879a56163746f72a3416461a7756e646f69"
    "6e6787a2746f02a6726561736f6ea172a56163746f72c0a47468656ea6717565756564a364756501a773796d70746f6da673"
    "696c656e74a8726573746f72657301a6756e646f6e659101a6746f74616c7381a4636f7374cb3ff8000000000000a4757365"
    "6482a4636f7374cb3ff8000000000000a6746f6b656e7300a66c696d69747383a4636f7374cb4004000000000000a5737465"
    "707303a36f776e91a57374657073a964697363617264656402a676616c75657381a36e6f7705a561736b656402a473656e74"
    "02a663616c6c6564c3a57175657565a171a5776174636883a673696c656e74cb4014000000000000ac6d61785f726573746f"
    "72657301a36f776ec3a566656e636503a8726573746f72657301a464656164a16fa6776f726b65640ba57370656e7485a46c"
    "61737404a4636f7374cb3ff0000000000000a6746f6b656e7300a5737465707302a77365636f6e6473cb3fe0000000000000"
    "a670726f6d707489a26964a572756e2332a66f70656e656405a773796d70746f6da673696c656e74a3776879a76e6f20776f"
    "7264a573696e636504a761646472657373a4706c616ea7617474656d707402a4676f6f6403a8726573746f72657300"
)
#: Parts of a detail as earlier versions wrote them: other orders, fewer fields, an unknown watchdog.
STORED_EARLIER = bytes.fromhex(
    "85a7756e646f696e6787a2746f01a47468656ea6717565756564a46b65657091a161a26f6604a3647565c0a6726561736f6e"
    "a172a56163746f72a3416461a57370656e7484a46c61737404a6746f74616c7381a6746f6b656e7307a5737465707302a677"
    "6f726b6564ce0016e360a66c696d69747381a4636f7374cb4004000000000000a47573656481a4636f737401a57761746368"
    "82a673696c656e74a761207768696c65a36f776ec3"
)

DETAIL = RunDetail(
    waits=[
        Wait(
            address="ask", kind="prompt", name="run#1", due=9, opened=3, question="Deploy?",
            schema={"type": "boolean"}, filled=True, value=None, actor="Ada", call=[1, 2], head=4,
        ),
        Wait(address="t", kind="time", due=7, idle=True),
    ],
    signals=[
        Signal(name="go", value={"n": 1}, head=2, number=1, timeline=2, actor="Bob"),
        Signal(name="big", number=2, apart=True),
    ],
    error=b"packed",
    failed=[3],
    failed_step="plan",
    retried={"plan": 2},
    code="abc",
    overrides={"plan": "m.f x"},
    stop_request="pause",
    reason="why",
    actor="Ada",
    rollback=PendingRollback(to=2, reason="r", then="queued", due=1, symptom="silent", restores=1),
    compensated=[1],
    totals={"cost": 1.5},
    used=Used(1.5, 0),
    limits=RunLimits(cost=2.5, steps=3, own=["steps"]),
    discarded=2,
    values={"now": 5},
    asked=2,
    sent=2,
    called=True,
    queue="q",
    watchdog=RunWatchdog.of(Watchdog(heartbeat_timeout=5.0, max_recoveries=1), None),
    fence=3,
    restores=1,
    dead="o",
    worked=11,
    spent_before=SpentBefore(last=4, cost=1.0, tokens=0, steps=2, seconds=0.5),
    question=StalledQuestion(
        id="run#2", opened=5, symptom="silent", why="no word", since=4, address="plan", attempt=2, good=3
    ),
)  # fmt: skip


def test_run_detail_is_stored_as_before() -> None:
    assert encode_detail(DETAIL) == STORED


def test_run_detail_reads_what_was_stored() -> None:
    assert detail_of(RunRecord(id="run", created=0, updated=0, detail=STORED)) == DETAIL


def test_run_detail_reads_parts_that_earlier_versions_wrote() -> None:
    detail = detail_of(RunRecord(id="run", created=0, updated=0, detail=STORED_EARLIER))
    assert detail == RunDetail(
        rollback=PendingRollback(to=1, reason="r", actor="Ada", then="queued", keep=["a"], of=4),
        spent_before=SpentBefore(last=4, totals={"tokens": 7}, steps=2, worked=1_500_000),
        limits=RunLimits(cost=2.5),
        used=Used(1),
        watchdog=RunWatchdog(None, own=True, stored={"silent": "a while", "own": True}),
    )
    assert decode(encode_detail(detail))["watch"] == {"silent": "a while", "own": True}


def test_run_detail_without_content_is_empty() -> None:
    assert encode_detail(RunDetail()) == b""


def test_run_detail_reads_kept_paths_that_are_segments() -> None:
    stored = encode({"undoing": {"to": 1, "keep": ["a", ("b", 0), ["c"]], "of": 4}})
    rollback = detail_of(RunRecord(id="run", created=0, updated=0, detail=stored)).rollback
    assert rollback == PendingRollback(to=1, keep=["a", ["b", 0], ["c"]], of=4)


def test_run_detail_has_built_in_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    number = numpy.float64(1.5)
    stored = {
        "totals": {"cost": number}, "used": {"cost": number, "tokens": 2}, "limits": {"cost": number},
        "spent": {"last": 1, "cost": number, "totals": {"cost": number}},
    }  # fmt: skip
    detail = detail_of(RunRecord(id="run", created=0, updated=0, detail=encode(stored)))
    assert detail.totals == {"cost": 1.5}
    detail.used, detail.limits = Used(number, 2), RunLimits(cost=number)
    detail.watchdog = RunWatchdog.of(Watchdog(max_cost=number), None)
    again = decode(encode_detail(detail))
    assert again["watch"]["max_cost"] == again["used"]["cost"] == again["limits"]["cost"] == 1.5
    for each in (again["totals"], again["used"], again["limits"], again["spent"]["totals"], again["watch"]):
        assert all(type(value) is not numpy.float64 for value in each.values())


@pytest.mark.parametrize("damaged", [1, [1], "text", None, {"watch": [1]}, {"watch": "text"}, {"waits": 1}])
def test_run_detail_that_cannot_be_read_is_reported_as_damage(damaged: object) -> None:
    with pytest.raises(CorruptStore, match="'run'"):
        detail_of(RunRecord(id="run", created=0, updated=0, detail=encode(damaged)))
