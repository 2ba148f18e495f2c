"""Long texts beside an event: cut however often, the whole comes back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ortet.journal.spill import SPILL_KEY, load_spilled, spill_long_texts

_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "text", "source", "a"]), inner, max_size=4)
    ),
    max_leaves=12,
)


class Shelf:
    """Contents by number."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def put(self, data: bytes) -> dict[str, Any]:
        self.kept.append(data)
        return {"oid": str(len(self.kept) - 1), "size": len(data)}

    def load(self, named: dict[str, Any]) -> bytes:
        return self.kept[int(named["oid"])]


@given(st.dictionaries(st.sampled_from("abc"), _PLAIN), st.lists(st.integers(1, 30), max_size=3))
def test_lightened_data_is_restored_whole(data: dict[str, Any], limits: list[int]) -> None:
    shelf, light = Shelf(), data
    for limit in limits:
        light = spill_long_texts(light, limit, shelf.put)
    assert load_spilled(light, shelf.load) == data


def test_lightened_data_keeps_a_placeholder_or_the_beginning() -> None:
    shelf = Shelf()
    picture = {"type": "image", "source": {"type": "base64", "data": "A" * 5000}}
    small = {"type": "image", "source": {"type": "base64", "data": "A"}}
    data = {"content": [picture, small, {"type": "text", "text": "x" * 9000}], "n": 1}
    light = spill_long_texts(data, 4000, shelf.put)
    left, same, text = light["content"]
    assert left == {"type": "text", "text": "[image that is kept beside this]"}
    assert same == small
    assert text["text"] == "x" * 2000 + "…"
    assert [path for path, _ in light[SPILL_KEY]] == [["content", 0], ["content", 2, "text"]]
    assert load_spilled(light, shelf.load) == data


def test_data_without_long_texts_is_unchanged() -> None:
    data = {"content": "short"}
    assert spill_long_texts(data, 10, Shelf().put) is data
    assert load_spilled(data, Shelf().load) == data
