"""Forks of a live machine that begin before they are asked for: while what they are made from is
being stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, Protocol

from ortet.errors import Conflict, OrtetError
from ortet.machines.base import Loss, Machine, Spec
from ortet.machines.live.context import Dump, LiveGround
from ortet.machines.overlay.home import Standing
from ortet.machines.overlay.pending_machines import Coming


class Begin(Protocol):
    """Begins machines that stand so, from a dump; all or none."""

    def __call__(
        self, specs: Sequence[Spec], standing: Standing, processes: bytes = b""
    ) -> Coming: ...


class _Begun(NamedTuple):
    coming: Coming
    woken: Future[None]
    losses: list[Loss]


class Heirs:
    """Those of one machine. `announced` are the ones that will be asked for."""

    def __init__(self, ground: LiveGround, begin: Begin) -> None:
        self.announced: Sequence[Spec] = ()
        self._ground = ground
        self._begin = begin
        self._begun: _Begun | None = None
        self._processes = b""

    def announce(self, specs: Sequence[Spec]) -> None:
        """These, and no others: what was begun goes."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.woken.exception()  # which waits
            begun.coming.cancel()
            for spec in self.announced:
                with suppress(OSError):
                    spec.home.rmdir()
        self.announced = specs

    def begin(self, dump: Dump, copied: Callable[[], tuple[Standing, list[Loss]]]) -> None:
        """From a dump that nobody has stored yet; `copied` is what they stand on. When it fails,
        they are begun when they are asked for."""
        if not self.announced:
            return
        self.announce(self.announced)
        ground, key = self._ground, os.fsencode(dump.images.name)
        ground.at_hand[key] = dump
        try:
            with suppress(OrtetError), ground.bases.using():
                standing, losses = copied()
                coming = self._begin(self.announced, standing, key)
                pool = ThreadPoolExecutor(1, "ortet-heirs")
                self._begun = _Begun(coming, pool.submit(coming.wake), losses)
                pool.shutdown(wait=False)
        finally:
            del ground.at_hand[key]

    def stored(self, processes: bytes) -> None:
        """The dump is in the store now, as this."""
        self._processes = processes

    def take(self, specs: Sequence[Spec], processes: bytes) -> tuple[list[Machine], list[Loss]]:
        """Those that were begun, if it is these; when they could not begin, none is left."""
        if self._begun is None or [one.home for one in specs] != [
            one.home for one in self.announced
        ]:
            return [], []
        begun, self._begun = self._begun, None
        try:
            begun.woken.result()
            if self._processes != processes:
                raise Conflict("fork_moved", "another commit came between: fork again")
        except BaseException:
            begun.coming.cancel()
            raise
        return begun.coming.finish(), begun.losses
