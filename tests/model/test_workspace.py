"""A workspace against a plain dict: whatever order of verbs, files are what the dict says."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

import ortet
from ortet.errors import Conflict
from ortet.ids import from_hex

SOAK = int(os.environ.get("ORTET_SOAK", "1"))
NAMES = ["a", "b", "d/x", "d/y", "e/x", "e/\udcff z"]
FILES = st.sampled_from(NAMES)
# Single lines: two different changes of one file can never be merged as text.
TEXTS = st.sampled_from([b"", b"one", b"two", b"three", b"x" * 200_000])
MODES = st.sampled_from([0o644, 0o755, 0o600, 0o4755])

Model = dict[str, tuple[int, bytes, int]]
"""path -> (mode, content, link group), the group numbered by first member in name order."""


def read_tree(root: Path) -> Model:
    """What is really there, read without any of our code."""
    found: Model = {}
    groups: dict[int, int] = {}
    for name in NAMES:
        path = root / name
        try:
            info = path.lstat()
        except FileNotFoundError:
            continue
        group = groups.setdefault(info.st_ino, len(groups))
        found[name] = (stat.S_IMODE(info.st_mode), path.read_bytes(), group)
    return found


def merged(base: Model, ours: Model, theirs: Model) -> dict[str, tuple[int, bytes]] | None:
    """The path-by-path three-way merge; None where a side must give way."""

    def plain(model: Model, name: str) -> tuple[int, bytes] | None:
        return model[name][:2] if name in model else None

    result: dict[str, tuple[int, bytes]] = {}
    for name in NAMES:
        b, o, t = (plain(model, name) for model in (base, ours, theirs))
        if t in (o, b):
            chosen = o
        elif o == b:
            chosen = t
        elif b and o and t and (o[1] == b[1] or t[1] == b[1] or o[1] == t[1]):
            mode = t[0] if o[0] == b[0] else o[0]
            if o[0] not in (b[0], t[0]) and t[0] != b[0]:
                return None
            chosen = (mode, t[1] if o[1] == b[1] else o[1])
        else:
            return None
        if chosen is not None:
            result[name] = chosen
    return result


class Workspaces(RuleBasedStateMachine):
    engine: ClassVar[str]
    live = Bundle("live")
    commits = Bundle("commits")

    @initialize(target=live)
    def start(self) -> Any:
        self.dir = Path(tempfile.mkdtemp(prefix="ortet-model-"))
        (self.dir / "work/d").mkdir(parents=True)
        (self.dir / "work/e").mkdir()
        self.hub = ortet.open(self.dir / "store")
        self.states: dict[str, Model] = {}
        self.oids: dict[str, str] = {}
        self.changed: set[str] = set()
        return self.hub.workspace(self.dir / "work", engine=self.engine)

    def teardown(self) -> None:
        if hasattr(self, "hub"):
            self.hub.verify()
            self.hub.close()
            shutil.rmtree(self.dir)

    @rule(ws=live, name=FILES, text=TEXTS, mode=MODES)
    def write(self, ws: Any, name: str, text: bytes, mode: int) -> None:
        path = ws.path / name
        path.unlink(missing_ok=True)
        path.write_bytes(text)
        path.chmod(mode)

    @rule(ws=live, name=FILES, text=TEXTS)
    def overwrite(self, ws: Any, name: str, text: bytes) -> None:
        """In place, so that every hard link sees it."""
        path = ws.path / name
        if path.exists():
            mode = path.stat().st_mode
            path.write_bytes(text)
            path.chmod(stat.S_IMODE(mode))

    @rule(ws=live, name=FILES, mode=MODES)
    def chmod(self, ws: Any, name: str, mode: int) -> None:
        if (ws.path / name).exists():
            (ws.path / name).chmod(mode)

    @rule(ws=live, old=FILES, new=FILES)
    def rename(self, ws: Any, old: str, new: str) -> None:
        if (ws.path / old).exists():
            (ws.path / old).rename(ws.path / new)

    @rule(ws=live, old=FILES, new=FILES)
    def link(self, ws: Any, old: str, new: str) -> None:
        if (ws.path / old).exists() and not (ws.path / new).exists():
            (ws.path / new).hardlink_to(ws.path / old)

    @rule(ws=live, name=FILES)
    def delete(self, ws: Any, name: str) -> None:
        (ws.path / name).unlink(missing_ok=True)

    @rule(ws=live, name=FILES, text=st.sampled_from(["left", "right"]))
    def command(self, ws: Any, name: str, text: str) -> None:
        result = ws.run(["sh", "-c", 'printf %s "$1" > "$2"', "sh", text, name])
        assert result.exit_code == 0, result.stderr

    @rule(ws=live, target=commits)
    def commit(self, ws: Any) -> Any:
        before = read_tree(ws.path)
        info = ws.commit("model")
        assert read_tree(ws.path) == before
        if info.oid in self.states:
            assert self.states[info.oid] == before
        self.states[info.oid] = before
        assert ws.commit("again").oid == info.oid
        return info.oid

    @rule(ws=live, oid=commits)
    def restore(self, ws: Any, oid: str) -> None:
        ws.restore(oid)
        assert read_tree(ws.path) == self.states[oid]
        assert ws.commit("unchanged").oid == oid

    @rule(oid=commits)
    def restore_elsewhere(self, oid: str) -> None:
        target = self.dir / f"elsewhere-{len(list(self.dir.iterdir()))}"
        self.hub.restore(oid, to=target)
        assert read_tree(target) == self.states[oid]
        with self.hub.workspace(target, engine="folder") as again:
            assert again.commit("copy").state == self.hub.show(oid).state

    @rule(ws=live, target=live, count=st.integers(1, 2))
    def fork(self, ws: Any, count: int) -> Any:
        if len(list(self.hub.workspaces.table.all())) > 5:
            return multiple()
        before = read_tree(ws.path)
        children = ws.fork(count)
        assert [read_tree(child.path) for child in children] == [before] * count
        assert read_tree(ws.path) == before
        return multiple(*children)

    @rule(one=live, other=live)
    def merge(self, one: Any, other: Any) -> None:
        if one is other:
            return
        ours, theirs = read_tree(one.path), read_tree(other.path)
        o, t = one.commit("ours"), other.commit("theirs")
        self.states[o.oid], self.states[t.oid] = ours, theirs
        base = self.hub.history.merge_base(from_hex(o.oid), from_hex(t.oid))
        if base is None or base.hex() not in self.states:
            return
        expected = merged(self.states[base.hex()], ours, theirs)
        try:
            one.merge(other)
        except Conflict as error:
            assert error.kind == "merge_conflict"
            assert expected is None
            assert read_tree(one.path) == ours
        else:
            assert expected is not None
            assert {name: value[:2] for name, value in read_tree(one.path).items()} == expected
            self.states[one.head.oid] = read_tree(one.path)

    @rule(ws=consumes(live), target=live)
    def reopen(self, ws: Any) -> Any:
        """Closing keeps the files, uncommitted ones too."""
        before, name = read_tree(ws.path), ws.name
        ws.close()
        again = self.hub.workspace(name=name)
        assert read_tree(again.path) == before
        return again

    @invariant()
    def heads_are_whole(self) -> None:
        if hasattr(self, "hub"):
            for row in self.hub.workspaces.table.all():
                head = self.hub.catalog.head(f"branch:{row.name}")
                assert head is None or self.hub.objects.has(head.oid)


@pytest.mark.parametrize("engine", ["folder", "overlay"])
@pytest.mark.slow
def test_workspace_files_agree_with_a_dict_model_after_random_operations(engine: str) -> None:
    machine: Any = type(f"{engine.title()}Workspaces", (Workspaces,), {"engine": engine})
    machine.TestCase.settings = settings(
        max_examples=12 * SOAK,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    machine.TestCase("runTest").debug()
