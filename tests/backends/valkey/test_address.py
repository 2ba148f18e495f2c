"""Addresses of Valkey servers, and what an error shows of them."""

from __future__ import annotations

import pytest

from ortet.backends.valkey.address import parse_valkey_url
from ortet.errors import Invalid, Refused


@pytest.mark.parametrize(
    "url",
    [
        "http://host", "redis://", "redis://host/x", "redis://host?foo=1", "unix://", "host:6379",
        "redis://host:0", "redis://host:99999", "redis://u:secret@host:x", "redis://[::1",
    ],
)  # fmt: skip
def test_an_invalid_valkey_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_valkey_url(url)
    assert caught.value.kind == "bad_url"
    assert "secret" not in str(caught.value)


def test_valkey_addresses_are_parsed_without_showing_the_password() -> None:
    address = parse_valkey_url("valkeys://user:s%40cret@[::1]:7000/3")
    assert (address.username, address.password, address.secure) == ("user", "s@cret", True)
    assert str(address) == "rediss://[::1]:7000/3"
    assert "s@cret" not in repr(address)
    assert str(parse_valkey_url("unix:///run/v%20k.sock?db=2")) == "unix:///run/v k.sock?db=2"
    with pytest.raises(Refused) as caught:
        parse_valkey_url("redis://host?password_file=/nowhere/at/all")
    assert caught.value.kind == "no_password"
