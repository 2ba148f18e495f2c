"""What a hub is put together from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ortet.backend.abc import Bucket, Catalog, Signal
from ortet.graph.tree import Trees
from ortet.ids import Clock, Random
from ortet.machine.abc import Engine
from ortet.session.registry import Scope
from ortet.store.objects import LocalObjects


class Parts(msgspec.Struct, frozen=True):
    """What a hub is made of; `config.py` chooses each."""

    root: Path
    catalog: Catalog
    bucket: Bucket
    signal: Signal
    objects: LocalObjects
    trees: Trees
    engine: Callable[[str], Engine]  # by name, made at first use
    strongest: Callable[[], str]  # the engine for private files on this host
    clock: Clock
    random: Random
    author: str
    host: str
    scope: Scope
    hide: tuple[Path, ...]
