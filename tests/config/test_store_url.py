"""Addresses of stores that are elsewhere: which are the same, which may be written down, which were
chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortet.config.environment import find_usable_pointer, is_pointer_to, store_url
from ortet.config.pointer_file import find_pointer, write_pointer
from ortet.config.store_url import (
    check_pointer_url,
    check_trusted,
    is_networked,
    is_same_store,
    is_trusted,
    trust_store,
)
from ortet.errors import Invalid, Refused

TEAM = "postgresql://ann@db/team?bucket=s3://b/p"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("postgresql://bob@db/team?sslmode=require&bucket=s3://b/p&durable=local", True),
        ("postgresql://db/team?bucket=s3%3A%2F%2Fb%2Fp%3Fregion%3Deu&connections=2", True),
        ("postgresql://ann@db2/team?bucket=s3://b/p", False),
        ("postgresql://ann@db:5433/team?bucket=s3://b/p", False),
        ("postgresql://ann@db/other?bucket=s3://b/p", False),
        ("postgresql://ann@db/team?bucket=s3://b/q", False),
        ("postgresql://ann@db/team?bucket=s3://b/p&schema=two", False),
        ("http://db/team", False),
    ],
)
def test_same_store_compares_host_database_bucket_and_schema(other: str, same: bool) -> None:
    assert is_same_store(TEAM, other) == same


def test_is_elsewhere_is_true_for_urls_but_not_directories() -> None:
    assert is_networked(TEAM)
    assert is_networked("https://host")
    assert not is_networked("/a/directory")
    assert not is_networked("file:///a/directory")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:hush@db/team?bucket=s3://b",
        f"{TEAM}&password=hush",
        f"{TEAM}&sslpassword=hush",
        f"{TEAM}&signal=redis://:hush@cache",
        f"{TEAM}&cache=redis://:hush@cache",
        "http://ann:hush@host",
        f"{TEAM}\n",
    ],
)
def test_a_secret_is_not_written_down(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_pointer_url(url)
    assert "hush" not in str(caught.value)
    check_pointer_url(TEAM)


def test_a_pointer_to_a_store_that_was_not_chosen_is_refused(tmp_path: Path) -> None:
    place, work = tmp_path / "config" / "ortet", tmp_path / "work"
    work.mkdir()
    write_pointer(work, TEAM, "proj")
    environ = {"XDG_CONFIG_HOME": str(place.parent), "HOME": str(tmp_path)}
    with pytest.raises(Refused) as caught:
        store_url(cwd=work, environ=environ)
    assert caught.value.kind == "unknown_store"
    assert find_usable_pointer(work, environ) is None
    trust_store(TEAM, place)
    trust_store(TEAM.replace("ann", "bob"), place)  # the same one
    assert (place / "stores").read_text().count("\n") == 1
    assert (place / "stores").stat().st_mode & 0o077 == 0
    assert store_url(cwd=work, environ=environ) == TEAM
    pointer = find_pointer(work)
    assert pointer == find_usable_pointer(work, environ)
    assert pointer is not None
    assert is_pointer_to(pointer, f"{TEAM}&durable=local")
    assert not is_pointer_to(pointer, "/a/directory")
    check_trusted(TEAM, work / ".ortet", place)


def test_without_a_config_directory_no_store_is_chosen(tmp_path: Path) -> None:
    trust_store(TEAM, None)
    assert not is_trusted(TEAM, None)
    assert not is_trusted(TEAM, tmp_path)
