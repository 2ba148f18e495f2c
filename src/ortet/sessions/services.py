"""The services that read and write journals, as functions of this package take them.

It is a module of its own because the functions that `SessionServices` itself calls take it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from ortet.history.records import Fold, JournalHead

if TYPE_CHECKING:
    from ortet.history.tree.tree import Maps
    from ortet.journal.event_chain import EventChain
    from ortet.journal.event_log import TimelineSpan
    from ortet.store.context import StoreContext


class ForkPointCache(msgspec.Struct, frozen=True):
    """Journal and decoded fold of the commit where new timelines start."""

    oid: bytes
    heir: bytes  # id of the stored fold; erasure replaces it
    journal: JournalHead
    fold: Fold | None


class JournalServices(Protocol):
    """The store, the maps and the event chain, with the caches of journals.

    - `fork_point_cache`: the last fork point, because a swarm starts many sessions at one commit.
    - `timelines`: the timeline of each segment, which never changes.
    - `foreign_spans`: timeline spans of other hosts, by segment and last event.
    - `origins`: the origin of each timeline, see `origin_of`.
    """

    store: StoreContext
    maps: Maps
    chain: EventChain
    fork_point_cache: ForkPointCache | None
    timelines: dict[bytes, str]
    foreign_spans: dict[tuple[bytes, int], list[TimelineSpan]]
    origins: dict[str, str]

    def new_id(self) -> str: ...
