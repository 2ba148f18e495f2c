"""Who may write to a store that others share from other hosts: nobody is locked out, but what was
written beside a sweep is refused. See backends/sweep_epoch.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ortet.backends.sweep_epoch import Epochs
from ortet.errors import Unsupported
from ortet.objects.gc.lock import Gate


class RemoteGate(Gate):
    """A gate without locks. Sweeps run where the store is."""

    def __init__(self, local: Path, epochs: Epochs) -> None:
        self._epochs = epochs
        self._begun = 0
        super().__init__(local)

    def _start(self) -> None:
        self._mutex = threading.Lock()
        self._depth = 0
        self._inside: dict[int, int] = {}
        self._files = None

    def after_fork(self) -> None:
        super().after_fork()
        self._epochs.rely(None)  # whatever its parent was about to write

    def enter(self) -> int:
        epoch = super().enter()
        self._epochs.rely(epoch)
        return epoch

    def leave(self, pid: int) -> None:
        super().leave(pid)
        if threading.get_ident() not in self._inside:
            self._epochs.rely(None)

    def _take(self) -> None:
        self._begun = self._epochs.fresh()

    def _give(self) -> None: ...

    def epoch(self) -> int:
        return self._begun if self._depth else self._epochs.now()

    def asked(self) -> int:
        """The epoch at this moment, from where the store is."""
        return self._epochs.ask()

    @contextmanager
    def exclusive(self, patience: float) -> Iterator[None]:
        del patience
        raise _elsewhere("this")
        yield

    def bump(self) -> int:
        raise _elsewhere("this")

    @contextmanager
    def busy(self, *, alone: bool) -> Iterator[None]:
        if alone:
            raise _elsewhere("this")
        yield


def _elsewhere(act: str) -> Unsupported:
    return Unsupported(
        "remote_store",
        f"{act} must keep out the writers of all hosts, which only the server can: do it there",
    )


def refuse(act: str) -> None:
    """Say no before anything is done."""
    raise _elsewhere(act)
