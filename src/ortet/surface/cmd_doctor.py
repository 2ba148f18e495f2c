"""doctor: what this host can do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ortet.surface import render
from ortet.surface.call import Call, verb

if TYPE_CHECKING:
    from ortet.machine.abc import Capability


@verb()
def doctor(call: Call) -> None:
    """Say what this host can do, and for what it cannot, the one thing to change.

    Everything is tried for real. It needs no store and makes none.

    \b
    Example:
      ortet doctor
    """
    from ortet.config import store_path, store_url
    from ortet.machine.doctor import examine

    store = store_path(store_url(cwd=Path.cwd()))
    with call.progress("looking"):
        found = examine(store)
    data = {"store": str(store), "exists": (store / "FORMAT").exists(), "capabilities": found}
    call.emit(data, _lines(call, store, found))


def _lines(call: Call, store: Path, found: list[Capability]) -> Iterator[str]:
    made = "" if (store / "FORMAT").exists() else ", not made yet"
    yield f"store {render.safe(str(store))}{made}"
    width = max(len(line.name) for line in found)
    for line in found:
        mark = call.paint("yes", fg="green") if line.ok else call.paint("no ", fg="yellow")
        yield f"  {mark}  {line.name:<{width}}  {render.safe(line.detail)}".rstrip()
        if not line.ok and line.fix:
            yield f"       {'':<{width}}  -> {render.safe(line.fix)}"
