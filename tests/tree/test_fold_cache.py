"""FoldCache: unchanged objects are not encoded again; changed ones are stored."""

from __future__ import annotations

import threading
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
from holdfast.tree.fold_cache import FoldCache


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
    cache = FoldCache()
    others = [Record(text=str(n)) for n in range(20)]
    state = {"x": value, "many": [*others, value, *others]}
    before = Folder(None, None, cache).fold(state)
    assert Folder(None, None, cache).fold(dict(state), before)["many"] is before["many"]
    change(value)
    cache.expire()
    after = Folder(None, None, cache).fold(state, before)
    assert after["many"][20].data == after["x"].data == Folder(None).fold(value).data
    return open_box(after["x"])


def test_changed_model_is_stored(subtests: pytest.Subtests) -> None:
    cases: list[Callable[[Any], Any]] = [
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
    ]
    for number, change in enumerate(cases):
        with subtests.test(number=number):
            model = Model(text="one", part=Part(tags=[0]))
            back = twice(model, change)
            assert back == model
            assert back.__dict__ == model.__dict__
            assert type(back.number) is type(model.number)
            assert back.__pydantic_private__ == model.__pydantic_private__
            assert back.model_fields_set == model.model_fields_set


def test_changed_record_is_stored(subtests: pytest.Subtests) -> None:
    cases: list[Callable[[Any], Any]] = [
        lambda r: setattr(r, "text", "other"),
        lambda r: r.items.append(1),
        lambda r: r.items[0].append(1),
        lambda r: r.items[1].add("z"),
        lambda r: r.items[2].appendleft(0),
        lambda r: r.items[3].move_to_end("a"),
        lambda r: r.items[4][0].append(9),
        lambda r: r.items[5].update(k=1),
        lambda r: setattr(r, "items", []),
    ]
    for made in [Record, Slim]:
        for number, change in enumerate(cases):
            with subtests.test(made=made, number=number):
                record = made(
                    items=[[0], {"x", "y"}, deque([1], maxlen=3), OrderedDict(a=1, b=2), ([7],), {}]
                )
                back = twice(record, change)
                assert back == record
                assert repr(back.items) == repr(record.items) or set(map(type, back.items)) == set(
                    map(type, record.items)
                )


class Open(BaseModel, extra="allow"):
    text: str = "t"
    last: Any = None


@dataclass
class Other:
    text: str = "t"
    items: list[Any] = field(default_factory=list)
    queue: Any = None


holdfast.register(Open)
holdfast.register(Other)


def test_changes_behind_the_back_of_a_model_are_stored(subtests: pytest.Subtests) -> None:
    def rename(model: Any) -> None:
        model.__dict__["more"] = model.__dict__.pop("last")

    def assign(model: Any) -> None:
        model.model_fields_set.discard("text")
        model.model_fields_set.add("last")

    changes: dict[str, Callable[[Any], Any]] = {
        "extra replaced": lambda model: setattr(model, "__pydantic_extra__", {"b": 2}),
        "assigned fields": assign,
        "assigned fields replaced": lambda model: setattr(model, "__pydantic_fields_set__", {"last"}),
        "field renamed": rename,
    }
    for name, change in changes.items():
        with subtests.test(name):
            model = Open(text="x", a=1)  # type: ignore[call-arg]
            cache = FoldCache()
            Folder(None, None, cache).fold([model], None)
            change(model)
            found = Folder(None, None, cache).fold([model], None)[0]
            assert (found.code, found.data) == (codec.leaf_ext(model).code, codec.leaf_ext(model).data)


def test_object_of_another_class_is_stored() -> None:
    record: Any = Record("x")
    cache = FoldCache()
    Folder(None, None, cache).fold([record], None)
    record.__class__ = Other
    assert type(open_box(Folder(None, None, cache).fold([record], None)[0])) is Other


def test_object_that_lost_a_field_is_refused(subtests: pytest.Subtests) -> None:
    for make in (Record, Slim):
        for is_cached in (False, True):
            with subtests.test(f"{make.__name__}, {is_cached}"):
                record: Any = make("x")
                cache = FoldCache()
                if is_cached:
                    Folder(None, None, cache).fold([record], None)
                del record.items
                with pytest.raises(holdfast.UnsupportedValue, match="items"):
                    Folder(None, None, cache).fold([record], None)


def test_changed_order_is_stored() -> None:
    record = Record(items=[OrderedDict(a=1, b=2)])
    assert list(twice(record, lambda r: r.items[0].move_to_end("a")).items[0]) == ["b", "a"]


def test_unchanged_object_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FoldCache()
    models = [Model(text=str(n)) for n in range(20)]
    first = Folder(None, None, cache).fold(models)
    encoded: list[Any] = []
    real = codec.leaf_ext

    def counted(value: Any, *args: Any, **more: Any) -> Any:
        encoded.append(value)
        return real(value, *args, **more)

    monkeypatch.setattr(folding, "leaf_ext", counted)
    models[7].text = "changed"
    models.append(Model(text="new"))
    again = Folder(None, None, cache).fold(models, first)
    assert encoded == [models[7], models[20]]
    assert [open_box(box).text for box in again] == [model.text for model in models]


def test_objects_at_several_places_are_cached() -> None:
    cache = FoldCache()
    models = [Model(text=str(n)) for n in range(20)]
    base = Folder(None, None, cache).fold({"list": models})
    again = Folder(None, None, cache).fold({"list": models, "deep": [[[models[3]]]]}, base)
    assert again["list"] is base["list"]
    assert cache.matches(models, base["list"], 2)
    assert again["deep"][0][0][0] is base["list"][3]


def test_type_with_hidden_state_is_not_cached() -> None:
    cache = FoldCache()
    odd = Odd(1)
    before = Folder(None, None, cache).fold([odd])[0].data
    _outside["n"] = 2
    assert Folder(None, None, cache).fold([odd])[0].data != before


def test_object_that_holds_a_draft_is_stored() -> None:
    with holdfast.open(":memory:") as hf:
        log = hf.history("r")
        log.commit({"items": [{"n": 1}], "record": None})
        with log.edit() as state:
            state["record"] = Record(items=state["items"])
        assert log.head.state["record"] == Record(items=[{"n": 1}])


@pytest.mark.slow
def test_objects_of_older_states_are_dropped() -> None:
    cache = FoldCache()
    for _ in range(20):
        cache.expire()
        Folder(None, None, cache).fold([Record(text=str(n)) for n in range(300)])
    assert len(cache._new) + len(cache._old) <= 1200


def test_list_of_dicts_is_compared_exactly() -> None:
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


class Plain:
    """A base class whose objects have a dict."""


@dataclass(slots=True)
class Slotted(Plain):
    items: Any


def test_field_in_a_slot_of_an_object_with_a_dict_is_observed() -> None:
    holdfast.register(Slotted)
    with holdfast.open(":memory:") as hf:
        log, cart = hf.history("run"), Slotted([1])
        log.commit({"cart": cart})
        cart.items.append(2)
        log.commit({"cart": cart})
        assert log.head.copy("cart").items == [1, 2]


def test_change_right_after_an_object_was_encoded_is_stored_by_the_next_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holdfast.register(Slotted)
    cart, encode = Slotted([1]), codec.leaf_ext

    def encode_then_change(value: Any, *args: Any, **options: Any) -> Any:
        found = encode(value, *args, **options)
        cart.items.append(2)
        return found

    with holdfast.open(":memory:") as hf:
        log = hf.history("run")
        with monkeypatch.context() as patched:
            patched.setattr(folding, "leaf_ext", encode_then_change)
            log.commit({"cart": cart})
        log.commit({"cart": cart})
        assert log.head.copy("cart") == cart


def test_redacted_field_that_cannot_be_observed_is_redacted() -> None:
    @dataclass
    class Login:
        name: str
        password: Any

    holdfast.register(Login, "tests.Login")
    with holdfast.open(":memory:", redact=["password"]) as hf:
        log = hf.history("run")
        log.commit({"login": Login("ada", threading.Lock())})
        assert log.head.copy("login") == Login("ada", "[redacted]")
