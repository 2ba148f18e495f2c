"""A secret is found as it is, and as programs write it."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortet.errors import Refused
from ortet.machines.secrets.scanner import SecretPatterns, SecretScanner, encoded_forms

VALUE = "p@ss wörd/+9f27"
DATA = VALUE.encode()


def needles(value: str = VALUE) -> SecretPatterns:
    return SecretPatterns([("X", form) for form in encoded_forms(value)])


@given(
    before=st.binary(max_size=50),
    value=st.binary(min_size=8, max_size=40),
    behind=st.binary(max_size=50),
)
def test_a_secret_is_found_in_base64_and_hex_at_any_offset(
    before: bytes, value: bytes, behind: bytes
) -> None:
    found = needles(value.decode("utf-8", "surrogateescape"))
    text = before + value + behind
    assert found.find(base64.b64encode(text)) == "X"
    assert found.find(base64.urlsafe_b64encode(text)) == "X"
    assert found.find(text.hex().encode()) == "X"
    assert found.find(text.hex().upper().encode()) == "X"


@pytest.mark.parametrize(
    "text",
    [
        DATA,
        quote(VALUE).encode(),
        quote(VALUE, safe="").encode(),
        quote_plus(VALUE).encode(),
        quote(VALUE, safe="").lower().encode(),
        json.dumps([VALUE]).encode(),
        json.dumps([VALUE], ensure_ascii=False).encode(),
        json.dumps({"a": 'say "p@ss wörd/+9f27"'}).encode(),
    ],
)
def test_a_secret_is_found_in_url_and_json_encodings(text: bytes) -> None:
    assert needles().find(b"before" + text + b"behind") == "X"
    assert needles().find(b"before" + text[: len(text) // 2] + b"behind") == ""


def test_a_secret_is_found_at_any_position_of_long_data() -> None:
    for text in (bytes(5000) + DATA, DATA + bytes(5000), DATA):
        assert needles().find(text) == "X"
    assert needles().find(b"") == ""
    assert SecretPatterns([("Y", b"something else")]).find(bytes(5000) + DATA) == ""


def test_a_secret_shorter_than_8_characters_is_not_searched_for() -> None:
    assert encoded_forms("1234567") == []
    assert not SecretScanner({"SHORT": "1234567"})


def test_secrets_in_data_are_replaced_by_their_names() -> None:
    known = SecretScanner({"X": VALUE, "LONGER": f"{VALUE} and more"})
    plain = {"a": [1, None, {"b": "nothing"}]}
    assert known.redact(plain) is plain
    said = {"a": [f"<{VALUE} and more>", VALUE.encode().hex()], VALUE: (1.5, f"{VALUE}{VALUE}")}
    assert known.redact(said) == {"a": ["<[LONGER]>", "[X]"], "[X]": [1.5, "[X][X]"]}
    odd = object()
    assert known.redact(odd) is odd  # who records it says what is wrong
    assert known.redact_bytes(b"a " + DATA) == b"a [X]"


def test_a_secret_in_a_path_is_refused_and_not_shown(tmp_path: Path) -> None:
    known = SecretScanner({"X": "a-value-1234"})
    fd = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR)
    try:
        os.write(fd, b"harmless")
        known.file(fd, 8, b"dir/file")
        with pytest.raises(Refused) as caught:
            known.file(fd, 8, b"dir/a-value-1234.txt")
        assert caught.value.details == {"secret": "X", "where": "file dir/[X].txt"}
        assert "a-value-1234" not in str(caught.value)
    finally:
        os.close(fd)
