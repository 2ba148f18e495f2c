"""Where a new directory is built, and how it then appears at its place at once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from ortet._util.codec import checksum, decode, encode
from ortet._util.failpoints import reach
from ortet.errors import Conflict, Invalid, OrtetError
from ortet.machines.dirfd import OPEN_DIR, STAGE, movable, remove

_ACLS = ("system.posix_acl_access", "system.posix_acl_default")
_TRIES = 5
_HOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


class Stage:
    """A directory to build `dest` in, open as `fd` while this is entered; gone afterwards.

    It lies beside `dest` and becomes it by one rename. Where that cannot be (`dest` is a mount, or
    its parent is not writable), it lies inside, and what it holds moves up name by name.
    A leftover of a killed process is removed first; another live process there is a Conflict.
    """

    def __init__(self, dest: Path) -> None:
        self._dest = dest
        self._name = STAGE + checksum(os.fsencode(dest.name)).hex().encode()
        self._list = self._name + b".names"
        self.inside = dest.is_dir() and self._must_be_inside()
        self.fd = -1
        self._finished = False

    def __enter__(self) -> Stage:
        self._at = os.open(self._dest if self.inside else self._dest.parent, _HOLDER)
        try:
            if not self.inside or not _there(self._name, self._at):
                self._check_free()  # before anything is made; else a leftover hides what is ours
            self.fd = self._claim()
            self._check_free()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.fd >= 0:
                if self.inside or not self._finished:
                    self._discard()
                os.close(self.fd)
        finally:
            os.close(self._at)

    def finish(self) -> None:
        """Make it `dest`."""
        if self.inside:
            self._move_up()
            return
        try:
            os.rename(self._name, self._dest.name, src_dir_fd=self._at, dst_dir_fd=self._at)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise self._taken() from error
            raise
        self._finished = True
        reach("stage.renamed")

    def _must_be_inside(self) -> bool:
        dest, parent = self._dest, self._dest.parent
        if os.path.lexists(os.fsencode(dest) + b"/" + self._name):
            return True
        return mount_of(dest) != mount_of(parent) or not os.access(parent, os.W_OK | os.X_OK)

    def _claim(self) -> int:
        """Make the directory, or take over what a dead process left, emptied; lock it."""
        for _ in range(_TRIES):
            try:
                os.mkdir(self._name, 0o700, dir_fd=self._at)
            except FileExistsError:
                self._remove_leftover()
                continue
            try:
                fd = os.open(self._name, OPEN_DIR, dir_fd=self._at)
            except FileNotFoundError:  # another process took it for a leftover, and is done already
                continue
            if _lock(fd) and self._is_named(fd):
                plain(fd)
                return fd
            os.close(fd)  # the same, between our two calls
        raise self._busy()

    def _remove_leftover(self) -> None:
        try:
            fd = os.open(self._name, OPEN_DIR, dir_fd=self._at)
        except FileNotFoundError:
            return
        except OSError:
            remove(self._at, self._name)  # no directory: nothing that we made
            return
        try:
            if not _lock(fd):
                raise self._busy()
            if self._is_named(fd):
                self._discard()
        finally:
            os.close(fd)

    def _is_named(self, fd: int) -> bool:
        try:
            now = os.stat(self._name, dir_fd=self._at, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(now, os.fstat(fd))

    def _check_free(self) -> None:
        try:
            names = set(os.listdir(os.fsencode(self._dest)))
        except FileNotFoundError:
            return
        except NotADirectoryError as error:
            raise self._taken() from error
        if names - {self._name}:
            raise self._taken()

    def _discard(self) -> None:
        """Undo a move that was not finished, and remove the directory, if it still has its name."""
        if self.inside:
            for name in self._listed():
                if not _there(self._name + b"/" + name, self._at):
                    remove(self._at, name)
        remove(self._at, self._name)
        remove(self._at, self._list)

    def _listed(self) -> list[bytes]:
        try:
            fd = os.open(self._list, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._at)
        except FileNotFoundError:
            return []
        with open(fd, "rb") as file, contextlib.suppress(OrtetError):
            return decode(list[bytes], file.read())
        return []  # cut short: it was never acted on

    def _move_up(self) -> None:
        self._check_free()
        names = [os.fsencode(name) for name in os.listdir(self.fd)]
        fd = os.open(self._list, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._at)
        with open(fd, "wb") as file:
            file.write(encode(names))
        for name in names:
            if _there(name, self._at):
                raise self._taken()
            with movable(self.fd, name):
                os.rename(name, name, src_dir_fd=self.fd, dst_dir_fd=self._at)
            reach("stage.moved")
        remove(self._at, self._list)

    def _taken(self) -> Invalid:
        return Invalid(
            "not_empty", f"{self._dest} is not an empty directory: empty it, or give a new place"
        )

    def _busy(self) -> Conflict:
        return Conflict(
            "restore_running", f"another process is writing {self._dest}: wait until it has ended"
        )


@contextlib.contextmanager
def parents(dest: Path) -> Iterator[None]:
    """Make the directories above `dest` that are missing; take them away again after an error."""
    missing = []
    above = dest.parent
    while not above.exists():
        missing.append(above)
        above = above.parent
    made = []
    try:
        for path in reversed(missing):
            path.mkdir()
            made.append(path)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in reversed(made):
                path.rmdir()
        raise


def mount_of(place: Path) -> int:
    """What tells two mounts apart, also two of one file system."""
    fd = os.open(place, _HOLDER)
    try:
        found = _mount_id(fd)
        return os.fstat(fd).st_dev if found is None else found
    finally:
        os.close(fd)


def is_overlay(fd: int) -> bool:
    """Or may be: overlays refuse to rename directories that come from a lower layer."""
    wanted = _mount_id(fd)
    if wanted is None:
        return False
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        fields = line.split()
        if int(fields[0]) == wanted:
            return fields[fields.index("-", 6) + 1] == "overlay"
    return True  # a mount of another namespace, seen through /proc: most likely a machine's


def _mount_id(fd: int) -> int | None:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines():
            if line.startswith("mnt_id:"):
                return int(line.split()[1])
    return None


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def plain(fd: int) -> None:
    """Without a default ACL and set-group-id, which what we make in it would inherit."""
    for name in _ACLS:
        with contextlib.suppress(OSError, AttributeError):
            os.removexattr(fd, name)
    os.fchmod(fd, 0o700)


def _there(name: bytes, at: int) -> bool:
    try:
        os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
