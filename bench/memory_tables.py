"""How good every system is, by kind of question: a table for each measure."""

from __future__ import annotations

from collections.abc import Iterator

from memory_rows import BY_KIND, METRICS
from rows import Found


def quality(found: Found) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, head and body of each table that has a figure."""
    values = {(sample.row, sample.system): sample.p50 for sample in found}
    systems = dict.fromkeys(
        sample.system for sample in found if sample.row.partition("-")[0] in METRICS
    )
    for key, title in METRICS.items():
        body = [
            [system, *(_percent(values.get((f"{key}-{kind}", system))) for kind in BY_KIND)]
            for system in systems
        ]
        if body:
            yield f"{title}, %", ["", *BY_KIND], body


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
