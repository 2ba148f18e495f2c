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

from ortet.backends.base import Bucket, Listing, Queued
from ortet.backends.errors import exists
from ortet.backends.local.bucket import FileBucket
from ortet.backends.object_storage.pending_uploads import Owing
from ortet.errors import Conflict, Corrupt, NotFound, OrtetError, Unavailable

_FIRST, _LONGEST = 0.5, 30.0
"""Seconds between attempts while the far one is not well, doubled each time."""
_LOOK = 0.1
"""Seconds after which another process may have uploaded something."""
_REST = 1.0
"""Seconds without anything new after which nothing is owed: the next commit may be near."""
_SOON = 0.2
"""Seconds after a commit until other hosts are told of it, unless it is uploaded by then."""
_IDLE = 5.0
"""Seconds after which a process that died may have left something."""
_PARTING = 10.0
_PIECE = 8 << 20
_TOLD, _ENDING = b"told", b"ending"


class QueuedBucket(Bucket):
    """`directory` is the queue: whoever opens it goes on with what is in it, one process at a time.

    A key is taken if it is taken here or there; while the far bucket cannot be asked, here. Who
    makes keys that are never made twice need not `ask`. That another host took one meanwhile shows
    itself in `queued().trouble`, and nothing is overwritten. Other hosts are told by `owing` that
    there is something, before it is. While it is `direct`, what is put goes to the far one at once.
    """

    def __init__(
        self, far: Bucket, directory: Path, *, ask: bool = True, owing: Owing | None = None
    ) -> None:
        self.direct = False
        self._far = far
        self._ask = ask
        self._owing = owing
        self._told = False
        self._near = FileBucket(directory / "objects")
        self._directory = directory
        self._note = directory / "told"
        self._commits = directory / "commits"
        self._named = b""  # of these others were told
        self._unnamed = False  # there are others, and `_teller` runs
        self._teller: threading.Thread | None = None
        self._wake = threading.Event()
        self._hurry = threading.Event()  # somebody waits for it
        self._over = threading.Event()
        self._left = threading.Event()  # by all else that it needs
        self._trouble = ""
        self._refused: dict[str, str] = {}
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._starting = threading.Lock()
        if self._note.exists() or self.queued().objects:
            self._start()

    def put(self, key: str, data: bytes) -> None:
        if self.direct:
            self._far.put(key, data)
            return
        with self._putting(key):
            try:
                self._near.put(key, data)
            except Unavailable:  # a full disk makes it slower, no more
                self._far.put(key, data)
        self._start()

    def put_file(self, key: str, path: Path) -> None:
        if self.direct:
            self._far.put_file(key, path)
            return
        with self._putting(key):
            try:
                self._near.put_file(key, path)
            except Unavailable:
                self._far.put_file(key, path)
        self._start()

    @contextmanager
    def _putting(self, key: str) -> Iterator[None]:
        # Nothing leaves the queue meanwhile: what is not there yet is still here.
        with _locked(self._directory / "leaving", fcntl.LOCK_SH):
            if self._ask and self._is_there(key):
                raise exists(key)
            self._tell()
            yield

    def _tell(self) -> None:
        # A note of a process before us may be older than a power cut: only ours is believed.
        if self._owing is not None and not (self._told and _read(self._note) == _TOLD):
            self._owing.tell()
            self._note.write_bytes(_TOLD)
            self._told = True

    def note(self, commits: Sequence[str]) -> None:
        """That these are among what was put: others are told which, soon."""
        with suppress(OSError), open(self._commits, "a", encoding="ascii") as file:
            file.writelines(f"{commit}\n" for commit in commits)
        self._wake.set()
        self._tell_soon()

    def _tell_soon(self) -> None:
        """Have a thread tell other hosts which commits wait.

        The thread that uploads is too late for it: a failing upload takes half a minute to end.
        """
        if self._owing is None:
            return
        with self._starting:
            self._unnamed = True
            if self._teller is None or not self._teller.is_alive():
                self._teller = threading.Thread(
                    target=self._run_teller, name="ortet-owing", daemon=True
                )
                self._teller.start()

    def _run_teller(self) -> None:
        while True:
            with self._starting:
                if not self._unnamed or self._over.is_set():
                    self._teller = None
                    return
                self._unnamed = False
            if not self._over.wait(_SOON) and any(True for _ in self._near.list()):
                with suppress(OrtetError, OSError):  # the next round of uploads begins it again
                    self._tell_commits()

    def _tell_commits(self) -> None:
        # Under the lock, no process takes back meanwhile what this one tells.
        with _locked(self._directory / "leaving", fcntl.LOCK_SH):
            found = _read(self._commits)
            if self._owing is not None and found != self._named and _read(self._note) == _TOLD:
                self._owing.tell(found.decode("ascii").split())
                self._named = found

    def _end(self) -> None:
        """Take back what was told, once nothing is left."""
        if self._owing is None or self._left.is_set() or not self._note.exists():
            return
        with _locked(self._directory / "leaving", fcntl.LOCK_EX):
            if self._note.exists() and not any(True for _ in self._near.list()):
                self._note.write_bytes(_ENDING)
                self._owing.done()
                self._named = b""
                self._commits.unlink(missing_ok=True)
                self._note.unlink()

    def _is_there(self, key: str) -> bool:
        try:
            self._far.size(key)
        except (NotFound, Unavailable):
            return False
        return True

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        with suppress(NotFound):
            return self._near.get(key, start, length)
        return self._far.get(key, start, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with suppress(NotFound):
            return self._near.get_ranges(key, ranges)
        return self._far.get_ranges(key, ranges)

    def get_all(self, keys: Sequence[str]) -> dict[str, bytes]:
        near = self._near.get_all(keys)
        return near | self._far.get_all([key for key in keys if key not in near])

    def put_all(self, objects: Mapping[str, bytes]) -> set[str]:
        return self._far.put_all(objects) if self.direct else super().put_all(objects)

    def size(self, key: str) -> int:
        with suppress(NotFound):
            return self._near.size(key)
        return self._far.size(key)

    def list(self, prefix: str = "") -> Iterator[Listing]:
        # In this order: what goes there in between is seen twice rather than never.
        near = {found.key: found for found in self._near.list(prefix)}
        near.update((found.key, found) for found in self._far.list(prefix))
        yield from (near[key] for key in sorted(near))

    def delete(self, keys: Sequence[str]) -> None:
        with _locked(self._directory / "uploading", fcntl.LOCK_EX):  # which would bring it back
            self._near.delete(keys)
            self._far.delete(keys)
        for key in keys:
            self._refused.pop(key, None)

    def local_path(self, key: str) -> Path | None:
        return self._near.local_path(key) or self._far.local_path(key)

    def close(self) -> None:
        self.stop()
        self._far.close()

    def stop(self) -> None:
        """Upload no more; what is left is durable, and for whoever opens it next."""
        self._over.set()
        self._hurry.set()
        self._wake.set()
        with self._starting:
            teller = self._teller
        for thread in (teller, self._thread):
            if thread is not None and self._pid == os.getpid():
                thread.join(_PARTING)  # its upload may take longer: it is done again
        self._left.set()

    # the queue

    def queued(self) -> Queued:
        """What other hosts do not have yet."""
        waiting = list(self._near.list())
        trouble = next(iter(self._refused.values()), self._trouble) if waiting else ""
        return Queued(len(waiting), sum(found.size for found in waiting), trouble)

    def settle(self, patience: float = 60.0) -> None:
        """Wait until all that was put before is in the far bucket; Unavailable("not_uploaded_yet"),
        with nothing lost, when it is not by then."""
        keys = {found.key for found in self._near.list()}
        if keys:
            self._hurry.set()
            self._start()
        deadline = time.monotonic() + patience
        while keys:
            keys = {key for key in keys if self._near.local_path(key) is not None}
            if keys and (time.monotonic() > deadline or keys <= self._refused.keys()):
                why = self.queued().trouble or "it takes its time"
                raise Unavailable(
                    "not_uploaded_yet",
                    f"{len(keys)} objects are on this host only ({why}): they are kept, and go on "
                    "their way as soon as they can; repeat the call then",
                )
            self._wake.set()
            time.sleep(_LOOK / 4)

    def _start(self) -> None:
        self._wake.set()
        with self._starting:
            if self._thread is None or not self._thread.is_alive() or self._pid != os.getpid():
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._run, name="ortet-upload", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        wait = _FIRST
        while not self._over.is_set():
            self._wake.clear()
            if self._round():
                wait = _FIRST
                if not self._wake.wait(_REST) and self._ended():
                    self._wake.wait(_IDLE)
            else:
                self._hurry.wait(wait)
                self._hurry.clear()
                wait = min(wait * 2, _LONGEST)
        self._ended()

    def _ended(self) -> bool:
        """Whether nobody believes any more that something is owed which is not."""
        try:
            self._end()
        except (OrtetError, OSError) as error:
            self._trouble = str(error)
            return False
        return True

    def _round(self) -> bool:
        """Upload what waits; whether all that can go is gone."""
        try:
            for found in list(self._near.list()):
                if self._over.is_set():
                    return True
                if found.key not in self._refused:
                    if _read(self._commits) != self._named:
                        self._tell_soon()
                    self._upload(found.key)
                    self._trouble = ""
        except BlockingIOError:  # another process is at it
            return False
        except (OrtetError, OSError) as error:
            self._trouble = str(error)
            return False
        return True

    def _upload(self, key: str) -> None:
        with _locked(self._directory / "uploading", fcntl.LOCK_EX | fcntl.LOCK_NB):
            path = self._near.local_path(key)
            if path is None:  # another process did it
                return
            copy = self._directory / "uploading.part"  # the far bucket consumes what it is given
            try:
                _copy(path, copy)
                self._far.put_file(key, copy)
            except Conflict as error:
                if not self._is_same(key):
                    self._refused[key] = f"{error}: another host has put something else there"
                    return
            finally:
                copy.unlink(missing_ok=True)
            with _locked(self._directory / "leaving", fcntl.LOCK_EX):
                self._near.delete([key], sync=False)  # one that comes back is there already

    def _is_same(self, key: str) -> bool:
        """One that was uploaded before a crash, and not taken off the queue."""
        size = self._near.size(key)
        if self._far.size(key) != size:
            return False
        try:
            return all(
                self._near.get(key, at, _PIECE) == self._far.get(key, at, _PIECE)
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
def _locked(path: Path, how: int) -> Iterator[None]:
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
