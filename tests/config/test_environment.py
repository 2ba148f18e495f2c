"""Which store is meant, how it is opened, and what a wrong setting says."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import ortet
from ortet.config.environment import init_url, store_path, store_url
from ortet.config.pointer_file import write_pointer
from ortet.errors import (
    Corrupt,
    Invalid,
    NotFound,
    OrtetError,
    Refused,
    Unavailable,
    Unsupported,
)
from ortet.hub.hub import Hub

pytestmark = pytest.mark.files({"a": "a"})

Open = Callable[..., Hub]


class TestWhichStore:
    """What is asked for, $ORTET_URL, the nearest pointer, the data directory: in this order."""

    def test_the_store_is_chosen_by_argument_variable_pointer_and_default(
        self, tmp_path: Path
    ) -> None:
        write_pointer(tmp_path, Path("/pointed"), "x")
        (tmp_path / "deep").mkdir()
        env = {"HOME": "/home/u", "XDG_DATA_HOME": "/data", "ORTET_URL": "/named"}
        deep = tmp_path / "deep"
        assert store_url("asked", cwd=deep, environ=env) == "asked"
        assert store_url(Path("/asked"), cwd=deep, environ=env) == "/asked"
        assert store_url(cwd=deep, environ=env) == "/named"
        assert store_url(cwd=deep, environ={**env, "ORTET_URL": ""}) == "/pointed"
        del env["ORTET_URL"]
        assert store_url(cwd=deep, environ=env) == "/pointed"
        (tmp_path / ".ortet").unlink()
        assert store_url(cwd=deep, environ=env) == "/data/ortet"
        assert store_url(cwd=deep, environ={"HOME": "/home/u"}) == "/home/u/.local/share/ortet"

    def test_a_relative_data_home_is_ignored(self, tmp_path: Path) -> None:
        env = {"HOME": "/home/u", "XDG_DATA_HOME": "data"}
        assert store_url(cwd=tmp_path, environ=env) == "/home/u/.local/share/ortet"

    def test_a_pointer_names_a_store_relative_to_itself(self, tmp_path: Path) -> None:
        (tmp_path / ".ortet").write_text("../history#x\n")
        (tmp_path / "deep").mkdir()
        url = store_url(cwd=tmp_path / "deep", environ={})
        assert os.path.normpath(url) == str(tmp_path.parent / "history")

    def test_open_finds_the_store_by_variable_pointer_and_default(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ORTET_URL", str(tmp_path / "by-env"))
        with ortet.open() as hub:
            assert hub.root == tmp_path / "by-env"
        monkeypatch.delenv("ORTET_URL")
        monkeypatch.chdir(tmp_path)
        write_pointer(tmp_path, tmp_path / "by-pointer", "x")
        with ortet.open() as hub:
            assert hub.root == tmp_path / "by-pointer"
        (tmp_path / ".ortet").unlink()
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        with ortet.open() as hub:
            assert hub.root == tmp_path / "data/ortet"
        with ortet.open("relative") as hub:
            assert hub.root == tmp_path / "relative"

    def test_init_ignores_a_broken_pointer(self, tmp_path: Path) -> None:
        write_pointer(tmp_path, Path("/above"), "x")
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub/.ortet").write_text("")
        assert init_url(None, tmp_path / "sub", {}) == "/above"
        assert init_url("/asked", tmp_path / "sub", {}) == "/asked"

    def test_store_url_in_a_deleted_directory_is_refused_with_advice(self, tmp_path: Path) -> None:
        code = (
            "import os, sys, ortet.config.environment as c\n"
            f"os.mkdir({str(tmp_path / 'gone')!r}); os.chdir({str(tmp_path / 'gone')!r})\n"
            f"os.rmdir({str(tmp_path / 'gone')!r})\n"
            "try: c.store_url(environ={})\n"
            "except c.NotFound as error: sys.exit(error.message)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], check=False, capture_output=True, text=True
        )
        assert "change to one that is there" in done.stderr


class TestUrl:
    @pytest.mark.parametrize(
        ("url", "path"),
        [
            ("/a/b", "/a/b"),
            ("/a b?c#d", "/a b?c#d"),
            ("file:///a/b", "/a/b"),
            ("FILE:///a/b", "/a/b"),
            ("file://localhost/a", "/a"),
            ("file:///a%20b%3Fc%23d", "/a b?c#d"),
            ("file:///%ff", "/\udcff"),
        ],
    )
    def test_a_directory_url_is_parsed_to_its_path(self, url: str, path: str) -> None:
        assert store_path(url) == Path(path)

    def test_a_tilde_is_expanded_to_the_home_directory(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", "/home/u")
        assert store_path("~/x") == Path("/home/u/x")

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "file://",
            "file:///",
            "file://elsewhere/a",
            "file:///a#b",
            "file:///a?b=c",
            "file:///a%00b",
            "s3://bucket",
            "ftp://x",
            "~nobody-at-all/x",
        ],
    )
    def test_an_invalid_store_url_is_refused_with_advice(self, url: str) -> None:
        with pytest.raises(Invalid, match="give a directory or a file:// URL") as caught:
            store_path(url)
        assert caught.value.kind == "bad_url"

    @pytest.mark.parametrize(
        "url",
        [
            "file:///a?bucket=file:///b",
            "file:///a?signal=redis://r",
        ],
    )
    def test_a_store_url_option_of_a_later_release_is_unsupported(self, url: str) -> None:
        with pytest.raises(Unsupported, match=r"leave bucket=") as caught:
            store_path(url)
        assert caught.value.kind == "backend_missing"

    @pytest.mark.parametrize("url", ["http://host:1", "https://host", "postgresql://h/d"])
    def test_the_url_of_a_server_has_no_local_directory(self, url: str) -> None:
        with pytest.raises(Unsupported) as caught:
            store_path(url)
        assert caught.value.kind == "remote_store"


class TestPlace:
    def test_a_new_store_is_for_its_user_only(self, opened: Open, store: Path) -> None:
        hub = opened(store / "deep/er")
        assert hub.root.stat().st_mode & 0o777 == 0o700
        assert (hub.root / "FORMAT").read_text().startswith("ortet store 1 ")

    def test_open_without_create_needs_an_existing_store(self, opened: Open, store: Path) -> None:
        with pytest.raises(NotFound, match="ortet init"):
            opened(create=False)
        assert not store.exists()
        opened().close()
        opened(create=False)

    def test_a_file_where_the_store_belongs_is_refused(self, opened: Open, work: Path) -> None:
        for place in (work / "a", work / "a/store"):
            with pytest.raises(Invalid, match="a file is in the way"):
                opened(place)
        assert (work / "a").read_text() == "a"

    def test_a_foreign_directory_is_refused_and_left_unchanged(
        self, opened: Open, work: Path
    ) -> None:
        (work / "config.toml").write_text("theirs = true\n")
        with pytest.raises(Invalid, match="an empty one") as caught:
            opened(work)
        assert caught.value.kind == "not_a_store"
        assert sorted(os.listdir(work)) == ["a", "config.toml"]

    @pytest.mark.root
    def test_a_read_only_place_is_refused_with_advice(self, opened: Open, tmp_path: Path) -> None:
        place = tmp_path / "mount"
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(place)], check=True)
        try:
            with pytest.raises(Refused, match="choose another"):
                opened(place / "store")
        finally:
            subprocess.run(["umount", str(place)], check=True)

    def test_a_store_path_that_is_not_utf8_is_refused(self, opened: Open, tmp_path: Path) -> None:
        with pytest.raises(Invalid, match="UTF-8"):
            opened(tmp_path / "\udcff")
        assert os.listdir(tmp_path) == []

    @pytest.mark.root
    def test_an_unreadable_home_directory_is_ignored(self, opened: Open) -> None:
        home = tempfile.mkdtemp()  # readable by root only
        place = Path(tempfile.mkdtemp())
        place.chmod(0o777)
        try:
            # made by root: our own files may lie where that user cannot read them either
            opened(place / "store").close()
            subprocess.run(["chown", "-R", "65534", str(place)], check=True)
            os.seteuid(65534)
            opened(place / "store", environ={"HOME": f"{home}/u"}).close()
        finally:
            os.seteuid(0)
            shutil.rmtree(place)
            os.rmdir(home)

    def test_a_long_path_works_and_a_too_long_path_is_refused(
        self, opened: Open, store: Path, work: Path
    ) -> None:
        place = store
        while (rest := 490 - len(str(place))) > 1:
            place = place / ("d" * min(rest - 1, 200 if rest != 202 else 100))
        assert len(str(place)) == 490
        hub = opened(place)
        token = hub.signal.token("branch:proj")
        hub.workspace(work, engine="folder").commit("x")
        assert hub.signal.wait("branch:proj", token, 10)
        with pytest.raises(Invalid, match="at most 490 bytes"):
            opened(f"{place}e")


class TestDamage:
    def test_a_newer_format_is_left_alone(self, opened: Open, store: Path) -> None:
        opened().close()
        (store / "FORMAT").write_text("ortet store 2 0000000000000000\n")
        (store / "catalog.db").unlink()  # which a newer format may not have
        before = sorted(os.listdir(store))
        with pytest.raises(Unsupported, match="upgrade ortet"):
            opened()
        assert sorted(os.listdir(store)) == before

    def test_a_lost_catalog_is_not_taken_for_a_new_one(
        self, opened: Open, store: Path, work: Path
    ) -> None:
        with opened() as hub:
            hub.workspace(work, engine="folder").commit("first")
        data = (store / "catalog.db").read_bytes()
        for wrong in (None, b""):
            (store / "catalog.db").unlink()
            if wrong is not None:
                (store / "catalog.db").write_bytes(wrong)
            with pytest.raises(Corrupt, match="restore it from a copy"):
                opened()
            (store / "catalog.db").write_bytes(data)
        assert opened().log()[0].message == "first"

    def test_a_damaged_catalog_is_reported_as_corrupt(self, opened: Open, store: Path) -> None:
        opened().close()
        (store / "catalog.db").write_bytes(os.urandom(40_000))
        with pytest.raises(Corrupt, match="restore it from a copy") as caught:
            opened()
        assert caught.value.kind == "catalog_damaged"

    def test_a_damaged_page_of_the_catalog_is_found(
        self, opened: Open, store: Path, work: Path
    ) -> None:
        with opened() as hub:
            ws = hub.workspace(work, engine="folder")
            for number in range(30):
                (work / "a").write_text(str(number))
                ws.commit("x" * 300)
        data = bytearray((store / "catalog.db").read_bytes())
        pages = len(data) // 4096
        for page in range(2, pages):
            data[page * 4096 : page * 4096 + 2000] = os.urandom(2000)
        (store / "catalog.db").write_bytes(data)
        with pytest.raises(Corrupt):
            opened().verify()

    def test_a_foreign_format_file_is_refused(self, opened: Open, store: Path) -> None:
        opened().close()
        (store / "FORMAT").write_text("something else\n")
        with pytest.raises(Invalid, match="not an ortet store"):
            opened()

    def test_a_failed_open_leaves_no_descriptors_open(self, opened: Open, store: Path) -> None:
        opened().close()
        (store / "bucket").rename(store / "moved")
        (store / "bucket").write_text("in the way")
        gc.collect()  # what earlier tests left open
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(OrtetError):
            opened()
        assert set(os.listdir("/proc/self/fd")) - before == set()


class TestSettings:
    @pytest.mark.parametrize(
        "text",
        [
            b"quota = ",
            b"quotta = 5",
            b"quota = 'much'",
            b"quota = -1",
            b"reserve = -1",
            b"[quota]\nx = 1",
            b"author = \xff",
        ],
    )
    def test_an_invalid_config_file_is_refused_with_advice(
        self, opened: Open, store: Path, text: bytes
    ) -> None:
        store.mkdir()
        (store / "config.toml").write_bytes(text)
        with pytest.raises(Invalid, match="correct it") as caught:
            opened()
        assert caught.value.kind == "bad_config"
        assert "config.toml" in caught.value.message
        assert os.listdir(store) == ["config.toml"]

    def test_a_directory_instead_of_the_config_file_is_refused(
        self, opened: Open, store: Path
    ) -> None:
        (store / "config.toml").mkdir(parents=True)
        with pytest.raises(Invalid, match="correct it"):
            opened()

    def test_the_author_comes_from_the_variable_the_file_or_the_user(
        self, opened: Open, store: Path
    ) -> None:
        with opened() as hub:
            assert hub.store.author.endswith(f"@{os.uname().nodename}")
        (store / "config.toml").write_text('author = "by file"\n')
        with opened() as hub:
            assert hub.store.author == "by file"
        with opened(environ={"ORTET_AUTHOR": "by env"}) as hub:
            assert hub.store.author == "by env"

    def test_an_author_that_is_not_text_can_commit(self, opened: Open, work: Path) -> None:
        hub = opened(environ={"ORTET_AUTHOR": "caf\udce9"})
        info = hub.workspace(work, engine="folder").commit("x")
        assert info.author == "caf\ufffd"

    def test_a_reserve_larger_than_the_disk_refuses_writes(
        self, opened: Open, store: Path, work: Path
    ) -> None:
        store.mkdir()
        (store / "config.toml").write_text("reserve = 1_000_000_000\n")
        with opened() as hub, pytest.raises((Refused, Unavailable), match="lower the reserve"):
            hub.workspace(work, engine="folder").commit("x")

    def test_commits_see_changes_with_the_watcher_off(
        self, opened: Open, store: Path, work: Path
    ) -> None:
        store.mkdir()
        (store / "config.toml").write_text("watch = false\n")
        with opened() as hub, hub.workspace(work, engine="folder") as ws:
            ws.commit("first")
            (work / "b").touch()
            assert ws.commit("second").parents != []


class TestKey:
    @pytest.fixture
    def keyed(self, store: Path) -> Path:
        store.mkdir()
        (store / "key").write_text("ab" * 32 + "\n")
        (store / "config.toml").write_text('key_file = "key"\n')
        return store

    def test_tenants_share_no_ids(
        self, opened: Open, keyed: Path, work: Path, tmp_path: Path
    ) -> None:
        states = set()
        other = tmp_path / "other-key"
        other.mkdir()
        (other / "config.toml").write_text(f'key_file = "{tmp_path}/elsewhere"\n')
        (tmp_path / "elsewhere").write_text("cd" * 32)
        for place in (keyed, other, tmp_path / "no-key"):
            with opened(place) as hub:
                states.add(hub.workspace(work, engine="folder").commit("x").state)
                hub.verify()
        assert len(states) == 3
        with opened(keyed) as hub:
            assert hub.workspace(work, engine="folder").commit("x").state in states

    @pytest.mark.parametrize("text", ["ab" * 31, "xy" * 32, "", "ab" * 33])
    def test_a_bad_key_file_says_what_to_put_there(
        self, opened: Open, keyed: Path, text: str
    ) -> None:
        (keyed / "key").write_text(text)
        with pytest.raises(Invalid, match="64 hexadecimal digits") as caught:
            opened()
        assert caught.value.kind == "bad_key"

    def test_a_missing_key_file_is_refused_with_advice(self, opened: Open, keyed: Path) -> None:
        (keyed / "key").unlink()
        with pytest.raises(Invalid, match="correct key_file"):
            opened()

    def test_another_key_is_refused_before_anything_is_touched(
        self, opened: Open, keyed: Path
    ) -> None:
        opened().close()
        for text in ("# no key\n", 'key_file = "other"\n'):
            (keyed / "other").write_text("cd" * 32)
            (keyed / "config.toml").write_text(text)
            with pytest.raises(Refused, match="give that key") as caught:
                opened()
            assert caught.value.kind == "wrong_key"
