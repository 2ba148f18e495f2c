"""The peers, driven as their own documentation says; each is durable at the end of a commit."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import measure
import workspace


class Peer:
    """One system with a copy of the workspace; `can` says which verbs apply to it."""

    name: ClassVar[str]
    can: ClassVar[frozenset[str]] = frozenset({"first", "commit", "restore"})

    def __init__(self, scene: measure.Scene, place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.place = place
        self.store = place / "store"
        self.files = workspace.copy(scene, place / "files")
        self.env: Mapping[str, str] = {}
        self._names = itertools.count(1)

    def call(self, *words: str, cwd: Path | None = None) -> measure.Spent:
        return measure.command(words, cwd=cwd or self.files, env=self.env)

    def shell(self, line: str) -> measure.Spent:
        return self.call("sh", "-c", line)

    def start(self) -> None:
        """Make an empty store."""

    def stop(self) -> None:
        """Remove the store, so that a first commit can be measured again."""
        for name in ("store", "cache", "base"):
            shutil.rmtree(self.place / name, ignore_errors=True)

    def commit(self) -> measure.Spent:
        raise LookupError(f"{self.name} does not commit")

    def restore(self, to: Path) -> measure.Spent:
        raise LookupError(f"{self.name} does not restore {to}")

    def fork(self, to: Path) -> measure.Spent:
        raise LookupError(f"{self.name} does not fork {to}")

    def forget(self, fork: Path) -> None:
        """Remove a fork."""
        shutil.rmtree(fork)

    def pack(self) -> None:
        """What a careful user would do after the first commit; not timed."""


class Git(Peer):
    """Default settings; gc is run once by hand, as the automatic one would disturb."""

    name = "git"
    can = frozenset({"first", "commit", "restore", "fork"})

    def start(self) -> None:
        people = {"AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"}
        self.env = {
            **{f"GIT_{who}": "bench@localhost" for who in people},
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        self.call("git", "init", "-q", "--separate-git-dir", str(self.store))
        self.call("git", "config", "gc.auto", "0")

    def stop(self) -> None:
        super().stop()
        (self.files / ".git").unlink()

    def commit(self) -> measure.Spent:
        return self.shell("git add -A && git commit -q --allow-empty -m step")

    def restore(self, to: Path) -> measure.Spent:
        to.mkdir()
        index = self.place / "index-of-restore"
        where = [f"--git-dir={self.store}", f"--work-tree={to}"]
        words = ["git", *where, "checkout", "-q", "-f", "HEAD", "--", "."]
        spent = measure.command(words, cwd=to, env={**self.env, "GIT_INDEX_FILE": str(index)})
        index.unlink()
        return spent

    def fork(self, to: Path) -> measure.Spent:
        return self.shell(f"git worktree add -q --detach {to} && cd {to} && true")

    def forget(self, fork: Path) -> None:
        self.call("git", "worktree", "remove", "--force", str(fork))

    def pack(self) -> None:
        self.call("git", "gc", "-q")


class GitUntrackedCache(Git):
    """With the untracked cache, and no file-system monitor."""

    name = "git, untracked cache"
    can = frozenset({"commit"})

    def start(self) -> None:
        super().start()
        self.call("git", "config", "core.untrackedCache", "true")
        self.call("git", "config", "core.fsmonitor", "false")

    def pack(self) -> None:
        super().pack()
        self.call("git", "update-index", "--untracked-cache")
        self.call("git", "status", "--short")


class Restic(Peer):
    """Repository version 2, compression auto."""

    name = "restic"

    def start(self) -> None:
        self.env = {
            "RESTIC_PASSWORD": "bench",
            "RESTIC_REPOSITORY": str(self.store),
            "RESTIC_CACHE_DIR": str(self.place / "cache"),
        }
        self.call("restic", "init", "-q", "--repository-version", "2")

    def commit(self) -> measure.Spent:
        return self.call("restic", "backup", "-q", ".")

    def restore(self, to: Path) -> measure.Spent:
        return self.call("restic", "restore", "-q", "latest", "--target", str(to))


class Borg(Peer):
    """No encryption, lz4 as by default."""

    name = "borg"

    def start(self) -> None:
        self.env = {
            "BORG_REPO": str(self.store),
            "BORG_BASE_DIR": str(self.place / "base"),
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        }
        self.call("borg", "init", "-e", "none")

    def commit(self) -> measure.Spent:
        self._last = f"step-{next(self._names)}"
        return self.call("borg", "create", f"::{self._last}", ".")

    def restore(self, to: Path) -> measure.Spent:
        to.mkdir()
        return self.call("borg", "extract", f"::{self._last}", cwd=to)


class Btrfs(Peer):
    """A read-only snapshot, then a sync of the file system: durable like the others."""

    name = "btrfs snapshot"
    can = frozenset({"commit", "fork"})

    def __init__(self, scene: measure.Scene, place: Path) -> None:
        measure.command(["btrfs", "subvolume", "create", str(place / "files")])
        super().__init__(scene, place)

    def commit(self) -> measure.Spent:
        to = self.place / f"snapshot-{next(self._names)}"
        return self.shell(f"btrfs subvolume snapshot -r . {to} && btrfs filesystem sync .")

    def fork(self, to: Path) -> measure.Spent:
        return self.shell(f"btrfs subvolume snapshot . {to} && cd {to} && true")

    def forget(self, fork: Path) -> None:
        self.call("btrfs", "subvolume", "delete", str(fork))


class Reflink(Peer):
    """A copy that shares blocks, then a sync of the file system."""

    name = "cp --reflink (XFS)"
    can = frozenset({"commit", "fork"})

    def commit(self) -> measure.Spent:
        to = self.place / "copy"
        spent = self.shell(f"cp -a --reflink=always . {to} && sync -f {to}")
        shutil.rmtree(to)
        return spent

    def fork(self, to: Path) -> measure.Spent:
        return self.shell(f"cp -a --reflink=always . {to} && cd {to} && true")


PLAIN: tuple[type[Peer], ...] = (Git, GitUntrackedCache, Restic, Borg)
ON_A_DEVICE: tuple[tuple[type[Peer], str], ...] = ((Btrfs, "btrfs"), (Reflink, "xfs"))
