"""A Bucket that stores objects on the local disk first and uploads them in the background.

A put is durable on this host when it returns. Uploads continue after a crash. Until an object is
uploaded, other hosts cannot read it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ortet.backends.base import Bucket, BucketEntry, UploadBacklog
from ortet.backends.errors import key_exists
from ortet.backends.local.bucket import FileBucket
from ortet.backends.object_storage.pending_uploads import PendingUploadTable
from ortet.errors import Conflict, Corrupt, NotFound, OrtetError, Unavailable

_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.5, 30.0
"""The pause after a failed upload. It doubles with each failure."""
_POLL_SECONDS = 0.1
"""The interval in which another process may have uploaded something."""
_QUIET_SECONDS = 1.0
"""Seconds without new objects after which the announcement is cleared.

Another commit may come soon, so it is not cleared at once.
"""
_ANNOUNCE_DELAY_SECONDS = 0.2
"""Commits that are uploaded within this time after the commit are not announced."""
_IDLE_POLL_SECONDS = 5.0
"""The interval of checks for objects that a dead process has left."""
_STOP_TIMEOUT_SECONDS = 10.0
_PIECE = 8 << 20
_ANNOUNCED, _CLEARING = b"told", b"ending"


class QueuedBucket(Bucket):
    """A queue in `directory` in front of the bucket `remote`.

    Any process that opens the directory continues its uploads, one process at a time.

    A key is taken if it exists locally or remotely. If the remote bucket is unreachable, only the
    local check applies. Callers whose keys are unique can pass `check_remote=False`. If another
    host has put a different object under the same key, nothing is overwritten; `backlog().trouble`
    reports it.

    Other hosts learn through `pending_uploads` that objects are waiting, before the objects exist.
    While `direct` is true, puts go to the remote bucket at once.
    """

    def __init__(
        self,
        remote: Bucket,
        directory: Path,
        *,
        check_remote: bool = True,
        pending_uploads: PendingUploadTable | None = None,
    ) -> None:
        self.direct = False
        self._remote = remote
        self._check_remote = check_remote
        self._pending_uploads = pending_uploads
        self._is_announced = False
        self._local = FileBucket(directory / "objects")
        self._directory = directory
        self._announced_file = directory / "told"
        self._commits_file = directory / "commits"
        self._announced_commits = b""  # announced to other hosts
        self._has_unannounced = False  # `_announcer` has work to do
        self._announcer: threading.Thread | None = None
        self._wake = threading.Event()
        self._retry_now = threading.Event()  # a caller waits for the upload
        self._stop_requested = threading.Event()
        self._stopped = threading.Event()  # all resources that it needs may be closed
        self._last_error = ""
        self._rejected_keys: dict[str, str] = {}
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._thread_lock = threading.Lock()
        if self._announced_file.exists() or self.backlog().objects:
            self._start()

    def put(self, key: str, data: bytes) -> None:
        if self.direct:
            self._remote.put(key, data)
            return
        with self._prepare_put(key):
            try:
                self._local.put(key, data)
            except Unavailable:  # on a full disk, upload directly
                self._remote.put(key, data)
        self._start()

    def put_file(self, key: str, path: Path) -> None:
        if self.direct:
            self._remote.put_file(key, path)
            return
        with self._prepare_put(key):
            try:
                self._local.put_file(key, path)
            except Unavailable:
                self._remote.put_file(key, path)
        self._start()

    @contextmanager
    def _prepare_put(self, key: str) -> Iterator[None]:
        # Nothing leaves the queue during the check: what is not remote yet is still local.
        with _file_lock(self._directory / "leaving", fcntl.LOCK_SH):
            if self._check_remote and self._is_in_remote(key):
                raise key_exists(key)
            self._announce()
            yield

    def _announce(self) -> None:
        # A note of an earlier process may be older than a power cut, so only our own is trusted.
        if self._pending_uploads is not None and not (
            self._is_announced and _read(self._announced_file) == _ANNOUNCED
        ):
            self._pending_uploads.announce()
            self._announced_file.write_bytes(_ANNOUNCED)
            self._is_announced = True

    def record_commits(self, commits: Sequence[str]) -> None:
        """Record commits among the queued objects, and announce them to other hosts soon."""
        with suppress(OSError), open(self._commits_file, "a", encoding="ascii") as file:
            file.writelines(f"{commit}\n" for commit in commits)
        self._wake.set()
        self._announce_soon()

    def _announce_soon(self) -> None:
        """Start a thread that announces the queued commits to other hosts.

        The upload thread would be too late: a failing upload takes half a minute to end.
        """
        if self._pending_uploads is None:
            return
        with self._thread_lock:
            self._has_unannounced = True
            if self._announcer is None or not self._announcer.is_alive():
                self._announcer = threading.Thread(
                    target=self._run_announcer, name="ortet-owing", daemon=True
                )
                self._announcer.start()

    def _run_announcer(self) -> None:
        while True:
            with self._thread_lock:
                if not self._has_unannounced or self._stop_requested.is_set():
                    self._announcer = None
                    return
                self._has_unannounced = False
            if not self._stop_requested.wait(_ANNOUNCE_DELAY_SECONDS) and any(
                True for _ in self._local.list()
            ):
                with suppress(OrtetError, OSError):  # the next upload pass starts it again
                    self._announce_commits()

    def _announce_commits(self) -> None:
        # Under the lock, no other process clears the announcement meanwhile.
        with _file_lock(self._directory / "leaving", fcntl.LOCK_SH):
            commits = _read(self._commits_file)
            if (
                self._pending_uploads is not None
                and commits != self._announced_commits
                and _read(self._announced_file) == _ANNOUNCED
            ):
                self._pending_uploads.announce(commits.decode("ascii").split())
                self._announced_commits = commits

    def _clear_announcement(self) -> None:
        """Clear the announcement if the queue is empty."""
        if (
            self._pending_uploads is None
            or self._stopped.is_set()
            or not self._announced_file.exists()
        ):
            return
        with _file_lock(self._directory / "leaving", fcntl.LOCK_EX):
            if self._announced_file.exists() and not any(True for _ in self._local.list()):
                self._announced_file.write_bytes(_CLEARING)
                self._pending_uploads.clear()
                self._announced_commits = b""
                self._commits_file.unlink(missing_ok=True)
                self._announced_file.unlink()

    def _is_in_remote(self, key: str) -> bool:
        try:
            self._remote.size(key)
        except (NotFound, Unavailable):
            return False
        return True

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        with suppress(NotFound):
            return self._local.get(key, start, length)
        return self._remote.get(key, start, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with suppress(NotFound):
            return self._local.get_ranges(key, ranges)
        return self._remote.get_ranges(key, ranges)

    def get_all(self, keys: Sequence[str]) -> dict[str, bytes]:
        near = self._local.get_all(keys)
        return near | self._remote.get_all([key for key in keys if key not in near])

    def put_all(self, objects: Mapping[str, bytes]) -> set[str]:
        return self._remote.put_all(objects) if self.direct else super().put_all(objects)

    def size(self, key: str) -> int:
        with suppress(NotFound):
            return self._local.size(key)
        return self._remote.size(key)

    def list(self, prefix: str = "") -> Iterator[BucketEntry]:
        # In this order, an object that is uploaded meanwhile is seen twice rather than never.
        near = {found.key: found for found in self._local.list(prefix)}
        near.update((found.key, found) for found in self._remote.list(prefix))
        yield from (near[key] for key in sorted(near))

    def delete(self, keys: Sequence[str]) -> None:
        # an upload would bring it back
        with _file_lock(self._directory / "uploading", fcntl.LOCK_EX):
            self._local.delete(keys)
            self._remote.delete(keys)
        for key in keys:
            self._rejected_keys.pop(key, None)

    def local_path(self, key: str) -> Path | None:
        return self._local.local_path(key) or self._remote.local_path(key)

    def close(self) -> None:
        self.stop()
        self._remote.close()

    def stop(self) -> None:
        """Stop uploading. The remaining objects are durable; the next process uploads them."""
        self._stop_requested.set()
        self._retry_now.set()
        self._wake.set()
        with self._thread_lock:
            teller = self._announcer
        for thread in (teller, self._thread):
            if thread is not None and self._pid == os.getpid():
                thread.join(_STOP_TIMEOUT_SECONDS)  # an upload that takes longer will be repeated
        self._stopped.set()

    def backlog(self) -> UploadBacklog:
        """Return the objects that other hosts cannot read yet."""
        waiting = list(self._local.list())
        trouble = next(iter(self._rejected_keys.values()), self._last_error) if waiting else ""
        return UploadBacklog(len(waiting), sum(found.size for found in waiting), trouble)

    def wait_uploaded(self, timeout: float = 60.0) -> None:
        """Wait until all objects put so far are in the remote bucket.

        Raise Unavailable("not_uploaded_yet") on timeout. Nothing is lost then, and uploads go on.
        """
        keys = {found.key for found in self._local.list()}
        if keys:
            self._retry_now.set()
            self._start()
        deadline = time.monotonic() + timeout
        while keys:
            keys = {key for key in keys if self._local.local_path(key) is not None}
            if keys and (time.monotonic() > deadline or keys <= self._rejected_keys.keys()):
                why = self.backlog().trouble or "it takes its time"
                raise Unavailable(
                    "not_uploaded_yet",
                    f"{len(keys)} objects are on this host only ({why}): they are kept, and go on "
                    "their way as soon as they can; repeat the call then",
                )
            self._wake.set()
            time.sleep(_POLL_SECONDS / 4)

    def _start(self) -> None:
        self._wake.set()
        with self._thread_lock:
            if self._thread is None or not self._thread.is_alive() or self._pid != os.getpid():
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._run, name="ortet-upload", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        wait = _FIRST_PAUSE_SECONDS
        while not self._stop_requested.is_set():
            self._wake.clear()
            if self._upload_all():
                wait = _FIRST_PAUSE_SECONDS
                if not self._wake.wait(_QUIET_SECONDS) and self._try_clear_announcement():
                    self._wake.wait(_IDLE_POLL_SECONDS)
            else:
                self._retry_now.wait(wait)
                self._retry_now.clear()
                wait = min(wait * 2, _MAX_PAUSE_SECONDS)
        self._try_clear_announcement()

    def _try_clear_announcement(self) -> bool:
        """Clear the announcement if the queue is empty. Return False if that failed."""
        try:
            self._clear_announcement()
        except (OrtetError, OSError) as error:
            self._last_error = str(error)
            return False
        return True

    def _upload_all(self) -> bool:
        """Upload the queued objects. Return True if all that can be uploaded are."""
        try:
            for entry in list(self._local.list()):
                if self._stop_requested.is_set():
                    return True
                if entry.key not in self._rejected_keys:
                    if _read(self._commits_file) != self._announced_commits:
                        self._announce_soon()
                    self._upload(entry.key)
                    self._last_error = ""
        except BlockingIOError:  # another process is uploading
            return False
        except (OrtetError, OSError) as error:
            self._last_error = str(error)
            return False
        return True

    def _upload(self, key: str) -> None:
        with _file_lock(self._directory / "uploading", fcntl.LOCK_EX | fcntl.LOCK_NB):
            path = self._local.local_path(key)
            if path is None:  # another process uploaded it
                return
            copy = self._directory / "uploading.part"  # the remote bucket consumes the file
            try:
                _copy(path, copy)
                self._remote.put_file(key, copy)
            except Conflict as error:
                if not self._is_same(key):
                    self._rejected_keys[key] = f"{error}: another host has put something else there"
                    return
            finally:
                copy.unlink(missing_ok=True)
            with _file_lock(self._directory / "leaving", fcntl.LOCK_EX):
                # not synced: if it comes back, it is found to be uploaded
                self._local.delete([key], sync=False)

    def _is_same(self, key: str) -> bool:
        """Return True if the remote object is equal, for example uploaded just before a crash."""
        size = self._local.size(key)
        if self._remote.size(key) != size:
            return False
        try:
            return all(
                self._local.get(key, at, _PIECE) == self._remote.get(key, at, _PIECE)
                for at in range(0, size, _PIECE)
            )
        except (NotFound, Corrupt):
            return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


@contextmanager
def _file_lock(path: Path, how: int) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        # unlock explicitly: a forked child may share the descriptor and keep the lock
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _copy(path: Path, copy: Path) -> None:
    copy.unlink(missing_ok=True)
    try:
        os.link(path, copy)
    except OSError:  # a file system without hard links
        import shutil  # noqa: PLC0415 - hardly ever needed

        shutil.copyfile(path, copy)
