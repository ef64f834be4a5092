"""Objects that were folded before: not encoded again while they are what they were, else as they are now."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, PrivateAttr

import holdfast
from holdfast.tree import codec
from holdfast.tree import fold as folding
from holdfast.tree.codec import open_box
from holdfast.tree.fold import Folder
from holdfast.tree.recall import Recall


class Part(BaseModel):
    name: str = "p"
    tags: list[Any] = []


class Model(BaseModel, extra="allow"):
    text: str = "t"
    number: Any = 1
    part: Part = Part()
    table: dict[str, Any] = {}
    ordered: Any = None
    _hidden: list[int] = PrivateAttr(default_factory=list)


@dataclass
class Record:
    text: str = "t"
    items: list[Any] = field(default_factory=list)
    queue: Any = None


@dataclass(slots=True)
class Slim:
    text: str = "t"
    items: list[Any] = field(default_factory=list)


class Odd:
    def __init__(self, n: int) -> None:
        self.n = n


_outside = {"n": 1}
for cls in (Part, Model, Record, Slim):
    holdfast.register(cls)
holdfast.register(Odd, split=lambda odd: [odd.n, _outside["n"]], join=lambda parts: Odd(parts[0]))


def twice(value: Any, change: Callable[[Any], Any]) -> Any:
    """What is stored of an object that is changed after it was stored once: by itself, or in a list of many."""
    recall = Recall()
    others = [Record(text=str(n)) for n in range(20)]
    state = {"x": value, "many": [*others, value, *others]}
    before = Folder(None, None, recall).fold(state)
    assert Folder(None, None, recall).fold(dict(state), before)["many"] is before["many"]
    change(value)
    recall.turn()
    after = Folder(None, None, recall).fold(state, before)
    assert after["many"][20].data == after["x"].data == Folder(None).fold(value).data
    return open_box(after["x"])


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "text", "other"),
        lambda m: setattr(m, "number", 1.0),
        lambda m: setattr(m, "number", True),
        lambda m: m.table.update(k=1),
        lambda m: m.table.update(deep={"x": [1]}),
        lambda m: m.part.tags.append(1),
        lambda m: setattr(m.part, "name", "q"),
        lambda m: setattr(m, "part", Part(name="new")),
        lambda m: setattr(m, "more", 5),
        lambda m: m._hidden.append(1),
        lambda m: setattr(m, "_hidden", [2]),
        lambda m: m.model_fields_set.add("number"),
        lambda m: object.__setattr__(m, "__dict__", {**m.__dict__, "text": "swapped"}),
        lambda m: setattr(m, "ordered", OrderedDict(b=1, a=2)),
    ],
)
def test_a_model_that_was_changed_is_stored_as_it_is(change: Callable[[Any], Any]) -> None:
    model = Model(text="one", part=Part(tags=[0]))
    back = twice(model, change)
    assert back == model
    assert back.__dict__ == model.__dict__
    assert type(back.number) is type(model.number)
    assert back.__pydantic_private__ == model.__pydantic_private__
    assert back.model_fields_set == model.model_fields_set


@pytest.mark.parametrize(
    "change",
    [
        lambda r: setattr(r, "text", "other"),
        lambda r: r.items.append(1),
        lambda r: r.items[0].append(1),
        lambda r: r.items[1].add("z"),
        lambda r: r.items[2].appendleft(0),
        lambda r: r.items[3].move_to_end("a"),
        lambda r: r.items[4][0].append(9),
        lambda r: r.items[5].update(k=1),
        lambda r: setattr(r, "items", []),
    ],
)
@pytest.mark.parametrize("made", [Record, Slim])
def test_a_record_that_was_changed_is_stored_as_it_is(made: Any, change: Callable[[Any], Any]) -> None:
    record = made(items=[[0], {"x", "y"}, deque([1], maxlen=3), OrderedDict(a=1, b=2), ([7],), {}])
    back = twice(record, change)
    assert back == record
    assert repr(back.items) == repr(record.items) or set(map(type, back.items)) == set(
        map(type, record.items)
    )


def test_an_order_that_was_changed_is_stored() -> None:
    record = Record(items=[OrderedDict(a=1, b=2)])
    assert list(twice(record, lambda r: r.items[0].move_to_end("a")).items[0]) == ["b", "a"]


def test_what_is_not_changed_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    recall = Recall()
    models = [Model(text=str(n)) for n in range(20)]
    first = Folder(None, None, recall).fold(models)
    encoded: list[Any] = []
    real = codec.leaf_ext

    def counted(value: Any, *args: Any, **more: Any) -> Any:
        encoded.append(value)
        return real(value, *args, **more)

    monkeypatch.setattr(folding, "leaf_ext", counted)
    models[7].text = "changed"
    models.append(Model(text="new"))
    again = Folder(None, None, recall).fold(models, first)
    assert encoded == [models[7], models[20]]
    assert [open_box(box).text for box in again] == [model.text for model in models]


def test_objects_that_stand_elsewhere_too_are_recalled_together() -> None:
    recall = Recall()
    models = [Model(text=str(n)) for n in range(20)]
    base = Folder(None, None, recall).fold({"list": models})
    again = Folder(None, None, recall).fold({"list": models, "deep": [[[models[3]]]]}, base)
    assert again["list"] is base["list"]
    assert recall.are(models, base["list"], 2)
    assert again["deep"][0][0][0] is base["list"][3]


def test_types_that_look_elsewhere_are_never_recalled() -> None:
    recall = Recall()
    odd = Odd(1)
    before = Folder(None, None, recall).fold([odd])[0].data
    _outside["n"] = 2
    assert Folder(None, None, recall).fold([odd])[0].data != before


def test_what_the_last_states_did_not_hold_is_let_go() -> None:
    recall = Recall()
    for _ in range(20):
        recall.turn()
        Folder(None, None, recall).fold([Record(text=str(n)) for n in range(300)])
    assert len(recall._new) + len(recall._old) <= 1200


def test_a_list_of_dicts_is_compared_exactly() -> None:
    base = Folder(None).fold([{"role": "user", "n": n, "x": None} for n in range(20)])
    plain = [{"role": item["role"], "n": item["n"], "x": None} for item in base]
    fold = Folder(None).fold
    assert fold(list(plain), base) is base
    grown = fold([*plain, {"role": "new"}], base)
    assert list(grown[:20]) == list(base)
    assert all(one is other for one, other in zip(grown, base, strict=False))
    for change in ({"n": 3.0}, {"n": 4}, {"y": 1}, {"role": "other"}):
        other = [dict(item) for item in plain]
        other[3].update(change)
        folded = fold(other, base)
        assert folded == other
        assert type(folded[3]["n"]) is type(other[3]["n"])
    turned = [dict(item) for item in plain]
    turned[5] = dict(reversed(turned[5].items()))
    assert list(fold(turned, base)[5]) == ["x", "n", "role"]
    assert fold(plain[:19], base) == plain[:19]
