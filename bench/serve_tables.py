"""How fast each verb is over HTTP, and called in the process: a table for the whole load."""

from __future__ import annotations

from collections.abc import Iterator

from measure import Sample, number
from rows import Found
from serve_rows import EMBEDDED, HTTP, ONE_SESSION, SIZES, VERBS, latency, paced, rate

HEAD = ["", "clients", "HTTP: p50", "p99", "a second", "embedded: p50", "p99", "a second", "adds"]


def loads(found: Found) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    body = [
        line
        for verb, title in VERBS.items()
        for row in (*(latency(verb, size) for size in SIZES), paced(verb))
        if (line := _line(title, row, found))
    ]
    shared = _line("say, all to one session", ONE_SESSION, found)
    if body or shared:
        yield "Over HTTP, and embedded; ms", HEAD, [*body, *([shared] if shared else [])]


def _line(title: str, row: str, found: Found) -> list[str]:
    samples = {(one.row, one.system): one for one in found}
    http, ours = samples.get((row, HTTP)), samples.get((row, EMBEDDED))
    if http is None or ours is None:
        return []
    return [
        title,
        http.note,
        *_figures(http, samples[rate(row), HTTP]),
        *_figures(ours, samples[rate(row), EMBEDDED]),
        number(http.p50 - ours.p50),
    ]


def _figures(times: Sample, rates: Sample) -> list[str]:
    return [number(times.p50), number(times.at(0.99)), f"{rates.p50:.0f}"]
