"""The vault: what goes in comes out, for who has the key, and is to be read nowhere else."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked

from ortet.config.environment import open_hub
from ortet.errors import Corrupt, Invalid, NotFound, OrtetError, Refused
from ortet.hub.hub import Hub
from ortet.vault.keys import Keyring
from ortet.vault.vault import VAULT_ROW_KIND, Secret

VALUE = "ghp_do-not-show-me-4711"
KEY, OTHER = "ab" * 32, "cd" * 32

OpenWith = Callable[..., Hub]


@pytest.fixture
def open_with(store: Path, env: dict[str, str]) -> Iterator[OpenWith]:
    hubs: list[Hub] = []

    def open_(key: str = "", **options: Any) -> Hub:
        environ = {**env, "ORTET_VAULT_KEY": key} if key else env
        hubs.append(open_hub(store, environ=environ, **options))
        return hubs[-1]

    yield open_
    for hub in hubs:
        hub.close()


OPEN = """\
import sys
from ortet.config.environment import open_hub
hub = open_hub(sys.argv[1])
"""


def work(store: Path, env: dict[str, str], code: str, fault: str = "") -> int:
    """Run code with a `hub` in a process of its own; its exit code."""
    script = f"{OPEN}{code}\n"
    more = {**env, **({"ORTET_FAULT": fault} if fault else {})}
    return forked.run(
        [sys.executable, "-c", script, str(store)], env={**os.environ, **more}, check=False
    ).returncode


class TestEntries:
    def test_vault_put_get_and_forget_by_name(self, open_with: OpenWith) -> None:
        vault = open_with().vault
        vault.put("github", "first")
        vault.put("github", VALUE)
        vault.put("team/npm", "ü")
        assert vault.get("github") == VALUE and vault.get("team/npm") == "ü"
        assert vault.names() == ["github", "team/npm"] and vault.has("github")
        vault.forget("github")
        assert vault.names() == ["team/npm"] and not vault.has("github")
        with pytest.raises(NotFound, match="secret set") as error:
            vault.get("github")
        assert error.value.kind == "no_secret"
        with pytest.raises(NotFound):
            vault.forget("team/npm", "github")
        assert vault.names() == ["team/npm"]

    def test_secret_is_readable_in_another_process(
        self, open_with: OpenWith, store: Path, env: dict[str, str]
    ) -> None:
        open_with().vault.put("a", VALUE)
        assert work(store, env, f"assert hub.vault.get('a') == {VALUE!r}") == 0

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("", "x"),
            ("a b", "x"),
            ("/a", "x"),
            ("a" * 201, "x"),
            ("browser/x", "x"),
            ("a", ""),
            ("a", b"bytes"),
            ("a", f"{VALUE}\ud800"),
            ("a", VALUE * (1 << 20)),
        ],
    )
    def test_vault_put_with_bad_input_is_refused_without_showing_the_value(
        self, open_with: OpenWith, name: str, value: Any
    ) -> None:
        vault = open_with().vault
        with pytest.raises(Invalid) as error:
            vault.put(name, value)
        assert VALUE not in str(error.value) + repr(error.value.details)
        assert error.value.__cause__ is None
        assert vault.names() == []

    def test_secret_value_is_hidden_in_repr_and_shown_in_str(self, open_with: OpenWith) -> None:
        hub = open_with()
        hub.vault.put("a", VALUE)
        secret = hub.vault.get("a")
        assert isinstance(secret, Secret) and secret.name == "a"
        for shown in (repr(secret), repr([secret]), repr(hub.vault), repr(hub), f"{secret!r}"):
            assert VALUE not in shown
        assert f"Bearer {secret}" == f"Bearer {VALUE}"  # it is for use

    def test_missing_cryptography_package_names_what_to_install(
        self, open_with: OpenWith, store: Path, env: dict[str, str]
    ) -> None:
        open_with()
        code = (
            "sys.modules['cryptography.hazmat.primitives.ciphers.aead'] = None\n"
            "from ortet.errors import Unsupported\n"
            "try: hub.vault.put('a', 'b')\n"
            "except Unsupported as error: assert \"pip install 'ortet[vault]'\" in str(error)\n"
            "else: sys.exit(1)\n"
            "assert hub.vault.names() == []"
        )
        assert work(store, env, code) == 0
        assert not Path(env["HOME"]).exists()


class TestKeys:
    def test_file_is_made_outside_of_the_store(
        self, open_with: OpenWith, store: Path, env: dict[str, str]
    ) -> None:
        vault = open_with().vault
        assert vault.names() == [] and not Path(env["HOME"]).exists()
        vault.put("a", VALUE)
        file = Path(env["HOME"]) / ".config/ortet/vault.key"
        assert file.stat().st_mode & 0o777 == 0o600 and len(file.read_text()) == 65
        assert not list(store.rglob("vault.key"))

    def test_vault_key_file_is_in_the_xdg_config_directory(
        self, store: Path, tmp_path: Path
    ) -> None:
        with open_hub(store, environ={"XDG_CONFIG_HOME": str(tmp_path / "x")}) as hub:
            hub.vault.put("a", VALUE)
        assert (tmp_path / "x/ortet/vault.key").exists()

    def test_vault_without_home_and_variable_is_refused(self) -> None:
        with pytest.raises(Invalid, match="ORTET_VAULT_KEY") as error:
            Keyring("", None).keys()
        assert error.value.kind == "no_vault_key"

    def test_vault_key_file_readable_by_others_is_refused(
        self, open_with: OpenWith, env: dict[str, str]
    ) -> None:
        vault = open_with().vault
        vault.put("a", VALUE)
        (Path(env["HOME"]) / ".config/ortet/vault.key").chmod(0o640)
        with pytest.raises(Refused, match="chmod 600") as error:
            vault.get("a")
        assert error.value.kind == "open_key"

    def test_vault_key_from_the_variable_makes_no_file(
        self, open_with: OpenWith, env: dict[str, str]
    ) -> None:
        open_with(KEY).vault.put("a", VALUE)
        assert open_with(KEY).vault.get("a") == VALUE
        assert not Path(env["HOME"]).exists()

    @pytest.mark.parametrize("key", ["short", "zz" * 32, f"{KEY},", "ab" * 31])
    def test_bad_vault_key_variable_is_refused_without_showing_it(
        self, open_with: OpenWith, key: str
    ) -> None:
        with pytest.raises(Invalid) as error:
            open_with(key).vault.put("a", VALUE)
        assert error.value.kind == "bad_vault_key" and key not in str(error.value)

    def test_wrong_vault_key_cannot_read_but_can_replace_a_secret(
        self, open_with: OpenWith
    ) -> None:
        open_with(KEY).vault.put("a", VALUE)
        wrong = open_with(OTHER).vault
        with pytest.raises(Refused, match="does not have") as error:
            wrong.get("a")
        assert error.value.kind == "wrong_key"
        assert KEY not in str(error.value) and OTHER not in str(error.value)
        assert wrong.names() == ["a"]
        wrong.put("a", "anew")  # whoever has lost the key can go on
        assert wrong.get("a") == "anew"


class TestTampering:
    def test_flipped_byte_of_an_entry_never_gives_a_wrong_value(self, open_with: OpenWith) -> None:
        hub = open_with()
        hub.vault.put("a", VALUE)
        row = hub.catalog.row(VAULT_ROW_KIND, "a")
        assert row is not None
        for at in range(len(row.value)):
            bad = bytearray(row.value)
            bad[at] ^= 1
            hub.catalog.put_row(VAULT_ROW_KIND, "a", bytes(bad))
            try:
                assert hub.vault.get("a") == VALUE  # of its time, or of the layout: not of it
            except (Corrupt, Refused) as error:
                assert VALUE not in str(error)
        box = row.value.index(b"box") + 6
        hub.catalog.put_row(VAULT_ROW_KIND, "a", row.value[:box] + b"\0\0" + row.value[box + 2 :])
        with pytest.raises(Corrupt, match="put the secret again") as caught:
            hub.vault.get("a")
        assert caught.value.kind == "bad_entry"

    def test_an_entry_cannot_stand_for_another(self, open_with: OpenWith) -> None:
        hub = open_with()
        hub.vault.put("low", "harmless")
        hub.vault.put("high", VALUE)
        row = hub.catalog.row(VAULT_ROW_KIND, "high")
        assert row is not None
        hub.catalog.put_row(VAULT_ROW_KIND, "low", row.value)
        with pytest.raises(Corrupt):
            hub.vault.get("low")


class TestRotate:
    def test_rotate_with_a_key_file_reencrypts_all_secrets(
        self, open_with: OpenWith, env: dict[str, str]
    ) -> None:
        hub = open_with()
        hub.vault.put("a", VALUE)
        hub.vault.put("b", "two")
        before = hub.catalog.row(VAULT_ROW_KIND, "a")
        assert hub.vault.rotate() == 2
        after = hub.catalog.row(VAULT_ROW_KIND, "a")
        assert before is not None and after is not None and before.value[:20] != after.value[:20]
        assert hub.vault.get("a") == VALUE and hub.vault.get("b") == "two"
        assert len((Path(env["HOME"]) / ".config/ortet/vault.key").read_text().split()) == 2

    def test_rotate_with_two_keys_in_the_variable_uses_the_first(self, open_with: OpenWith) -> None:
        open_with(KEY).vault.put("a", VALUE)
        both = open_with(f"{OTHER},{KEY}").vault
        assert both.get("a") == VALUE
        assert both.rotate() == 1
        assert open_with(OTHER).vault.get("a") == VALUE
        with pytest.raises(Refused):
            open_with(KEY).vault.get("a")

    def test_rotate_changes_nothing_if_one_secret_cannot_be_read(self, open_with: OpenWith) -> None:
        open_with(KEY).vault.put("a", VALUE)
        open_with(OTHER).vault.put("b", "two")
        with pytest.raises(Refused):
            open_with(KEY).vault.rotate()
        assert open_with(KEY).vault.get("a") == VALUE

    def test_rotate_keeps_a_secret_put_concurrently(
        self, open_with: OpenWith, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub, other = open_with(), open_with()
        hub.vault.put("a", "old")
        puts = iter(["new"])
        real = hub.catalog.move

        def move(*args: Any, **options: Any) -> Any:
            for value in puts:
                other.vault.put("a", value)
            return real(*args, **options)

        monkeypatch.setattr(hub.catalog, "move", move)
        assert hub.vault.rotate() == 1
        assert hub.vault.get("a") == "new"


class TestFaults:
    @pytest.mark.parametrize(
        ("point", "value"),
        [("vault.key", None), ("vault.before-put", None), ("vault.after-put", VALUE)],
    )
    def test_first_put_killed_midway_is_complete_or_absent(
        self, open_with: OpenWith, store: Path, env: dict[str, str], point: str, value: str | None
    ) -> None:
        code = f"hub.vault.put('a', {VALUE!r})"
        assert work(store, env, code, f"{point}:kill") == -signal.SIGKILL
        vault = open_with().vault
        assert (vault.get("a") if vault.has("a") else None) == value
        vault.put("a", "again")
        assert vault.get("a") == "again"

    @pytest.mark.parametrize(("point", "value"), [("before", "old"), ("after", VALUE)])
    def test_later_put_killed_midway_keeps_the_old_or_new_value(
        self, open_with: OpenWith, store: Path, env: dict[str, str], point: str, value: str
    ) -> None:
        vault = open_with().vault
        vault.put("a", "old")
        code = f"hub.vault.put('a', {VALUE!r})"
        assert work(store, env, code, f"vault.{point}-put:kill") == -signal.SIGKILL
        assert vault.get("a") == value

    @pytest.mark.parametrize("point", ["vault.key", "vault.rotate"])
    def test_killed_rotate_loses_no_secret(
        self, open_with: OpenWith, store: Path, env: dict[str, str], point: str
    ) -> None:
        vault = open_with().vault
        vault.put("a", VALUE)
        assert work(store, env, "hub.vault.rotate()", f"{point}:kill") == -signal.SIGKILL
        assert vault.get("a") == VALUE
        assert vault.rotate() == 1
        assert vault.get("a") == VALUE

    def test_concurrent_first_writers_share_one_key_and_lose_no_secret(
        self, open_with: OpenWith, store: Path, env: dict[str, str]
    ) -> None:
        """The first four also race for the key file."""
        open_with()
        code = (
            "for n in range(20):\n"
            "    hub.vault.put('shared', f'{sys.argv[2]}-{n}')\n"
            "    hub.vault.put(f'own-{sys.argv[2]}', str(n))\n"
        )
        script = f"{OPEN}{code}"
        processes = [
            forked.Popen(
                [sys.executable, "-c", script, str(store), str(number)],
                env={**os.environ, **env},
            )
            for number in range(4)
        ]
        assert [process.wait() for process in processes] == [0] * 4
        vault = open_with().vault
        assert vault.names() == ["own-0", "own-1", "own-2", "own-3", "shared"]
        assert [vault.get(f"own-{number}") for number in range(4)] == ["19"] * 4
        assert vault.get("shared").endswith("-19")

    def test_vault_key_file_that_cannot_be_created_is_reported(
        self, open_with: OpenWith, tmp_path: Path
    ) -> None:
        (tmp_path / "home").write_text("a file is in the way")
        with pytest.raises(OrtetError, match="or set ORTET_VAULT_KEY") as error:
            open_with().vault.put("a", VALUE)
        assert error.value.kind == "no_vault_key" and VALUE not in str(error.value)
