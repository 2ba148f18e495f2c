"""Keys are also proved by the suite of every bucket; here is the gate alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortet.backends.keys import check_key, check_name, check_prefix
from ortet.errors import Invalid


@given(st.text(alphabet="ab./-_~A\0\n", max_size=12))
def test_a_key_that_passes_stays_below_its_root(key: str) -> None:
    try:
        check_key(key)
    except Invalid:
        return
    parts = key.split("/")
    assert all(part and part not in (".", "..") for part in parts)
    assert not set(key) & set("~A\0\n")


@given(st.text(alphabet="ab./-_", min_size=1, max_size=12))
def test_every_beginning_of_a_key_is_a_prefix(key: str) -> None:
    try:
        check_key(key)
    except Invalid:
        return
    for end in range(len(key) + 1):
        assert check_prefix(key[:end]) == key[:end]


@pytest.mark.parametrize("name", ["a", "branch:main", "ünï", "a b\n", "x" * 4500])
def test_check_name_accepts_any_text_up_to_its_limit(name: str) -> None:
    assert check_name(name) == name
