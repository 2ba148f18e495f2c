"""bench/RESULTS.md: asked next to measured, the peers beside it, the host below."""

from __future__ import annotations

from measure import Sample
from rows import ROWS, Found, Row

ABOUT = """\
# Results

Written by `scripts/bench`: do not edit. All systems in one run, one after the other, each on its
own copy of the workspace, page cache warm, durable at the end of each commit. Times of peers are
whole commands, of Ortet calls in an open hub unless the row says otherwise; the first commit is a
whole process for all. Ratio: the peer's p50 over Ortet's.
"""
QUICK = "\n**A quick run on a small workspace: not the one the targets are about.**\n"


def line(sample: Sample) -> str:
    unit = next(row.unit for row in ROWS if row.key == sample.row)
    return (
        f"{sample.row:<14} {sample.system:<24} p50 {number(sample.p50)} {unit}, "
        f"p95 {number(sample.p95)} {unit}, n={len(sample.values)} {sample.note}".rstrip()
    )


def number(value: float) -> str:
    """Three figures: more would not come out the same the next time."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def render(facts: dict[str, str], found: Found, *, quick: bool) -> str:
    host = table(["", ""], [[key, text] for key, text in facts.items()])
    return "\n".join(
        [
            ABOUT + (QUICK if quick else ""),
            "## Asked and measured\n",
            table(["", "asked", "measured: p50 (p95)", ""], _targets(found)),
            "\n## Beside the peers\n",
            table(["", "system", "p50", "p95", "n", "ratio", ""], _comparison(found)),
            "\n## Host\n",
            host,
            "",
        ]
    )


def table(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _targets(found: Found) -> list[list[str]]:
    lines = []
    for row in ROWS:
        mine = [sample for sample in found if sample.row == row.key and _ours(sample)]
        if mine:
            verdict = {True: "reached", False: "**missed**", None: ""}[row.verdict(found)]
            lines.append([row.title, row.asked, _cell(mine, row.unit), verdict])
    return lines


def _cell(samples: Found, unit: str) -> str:
    parts = []
    for sample in samples:
        name = f"{sample.system.removeprefix('ortet').strip(', ')}: " if len(samples) > 1 else ""
        tail = f" ({number(sample.p95)})" if len(sample.values) > 1 else ""
        parts.append(f"{name}**{number(sample.p50)} {unit}**{tail}")
    return "; ".join(parts)


def _comparison(found: Found) -> list[list[str]]:
    lines = []
    for row in ROWS:
        samples = _beside(row, found)
        ours = next((sample.p50 for sample in samples if _ours(sample)), None)
        for index, sample in enumerate(samples):
            title = f"{row.title}, {row.unit}" if index == 0 else ""
            ratio = "" if _ours(sample) or not ours else f"{number(sample.p50 / ours)}x"
            values = [number(sample.p50), number(sample.p95), str(len(sample.values))]
            lines.append([title, sample.system, *values, ratio, sample.note])
    return lines


def _beside(row: Row, found: Found) -> list[Sample]:
    samples = [sample for sample in found if sample.row == row.key]
    if row.key in ("inplace", "command"):  # git always commits in place, by a command
        samples += [s for s in found if s.row == "commit-1" and s.system.startswith("git")]
    return samples


def _ours(sample: Sample) -> bool:
    return sample.system.startswith("ortet")
