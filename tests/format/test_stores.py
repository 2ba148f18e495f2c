"""Stores written by earlier releases stay readable."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

import ortet

STORES = Path(__file__).parent / "stores"
FIRST = "151f747dd6e0062c2a446edaea7e34ca261c130a5327d0218a5289fa3e268c4a"
STATE = "f725103061cf2996535de0b1ec04b83d7a25e35e8ed7326b2377e703569792b8"
SECOND = "ede0968867db26622defca5eaa6135df4afc57dbc33628940ffa58b3074c0d3f"


@pytest.fixture(params=sorted(path.name for path in STORES.iterdir()))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Two commits of one project, the first sealed in a pack and tagged, then a rewind."""
    with tarfile.open(STORES / request.param) as archive:
        archive.extractall(tmp_path / "store", filter="data")
    return tmp_path / "store"


def test_a_store_of_an_earlier_release_verifies_with_its_history(store: Path) -> None:
    with ortet.open(store) as hub:
        assert hub.verify().problems == []
        assert [info.oid for info in hub.log("project")] == [FIRST]
        assert [info.message for info in hub.log(SECOND)] == ["second", "first"]
        assert hub.show("golden").state == STATE
        assert hub.show("project@{1}").oid == SECOND


@pytest.mark.root
def test_a_store_of_an_earlier_release_restores_its_files_exactly(
    store: Path, tmp_path: Path
) -> None:
    with ortet.open(store) as hub:
        hub.restore(SECOND, to=tmp_path / "second")
        hub.restore("golden", to=tmp_path / "first")
        assert (tmp_path / "second/src/main.py").read_text() == "print('bye')\n"
        assert (tmp_path / "first/link").read_text() == "print('hello')\n"
        assert (tmp_path / "first/large.bin").read_bytes() == bytes(range(256)) * 1024
        same = (os.stat(tmp_path / "first" / name).st_ino for name in ("large.bin", "again.bin"))
        assert len(set(same)) == 1
        assert len(list((tmp_path / "first/src").iterdir())) == 101
        with hub.workspace(tmp_path / "first") as ws:
            assert ws.commit("again").state == STATE


def test_a_store_of_an_earlier_release_accepts_new_commits(store: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new/file").write_text("x")
    with ortet.open(store) as hub:
        with hub.workspace(tmp_path / "new") as ws:
            ws.commit("by a later release")
        hub.sweep(min_garbage=0.0)
        hub.verify()
        assert hub.show(SECOND).message == "second"
