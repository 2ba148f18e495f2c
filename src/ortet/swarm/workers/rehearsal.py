"""Runs a dummy attempt in a temporary store before attempts are forked.

This pays the cost of first use (imports, decoders) once instead of in every attempt.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ortet._util.codec import decode
from ortet.errors import OrtetError
from ortet.history.records import Commit
from ortet.hub.hub import Hub
from ortet.ids import from_hex
from ortet.machines.overlay.engine import OverlayEngine
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.swarm import records
from ortet.swarm.attempt import AttemptJob, run_attempt
from ortet.swarm.plan import KeepRule, SwarmTerms

_MEMORY_DIRECTORY = "/dev/shm"


def warm_up(opener: Callable[..., Any], zygote: Zygote | None) -> None:
    """Run the dummy attempt. On failure, attempts only start slower.

    Nothing stays open and no thread keeps running.
    """
    memory = (
        _MEMORY_DIRECTORY if os.access(_MEMORY_DIRECTORY, os.W_OK) else None
    )  # memory file system, so that fsync costs nothing
    with suppress(OrtetError, OSError), tempfile.TemporaryDirectory(dir=memory) as place:
        work = Path(place) / "work"
        work.mkdir()
        with opener(Path(place) / "store") as hub:
            share_zygote(hub, zygote)
            _run_dummy_attempt(hub, work, zygote)
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()


def share_zygote(hub: Hub, zygote: Zygote | None) -> None:
    """Let the overlay machines of a hub use an existing zygote process."""
    engine = hub._store.engine("overlay") if zygote is not None else None
    if zygote is not None and isinstance(engine, OverlayEngine):
        engine.use_zygote(zygote)


def _run_dummy_attempt(hub: Any, work: Path, zygote: Zygote | None) -> None:
    files: dict[str, Any] = {"workspace": work, "engine": "auto"} if zygote else {}
    session = hub.session("rehearsal", environment="asked", budget={"usd": 1.0}, **files)
    point = session.commit("point")
    # the hub has it cached; this prepares the decoder
    decode(Commit, hub.objects.get(from_hex(point.oid)))
    lease = hub.catalog.acquire("swarm:rehearsal", str(os.getpid()), 10**12)
    terms = SwarmTerms(n=1, keep=KeepRule(), task="", score="", budget={"usd": 0.5})
    row = records.SwarmRow(hub.new_id(), "r", bytes.fromhex(point.oid), hub.clock.now_ns(), terms)
    row = records.create_swarm(hub.catalog, session.id, row, lease)
    first = records.SwarmRecords(hub.catalog, session.id, row.id).attempt(0)
    job = AttemptJob(
        root=hub.url,
        session=session.id,
        swarm=row.id,
        name="r",
        point=point.oid,
        i=0,
        version=first.version,
        tail="r-0",
        mark="",
        slot=0,
        scored=True,
        budget=terms.budget,
    )
    run_attempt(hub, job, "true" if zygote else lambda s, i: s.learn("nothing") and i, None)
