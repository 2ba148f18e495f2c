"""The staging directory of a checkout, and how it becomes the target directory at once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from ortet._util.codec import checksum, decode, encode
from ortet._util.failpoints import failpoint
from ortet.errors import Conflict, Corrupt, Invalid, OrtetError
from ortet.history.records import Image, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.base import Report
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.dirfd import (
    OPEN_DIR_FLAGS,
    STAGE_PREFIX,
    open_directory,
    remove_tree,
    translate_os_error,
    writable_for_rename,
)
from ortet.machines.restore.write_entry import EntryWriter, OpenTarget
from ortet.machines.restore.write_tree import (
    Progress,
    ReflinkCloner,
    TreeItem,
    WrittenItem,
    write_tree,
)
from ortet.machines.services import service_losses
from ortet.objects.base import ObjectStore

_ACLS = ("system.posix_acl_access", "system.posix_acl_default")
_CLAIM_ATTEMPTS = 5
_OPEN_PARENT_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


class StagingDirectory:
    """A context manager: a directory in which `dest` is built, open as `fd`.

    The staging directory is beside `dest` and replaces it by one rename. That is impossible if
    `dest` is a mount or its parent is not writable. Then it is inside of `dest`, and its content is
    moved up name by name. A leftover of a killed process is removed first. Raises
    Conflict("restore_running") if another process uses the same staging directory.
    """

    def __init__(self, dest: Path) -> None:
        self._dest = dest
        self._name = STAGE_PREFIX + checksum(os.fsencode(dest.name)).hex().encode()
        self._list = self._name + b".names"
        self.is_inside_dest = dest.is_dir() and self._must_be_inside()
        self.fd = -1
        self._finished = False

    def __enter__(self) -> StagingDirectory:
        self._parent_fd = os.open(
            self._dest if self.is_inside_dest else self._dest.parent, _OPEN_PARENT_FLAGS
        )
        try:
            if not self.is_inside_dest or not _exists(self._name, self._parent_fd):
                # Check before anything is created. With a leftover, its moved names are removed
                # first.
                self._check_dest_empty()
            self.fd = self._claim()
            self._check_dest_empty()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.fd >= 0:
                if self.is_inside_dest or not self._finished:
                    self._discard()
                os.close(self.fd)
        finally:
            os.close(self._parent_fd)

    def finish(self) -> None:
        """Move the content to `dest`.

        Raises:
            Invalid: "not_empty", if `dest` is not an empty directory.
        """
        if self.is_inside_dest:
            self._move_up()
            return
        try:
            os.rename(
                self._name, self._dest.name, src_dir_fd=self._parent_fd, dst_dir_fd=self._parent_fd
            )
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise self._not_empty_error() from error
            raise
        self._finished = True
        failpoint("stage.renamed")

    def remove_leftover(self) -> None:
        """Remove the staging directory of a killed process, and the names that it moved up.

        Raises:
            Conflict: "restore_running" if a process uses the staging directory.
        """
        self._parent_fd = os.open(
            self._dest if self.is_inside_dest else self._dest.parent, _OPEN_PARENT_FLAGS
        )
        try:
            self._remove_leftover()
        finally:
            os.close(self._parent_fd)

    def _must_be_inside(self) -> bool:
        dest, parent = self._dest, self._dest.parent
        if os.path.lexists(os.fsencode(dest) + b"/" + self._name):
            return True
        return mount_key(dest) != mount_key(parent) or not os.access(parent, os.W_OK | os.X_OK)

    def _claim(self) -> int:
        """Create and lock the directory; a leftover of a dead process is removed first."""
        for _ in range(_CLAIM_ATTEMPTS):
            try:
                os.mkdir(self._name, 0o700, dir_fd=self._parent_fd)
            except FileExistsError:
                self._remove_leftover()
                continue
            try:
                fd = os.open(self._name, OPEN_DIR_FLAGS, dir_fd=self._parent_fd)
            except FileNotFoundError:  # another process removed it as a leftover
                continue
            if _lock(fd) and self._is_named(fd):
                clear_acls(fd)
                return fd
            os.close(fd)  # another process took it between the two calls
        raise self._busy_error()

    def _remove_leftover(self) -> None:
        try:
            fd = os.open(self._name, OPEN_DIR_FLAGS, dir_fd=self._parent_fd)
        except FileNotFoundError:
            return
        except OSError:
            remove_tree(self._parent_fd, self._name)  # no directory, so not our leftover
            return
        try:
            if not _lock(fd):
                raise self._busy_error()
            if self._is_named(fd):
                self._discard()
        finally:
            os.close(fd)

    def _is_named(self, fd: int) -> bool:
        try:
            now = os.stat(self._name, dir_fd=self._parent_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(now, os.fstat(fd))

    def _check_dest_empty(self) -> None:
        try:
            names = set(os.listdir(os.fsencode(self._dest)))
        except FileNotFoundError:
            return
        except NotADirectoryError as error:
            raise self._not_empty_error() from error
        if names - {self._name}:
            raise self._not_empty_error()

    def _discard(self) -> None:
        """Undo an unfinished move, and remove the staging directory."""
        if self.is_inside_dest:
            for name in self._read_names():
                if not _exists(self._name + b"/" + name, self._parent_fd):
                    remove_tree(self._parent_fd, name)
        remove_tree(self._parent_fd, self._name)
        remove_tree(self._parent_fd, self._list)

    def _read_names(self) -> list[bytes]:
        try:
            fd = os.open(self._list, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._parent_fd)
        except FileNotFoundError:
            return []
        with open(fd, "rb") as file, contextlib.suppress(OrtetError):
            return decode(list[bytes], file.read())
        return []  # incomplete: no name was moved yet

    def _move_up(self) -> None:
        self._check_dest_empty()
        names = [os.fsencode(name) for name in os.listdir(self.fd)]
        fd = os.open(
            self._list, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._parent_fd
        )
        with open(fd, "wb") as file:
            file.write(encode(names))
        for name in names:
            if _exists(name, self._parent_fd):
                raise self._not_empty_error()
            with writable_for_rename(self.fd, name):
                os.rename(name, name, src_dir_fd=self.fd, dst_dir_fd=self._parent_fd)
            failpoint("stage.moved")
        remove_tree(self._parent_fd, self._list)

    def _not_empty_error(self) -> Invalid:
        return Invalid(
            "not_empty", f"{self._dest} is not an empty directory: empty it, or give a new place"
        )

    def _busy_error(self) -> Conflict:
        return Conflict(
            "restore_running", f"another process is writing {self._dest}: wait until it has ended"
        )


@contextlib.contextmanager
def make_parents(dest: Path) -> Iterator[None]:
    """Create the missing directories above `dest`, and remove them again after an error."""
    missing = []
    above = dest.parent
    while not above.exists():
        missing.append(above)
        above = above.parent
    created = []
    try:
        for path in reversed(missing):
            path.mkdir()
            created.append(path)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in reversed(created):
                path.rmdir()
        raise


def mount_key(place: Path) -> int:
    """Return an id that differs between mounts, also between two mounts of one file system."""
    fd = os.open(place, _OPEN_PARENT_FLAGS)
    try:
        mount_id = _mount_id(fd)
        return os.fstat(fd).st_dev if mount_id is None else mount_id
    finally:
        os.close(fd)


def is_overlay(fd: int) -> bool:
    """Return True if the directory is, or may be, on an overlay mount.

    An overlay refuses to rename directories of a lower layer.
    """
    wanted = _mount_id(fd)
    if wanted is None:
        return False
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        fields = line.split()
        if int(fields[0]) == wanted:
            return fields[fields.index("-", 6) + 1] == "overlay"
    return True  # a mount of another namespace, seen through /proc: probably of a machine


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


def clear_acls(fd: int) -> None:
    """Remove the ACLs and the set-group-id bit, which new files would inherit."""
    for name in _ACLS:
        with contextlib.suppress(OSError, AttributeError):
            os.removexattr(fd, name)
    os.fchmod(fd, 0o700)


def _exists(name: bytes, parent_fd: int) -> bool:
    try:
        os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


# Writes a whole image into a new directory, which appears complete or not at all.


ABANDONED_DIRECTORY = "restores"
"""In the local part of a store: one file for each restore into a new directory, while it runs."""


@contextlib.contextmanager
def recorded_restore(local: Path, dest: Path) -> Iterator[None]:
    """Record that this process writes to `dest`, so that `remove_abandoned` finds what it leaves.

    A store that cannot be written is not told.
    """
    place = local / ABANDONED_DIRECTORY
    file = place / checksum(os.fsencode(dest)).hex()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            place.mkdir(exist_ok=True)
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, fd)
            if _lock(fd):
                os.truncate(fd, 0)
                os.write(fd, os.fsencode(dest))
                stack.callback(file.unlink, missing_ok=True)
        yield


def remove_abandoned(local: Path) -> None:
    """Remove the staging directories of restores whose process was killed."""
    place = local / ABANDONED_DIRECTORY
    for file in place.iterdir() if place.is_dir() else ():
        with contextlib.suppress(OSError, OrtetError), file.open("rb") as record:
            if _lock(record.fileno()):
                dest = Path(os.fsdecode(record.read()))
                if dest.is_absolute():
                    StagingDirectory(dest).remove_leftover()
                file.unlink(missing_ok=True)


def checkout_image(
    objects: ObjectStore,
    trees: Trees,
    image: Image,
    dest: Path,
    *,
    index: StatIndex | None = None,
    source: tuple[Path, StatIndex] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write the workspace of `image` to `dest`.

    A failure leaves nothing. After kill -9 at most a `.ortet.stage.*` is left, which the next call
    for the same place removes, and `remove_abandoned` if the call was recorded.

    Args:
        dest: A path that does not exist, or an empty directory.
        index: A new index; all written files are recorded in it.
        source: A live directory with its index. Unchanged files are cloned from it if possible.
        progress: Called with the number of written entries.
    """
    dest = Path(os.path.realpath(dest))
    writer = EntryWriter(objects)
    items = [TreeItem(path, entry, path) for path, entry in walk_image(trees, image)]
    groups = hardlink_groups(objects, image)
    try:
        with make_parents(dest), contextlib.ExitStack() as stack:
            stage = stack.enter_context(StagingDirectory(dest))
            cloner = stack.enter_context(ReflinkCloner(*source)) if source else None
            written = write_tree(
                objects, stage.fd, items, groups, writer=writer, cloner=cloner, progress=progress
            )
            failpoint("materialise.built")
            stage.finish()
        written = _restat_moved(dest, written, inside=stage.is_inside_dest, writer=writer)
    except OSError as error:
        raise translate_os_error(error, f"cannot write {dest}") from error
    if index is not None:
        for item, stat in written:
            index.record(item.path, stat, item.entry)
    losses = [*dict.fromkeys(writer.losses), *service_losses(objects, image, "folder")]
    return Report(written=len(written), losses=losses)


def walk_image(trees: Trees, image: Image) -> Iterator[tuple[bytes, TreeEntry]]:
    """Yield the root as b"" and everything below it; each directory comes before its content."""
    if not image.root.is_dir:
        raise Corrupt("bad_image", "the image's root is no directory: run `ortet verify`")
    yield b"", image.root
    yield from trees.walk(image.root)


def hardlink_groups(objects: ObjectStore, image: Image) -> list[list[bytes]]:
    """Return the hardlink groups of an image."""
    return decode(list[list[bytes]], objects.get(Oid(image.links))) if image.links else []


def _restat_moved(
    dest: Path, written: list[WrittenItem], *, inside: bool, writer: EntryWriter
) -> list[WrittenItem]:
    """Return the written items, with a new stat for those that the last step moved.

    The root comes last.
    """
    *rest, (root, _) = written
    if inside:  # it existed before, and the moves changed its mtime
        with open_directory(dest) as fd:
            rest = [_restat(fd, one) if b"/" not in one.item.path else one for one in rest]
            writer.apply_metadata(OpenTarget(fd), root.entry, path=b"")
    return [*rest, WrittenItem(root, os.stat(dest, follow_symlinks=False))]


def _restat(parent_fd: int, written: WrittenItem) -> WrittenItem:
    return WrittenItem(
        written.item, os.stat(written.item.path, dir_fd=parent_fd, follow_symlinks=False)
    )
