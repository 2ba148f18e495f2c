"""A bucket in front of one that is far: what is put is durable on this disk at once, and goes there
in the background, also after a crash. Until then other hosts do not have it."""

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
"""Seconds between attempts while the far one is not well, doubled each time."""
_POLL_SECONDS = 0.1
"""Seconds after which another process may have uploaded something."""
_QUIET_SECONDS = 1.0
"""Seconds without anything new after which nothing is owed: the next commit may be near."""
_ANNOUNCE_DELAY_SECONDS = 0.2
"""Seconds after a commit until other hosts are told of it, unless it is uploaded by then."""
_IDLE_POLL_SECONDS = 5.0
"""Seconds after which a process that died may have left something."""
_STOP_TIMEOUT_SECONDS = 10.0
_PIECE = 8 << 20
_ANNOUNCED, _CLEARING = b"told", b"ending"


class QueuedBucket(Bucket):
    """`directory` is the queue: whoever opens it goes on with what is in it, one process at a time.

    A key is taken if it is taken here or there; while the far bucket cannot be asked, here. Who
    makes keys that are never made twice need not `ask`. That another host took one meanwhile shows
    itself in `queued().trouble`, and nothing is overwritten. Other hosts are told by `owing` that
    there is something, before it is. While it is `direct`, what is put goes to the far one at once.
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
        self._announced_commits = b""  # of these others were told
        self._has_unannounced = False  # there are others, and `_teller` runs
        self._announcer: threading.Thread | None = None
        self._wake = threading.Event()
        self._retry_now = threading.Event()  # somebody waits for it
        self._stop_requested = threading.Event()
        self._stopped = threading.Event()  # by all else that it needs
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
            except Unavailable:  # a full disk makes it slower, no more
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
        # Nothing leaves the queue meanwhile: what is not there yet is still here.
        with _file_lock(self._directory / "leaving", fcntl.LOCK_SH):
            if self._check_remote and self._is_in_remote(key):
                raise key_exists(key)
            self._announce()
            yield

    def _announce(self) -> None:
        # A note of a process before us may be older than a power cut: only ours is believed.
        if self._pending_uploads is not None and not (
            self._is_announced and _read(self._announced_file) == _ANNOUNCED
        ):
            self._pending_uploads.announce()
            self._announced_file.write_bytes(_ANNOUNCED)
            self._is_announced = True

    def record_commits(self, commits: Sequence[str]) -> None:
        """That these are among what was put: others are told which, soon."""
        with suppress(OSError), open(self._commits_file, "a", encoding="ascii") as file:
            file.writelines(f"{commit}\n" for commit in commits)
        self._wake.set()
        self._announce_soon()

    def _announce_soon(self) -> None:
        """Have a thread tell other hosts which commits wait.

        The thread that uploads is too late for it: a failing upload takes half a minute to end.
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
                with suppress(OrtetError, OSError):  # the next round of uploads begins it again
                    self._announce_commits()

    def _announce_commits(self) -> None:
        # Under the lock, no process takes back meanwhile what this one tells.
        with _file_lock(self._directory / "leaving", fcntl.LOCK_SH):
            found = _read(self._commits_file)
            if (
                self._pending_uploads is not None
                and found != self._announced_commits
                and _read(self._announced_file) == _ANNOUNCED
            ):
                self._pending_uploads.announce(found.decode("ascii").split())
                self._announced_commits = found

    def _clear_announcement(self) -> None:
        """Take back what was told, once nothing is left."""
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
        # In this order: what goes there in between is seen twice rather than never.
        near = {found.key: found for found in self._local.list(prefix)}
        near.update((found.key, found) for found in self._remote.list(prefix))
        yield from (near[key] for key in sorted(near))

    def delete(self, keys: Sequence[str]) -> None:
        with _file_lock(self._directory / "uploading", fcntl.LOCK_EX):  # which would bring it back
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
        """Upload no more; what is left is durable, and for whoever opens it next."""
        self._stop_requested.set()
        self._retry_now.set()
        self._wake.set()
        with self._thread_lock:
            teller = self._announcer
        for thread in (teller, self._thread):
            if thread is not None and self._pid == os.getpid():
                thread.join(_STOP_TIMEOUT_SECONDS)  # its upload may take longer: it is done again
        self._stopped.set()

    # the queue

    def backlog(self) -> UploadBacklog:
        """What other hosts do not have yet."""
        waiting = list(self._local.list())
        trouble = next(iter(self._rejected_keys.values()), self._last_error) if waiting else ""
        return UploadBacklog(len(waiting), sum(found.size for found in waiting), trouble)

    def wait_uploaded(self, timeout: float = 60.0) -> None:
        """Wait until all that was put before is in the far bucket; Unavailable("not_uploaded_yet"),
        with nothing lost, when it is not by then."""
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
        """Whether nobody believes any more that something is owed which is not."""
        try:
            self._clear_announcement()
        except (OrtetError, OSError) as error:
            self._last_error = str(error)
            return False
        return True

    def _upload_all(self) -> bool:
        """Upload what waits; whether all that can go is gone."""
        try:
            for found in list(self._local.list()):
                if self._stop_requested.is_set():
                    return True
                if found.key not in self._rejected_keys:
                    if _read(self._commits_file) != self._announced_commits:
                        self._announce_soon()
                    self._upload(found.key)
                    self._last_error = ""
        except BlockingIOError:  # another process is at it
            return False
        except (OrtetError, OSError) as error:
            self._last_error = str(error)
            return False
        return True

    def _upload(self, key: str) -> None:
        with _file_lock(self._directory / "uploading", fcntl.LOCK_EX | fcntl.LOCK_NB):
            path = self._local.local_path(key)
            if path is None:  # another process did it
                return
            copy = self._directory / "uploading.part"  # the far bucket consumes what it is given
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
                self._local.delete([key], sync=False)  # one that comes back is there already

    def _is_same(self, key: str) -> bool:
        """One that was uploaded before a crash, and not taken off the queue."""
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
        fcntl.flock(fd, fcntl.LOCK_UN)  # by word: a child of fork(2) may still hold the descriptor
        os.close(fd)


def _copy(path: Path, copy: Path) -> None:
    copy.unlink(missing_ok=True)
    try:
        os.link(path, copy)
    except OSError:  # a file system without links
        import shutil  # noqa: PLC0415 - hardly ever needed

        shutil.copyfile(path, copy)
