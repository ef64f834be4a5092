"""The stored bytes of a run's detail."""

from __future__ import annotations

from holdfast.model.records import RunRecord
from holdfast.model.run_detail import RunDetail, Signal, StalledQuestion, Wait, detail_of, encode_detail

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
    "6e6785a2746f02a6726561736f6ea172a56163746f72c0a47468656ea6717565756564a364756501a6756e646f6e659101a6"
    "746f74616c7381a4636f7374cb3ff8000000000000a47573656482a4636f7374cb3ff8000000000000a6746f6b656e7300a6"
    "6c696d69747381a8776f726b666c6f7781a5737465707303a964697363617264656402a676616c75657381a36e6f7705a561"
    "736b656402a473656e7402a663616c6c6564c3a57175657565a171a5776174636881a8776f726b666c6f7781a673696c656e"
    "74cb4014000000000000a566656e636503a8726573746f72657301a464656164a16fa6776f726b65640ba57370656e7482a4"
    "6c61737404a4636f7374cb3ff0000000000000a670726f6d707489a26964a572756e2332a66f70656e656405a773796d7074"
    "6f6da673696c656e74a3776879a76e6f20776f7264a573696e636504a761646472657373a4706c616ea7617474656d707402"
    "a4676f6f6403a8726573746f72657300"
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
    wish="pause",
    reason="why",
    actor="Ada",
    undoing={"to": 2, "reason": "r", "actor": None, "then": "queued", "due": 1},
    undone=[1],
    totals={"cost": 1.5},
    used={"cost": 1.5, "tokens": 0},
    limits={"workflow": {"steps": 3}},
    discarded=2,
    values={"now": 5},
    asked=2,
    sent=2,
    called=True,
    queue="q",
    watchdog={"workflow": {"silent": 5.0}},
    fence=3,
    restores=1,
    dead="o",
    worked=11,
    spent={"last": 4, "cost": 1.0},
    question=StalledQuestion(
        id="run#2", opened=5, symptom="silent", why="no word", since=4, address="plan", attempt=2, good=3
    ),
)  # fmt: skip


def test_run_detail_is_stored_as_before() -> None:
    assert encode_detail(DETAIL) == STORED


def test_run_detail_reads_what_was_stored() -> None:
    assert detail_of(RunRecord(id="run", created=0, updated=0, detail=STORED)) == DETAIL


def test_run_detail_without_content_is_empty() -> None:
    assert encode_detail(RunDetail()) == b""
