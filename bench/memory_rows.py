"""The rows of the memory part: what is asked, and whether the samples say it was reached."""

from __future__ import annotations

from collections.abc import Sequence

from memory_facts import KINDS
from rows import Found, Row, p50, within
from session_rows import times

TEXT, DENSE = "ortet, text", "ortet, text and vectors"
METRICS = {
    "recall5": "recall@5",
    "recall10": "recall@10",
    "recall20": "recall@20",
    "mrr": "MRR",
    "ndcg10": "nDCG@10",
}
"""By their names in memory_metrics.Quality."""
BY_KIND = (*KINDS, "all")


def as_fast(found: Found) -> bool | None:
    """A fifth more is noise."""
    few = p50(found, "fork-facts", "ortet, no facts")
    many = p50(found, "fork-facts", "ortet, with facts")
    return None if few is None or many is None else many <= few * 1.2


def both_within(found: Found) -> bool | None:
    """Every figure of ours."""
    mine = [sample.p50 for sample in found if sample.row == "resident"]
    return all(value <= 500 for value in mine) if mine else None


def quality_rows() -> list[Row]:
    """One for each measure and kind; they have tables of their own, but for the first."""
    return [
        Row(f"{key}-{kind}", f"{title}, {kind}", "%", "", listed=(key, kind) == ("recall10", "all"))
        for key, title in METRICS.items()
        for kind in BY_KIND
    ]


ROWS: Sequence[Row] = (
    *quality_rows(),
    Row(
        "recall-text",
        "recall of 10, by text, 100 000 memories",
        "ms",
        "p50 ≤ 15",
        within("recall-text", 15, system=TEXT),
    ),
    Row(
        "recall-dense",
        "recall of 10, with vectors, 100 000 memories, without embedding the question",
        "ms",
        "p50 ≤ 40",
        within("recall-dense", 40, system=DENSE),
    ),
    Row("prune-recall", "recall@10 with the commonest terms pruned, and without", "%", ""),
    Row("prune-time", "the search alone, the same way", "ms", ""),
    Row("recall-all", "recall of 10, 10 000 memories", "ms", ""),
    Row("fill-all", "taking in 10 000 memories until they are found", "memories/s", ""),
    Row("fill", "filling the index with 100 000 memories, and saying them", "memories/s", ""),
    Row("first-recall", "first recall in a new process, 100 000 memories, by text", "ms", ""),
    Row(
        "resident",
        "resident with 100 000 memories, without the embedder",
        "MB",
        "≤ 500",
        both_within,
    ),
    Row(
        "learn",
        "learn a fact, durable",
        "ms",
        "p50 ≤ 2x of a durable append",
        times("learn", 2, system="ortet, learn", peer="ortet, say"),
    ),
    Row(
        "fork-facts",
        "fork of a session with 100 000 facts, and of one without",
        "ms",
        "as fast",
        as_fast,
    ),
)
