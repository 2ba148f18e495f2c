"""Command stats: the size of a store by location, its savings, and the slowest calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from ortet.cli.call import CliCall, verb
from ortet.cli.terminal import output

if TYPE_CHECKING:
    from ortet.cli.slow_calls import SlowCall
    from ortet.hub.hub import Hub

_MAX_LISTED_KEYS = 200_000
"""The maximum number of listed keys of a bucket. One request lists a thousand."""
_SLOWEST_SHOWN = 5


class Tiers(msgspec.Struct, frozen=True):
    """Bytes by location.

    `bucket` and `catalog` are the store. A `cache` can be lost. `queue` is on this disk only and
    must not be lost. `memory` can be rebuilt from the journals.
    """

    catalog: int | None  # None: the catalog of a server, which counts it
    bucket: int
    archives: int  # part of the bucket: archived sessions
    tails: int  # open tails of writers on this host
    cache: int  # on this host: cached packs of a remote bucket, and indexes
    queue: int  # on this host
    memory: int  # the memory index, here or in the catalog
    machines: int  # on this host: private files and shared layers


class StoreUsage(msgspec.Struct, frozen=True):
    """The usage of a store.

    `copies` is the size of the files of all `commits` as directories. `raw` is the size of all
    objects before compression. `dedup` is the larger of both, divided by the stored size. If
    `partial`, numbers are lower bounds.
    """

    store: str
    sessions: int
    statuses: dict[str, int]
    timelines: int | None
    events: int | None
    partitions: int | None
    objects: int
    packs: int
    tails: int
    pack_bytes: int
    tail_bytes: int
    queued: object
    tiers: Tiers
    commits: int
    copies: int
    raw: int
    dedup: float
    partial: bool
    slowest: list[SlowCall]


@verb()
@click.option("--quick", is_flag=True, help="Do not read commits, and show no ratio.")
def stats(call: CliCall, quick: bool) -> None:
    """Show the size of the store, its savings, and the slowest calls.

    For a shared store, also show the data that is only on this host: cached objects, and objects
    that wait for their upload. The slowest calls are those of this host, in a week.

    \b
    Example:
      ortet stats
      ortet stats --quick --json
    """
    with call.output.progress("looking"):
        report = collect_stats(call.hub, quick=quick)
    call.output.emit(report, _lines(call, report))


def collect_stats(hub: Hub, *, quick: bool) -> StoreUsage:
    """Collect the usage. It is approximate, because other processes write concurrently."""
    from ortet.backends.stats import read_catalog_stats
    from ortet.cli.slow_calls import slowest
    from ortet.cli.store_stats import CheckoutSizes, checkout_sizes, directory_sizes, sizes_by_kind

    held, queued = hub.objects.stats(), hub.objects.queued()
    measured = read_catalog_stats(hub.catalog, hub.root)
    directories, all_files = directory_sizes(hub.root)
    bucket, archives, all_keys = _bucket(hub, held.pack_bytes)
    sizes, whole = ({}, True) if quick else sizes_by_kind(hub)[::2]
    copied = CheckoutSizes(0, 0, True) if quick else checkout_sizes(hub)
    stored, raw = held.pack_bytes + held.tail_bytes, sum(sizes.values())
    rows = hub.sessions()
    return StoreUsage(
        store=hub.url,
        sessions=len(rows),
        statuses=dict(sorted(Counter(row.status for row in rows).items())),
        timelines=measured.timelines if measured else None,
        events=measured.events if measured else None,
        partitions=measured.partitions or None if measured else None,
        **msgspec.structs.asdict(held),
        queued=queued,
        tiers=Tiers(
            catalog=measured.bytes if measured else None,
            bucket=bucket,
            archives=archives,
            tails=held.tail_bytes,
            cache=directories["what was read of the bucket"] + directories["indexes"],
            queue=queued.bytes,
            memory=directories["memory index"] + (measured.memory if measured else 0),
            machines=directories["machines"] + directories["shared layers"],
        ),
        commits=copied.commits,
        copies=copied.bytes,
        raw=raw,
        dedup=round(max(copied.bytes, raw) / stored, 2) if stored and not quick else 0.0,
        partial=not (all_files and all_keys and whole and copied.whole),
        slowest=slowest(hub.root),
    )


def _bucket(hub: Hub, packs: int) -> tuple[int, int, bool]:
    """Return bytes in the bucket, bytes of archives, and True if all keys were listed."""
    archives = 0
    for number, entry in enumerate(hub.bucket.list("archives/")):
        if number >= _MAX_LISTED_KEYS:
            return packs + archives, archives, False
        archives += entry.size
    return packs + archives, archives, True


def _lines(call: CliCall, report: StoreUsage) -> Iterator[str]:
    tiers, size = report.tiers, output.format_size
    statuses = ", ".join(f"{count} {name}" for name, count in report.statuses.items())
    yield f"store     {output.safe(report.store)}"
    yield f"sessions  {report.sessions}{f' ({statuses})' if statuses else ''}"
    if report.events is not None:
        months = f", {output.plural(report.partitions, 'partition')}" if report.partitions else ""
        lines = output.plural(report.timelines or 0, "timeline")
        yield f"events    {report.events} in {lines}{months}"
    yield f"objects   {report.objects} in {output.plural(report.packs, 'pack')}"
    yield f"catalog   {'at the server' if tiers.catalog is None else size(tiers.catalog)}"
    archived = f", {size(tiers.archives)} of it archives" if tiers.archives else ""
    yield f"bucket    {size(tiers.bucket)}{archived}"
    yield f"tails     {size(tiers.tails)} of {output.plural(report.tails, 'writer')}"
    yield f"cache     {size(tiers.cache)} on this host"
    yield f"memory    {size(tiers.memory)} to find it by"
    yield f"machines  {size(tiers.machines)} on this host"
    if report.dedup > 1:
        least = "at least " if report.partial else ""
        what = f"{output.plural(report.commits, 'commit')} as copies would be {size(report.copies)}"
        what += f", objects without packing {size(report.raw)}"
        yield f"saved     {least}{report.dedup:g} times: {what}"
    yield from output.queued_lines(call.hub.objects.queued())
    for number, slow_call in enumerate(report.slowest[:_SLOWEST_SHOWN]):
        session_id = slow_call.session[: output.SHORT_ID_DIGITS]
        session = f"  session {session_id}" if session_id else ""
        head = "slowest" if number == 0 else ""
        when = output.format_time(slow_call.time)
        yield f"{head:<8}  {slow_call.ms:>8.0f} ms  {when}  {slow_call.what}{session}"
