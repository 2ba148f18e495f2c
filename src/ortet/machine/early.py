"""Forks that begin before they are asked for: while what they are made from is being stored."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from ortet.errors import Conflict
from ortet.machine.abc import Loss, Machine, Spec
from ortet.machine.coming import Coming
from ortet.machine.home import Standing


class Begin(Protocol):
    """Begins machines that stand so, from a dump; all or none."""

    def __call__(
        self, specs: Sequence[Spec], standing: Standing, processes: bytes = b""
    ) -> Coming: ...


class Early:
    """Those of one dump; `processes` is what the store has of it, when it has it."""

    def __init__(self, specs: Sequence[Spec], coming: Coming, losses: list[Loss]) -> None:
        self.processes = b""
        self.losses = losses
        self._homes = [spec.home for spec in specs]
        self._coming = coming
        pool = ThreadPoolExecutor(1, "ortet-heirs")
        self._woken = pool.submit(coming.wake)
        pool.shutdown(wait=False)

    def are(self, specs: Sequence[Spec]) -> bool:
        return self._homes == [spec.home for spec in specs]

    def finish(self, processes: bytes) -> list[Machine]:
        """They, as of these processes; when they could not begin, none is left."""
        try:
            self._woken.result()
            if self.processes != processes:
                raise Conflict("fork_moved", "another commit came between: fork again")
        except BaseException:
            self._coming.cancel()
            raise
        return self._coming.finish()

    def cancel(self) -> None:
        """Nobody wants them."""
        self._woken.exception()  # which waits
        self._coming.cancel()
        for home in self._homes:
            with suppress(OSError):
                home.rmdir()
