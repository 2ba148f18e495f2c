"""The storage page: sizes by kind of object and by directory, and what deduplication saves."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import msgspec
from starlette.responses import Response

from ortet.cli.store_stats import checkout_sizes, directory_sizes, sizes_by_kind
from ortet.cli.terminal.output import plural
from ortet.errors import Refused
from ortet.hub.hub import Hub
from ortet.objects.base import Kind
from ortet.web.request import PageRequest
from ortet.web.views.budget import Bar, bars

KINDS = {
    Kind.BLOB: "file contents",
    Kind.BLOCKS: "lists of blocks of large files",
    Kind.TREE: "directories",
    Kind.META: "links, attributes, holes",
    Kind.IMAGE: "images of machines",
    Kind.STATE: "states",
    Kind.COMMIT: "commits",
    Kind.JOURNAL: "journals",
    Kind.SEGMENT: "events, sealed",
    Kind.BODIES: "what events say",
    Kind.FOLD: "minds",
    Kind.MAP: "pages of maps of minds",
    Kind.PROCESSES: "processes",
    Kind.PAGES: "lists of memory pages",
    Kind.MEMORY: "beliefs",
}


class StoragePage(msgspec.Struct, frozen=True):
    """Sizes in bytes.

    `logical` is the size of plain copies of the files of all `commits`. `raw` is the size of all
    objects before compression, `stored` that of the packs. `partial`: not everything was counted.
    """

    root: str
    objects: int
    raw: int
    stored: int
    logical: int
    commits: int
    packs: int
    tails: int
    kinds: list[Bar]
    places: list[Bar]
    disk: int
    sessions: int
    statuses: list[Bar]
    partial: bool

    @property
    def saved(self) -> float:
        """Ratio of plain copies to stored bytes, or 0 if it means nothing."""
        return self.logical / self.stored if self.logical > self.stored > 0 else 0.0

    @property
    def packed(self) -> float:
        """Ratio of uncompressed objects to stored bytes."""
        return self.raw / self.stored if self.stored else 0.0


def build_storage_page(hub: Hub) -> StoragePage:
    """Return the data of the page. The numbers are approximate, because others write meanwhile."""
    stats = hub.objects.stats()
    sizes, counts, whole = sizes_by_kind(hub)
    copied = checkout_sizes(hub)
    places, all_files = directory_sizes(hub.root)
    rows = hub.sessions()
    statuses = Counter(row.status for row in rows)
    return StoragePage(
        root=str(hub.root),
        objects=stats.objects,
        raw=sum(sizes.values()),
        stored=stats.pack_bytes + stats.tail_bytes,
        logical=copied.bytes,
        commits=copied.commits,
        packs=stats.packs,
        tails=stats.tails,
        kinds=bars(
            [
                (_kind(kind), float(size), plural(counts[kind], "object"))
                for kind, size in sizes.items()
            ]
        ),
        places=bars([(name, float(size), "") for name, size in places.items() if size]),
        disk=sum(places.values()),
        sessions=len(rows),
        statuses=bars([(name, float(count), "") for name, count in statuses.items()]),
        partial=not (whole and copied.whole and all_files),
    )


def _kind(kind: int) -> str:
    with suppress(ValueError):
        return KINDS.get(Kind(kind), Kind(kind).name.lower())
    return f"kind {kind}"


def store(page_request: PageRequest) -> Response:
    """Render the storage page. It is about all agents, so tokens limited to some are refused."""
    if page_request.caller.agents:
        raise Refused(
            "token_agents",
            "the operation covers all agents, and the token is limited to some: use another token",
        )
    with page_request.hub() as hub:
        page = build_storage_page(hub)
    return page_request.render("storage.html", page=page)
