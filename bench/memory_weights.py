"""Choose the weights of recall on one set of dialogues, and say what they give on another.

`python bench/memory_weights.py` in an environment with numpy and wordllama (requirements/
memory-peers.txt, `PYTHONPATH=src`) prints the weights, and what each ingredient gives; without them
only those of the text. One weight at a time is moved while the others stand, twice over: of all
values that are as good as the best but for noise, the middle one is taken, so that what is chosen
lies on a plateau and not on a peak.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import memory_embedder
import memory_metrics as metrics
import memory_talk as talk
import report
from memory_facts import EMPTY
from memory_prune import filled, seen
from ortet.memory.base import SemanticMatches
from ortet.memory.lexical.index import SqliteWordIndex
from ortet.memory.lexical.scoring import Weights
from ortet.memory.lexical.search import search
from ortet.memory.lexical.tokenizer import Tokenizer
from ortet.memory.records import EventSpan, Query, Tier

NOISE = 0.004
"""Half a question in a hundred: what differs by less is as good."""
TEXT_GRID: Mapping[str, Sequence[float]] = {
    "before": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0),
    "behind": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    "k1": (0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0),
    "b": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75),
    "recency": (0.0, 0.01, 0.02, 0.05, 0.1),
}
DENSE_GRID: Mapping[str, Sequence[float]] = {
    "cosine": (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0),
    "short": (0.0, 5.0, 10.0, 20.0),
    "flatness": (5.0, 10.0, 20.0, 40.0, 60.0),
}


class Unstemmed(Tokenizer):
    def _stem(self, word: str) -> str:
        return word


class Meaning:
    """Exact cosines of one dialogue's turns."""

    def __init__(self, embedder: memory_embedder.Embedder, dialogue: talk.Dialogue) -> None:
        self._embedder = embedder
        self._name = dialogue.name
        self._rows = embedder.embed([turn.text for turn in dialogue.turns])

    def rank(
        self, spans: Sequence[EventSpan], tiers: Sequence[Tier], text: str, limit: int
    ) -> SemanticMatches:
        del spans, tiers
        cosines = self._rows @ self._embedder.embed([text])[0]
        order = (-cosines).argsort(kind="stable")[:limit]
        return SemanticMatches([(self._name, int(row) + 1, float(cosines[row])) for row in order])


class Ground:
    """One set of dialogues, indexed."""

    def __init__(self, part: talk.Part, count: int, place: Path, embedder: Any) -> None:
        self._part = part
        self._place = place
        self._dialogues = talk.dialogues(part, count)
        self._index = filled(SqliteWordIndex(place / f"{part}.db"), *self._dialogues)
        self._meanings = (
            {one.name: Meaning(embedder, one) for one in self._dialogues} if embedder else {}
        )

    def unstemmed(self) -> SqliteWordIndex:
        index = SqliteWordIndex(self._place / f"{self._part}-unstemmed.db")
        index.tokenizer = Unstemmed()
        return filled(index, *self._dialogues)

    def quality(
        self,
        weights: Weights,
        *,
        dense: bool,
        index: SqliteWordIndex | None = None,
        asked: Callable[[str], str] = lambda text: text,
    ) -> Mapping[str, metrics.Quality]:
        found = []
        for dialogue in self._dialogues:
            vectors = self._meanings[dialogue.name] if dense else None
            for question in dialogue.questions:
                query = Query(asked(question.text), k=metrics.DEPTH)
                answer = search(
                    index or self._index, seen(dialogue), query, ranker=vectors, weights=weights
                )
                ids = [one.seq - 1 for one in answer.found]
                found.append((question.kind, metrics.of(ids, question.evidence)))
        return metrics.by_kind(found)


def worth(quality: Mapping[str, metrics.Quality]) -> float:
    """What is made as high as it can be: enough of the evidence, and early."""
    every = quality["all"]
    return (every.recall10 + every.ndcg10) / 2


def choose(
    ground: Ground, weights: Weights, grid: Mapping[str, Sequence[float]], *, dense: bool
) -> Weights:
    for _ in range(2):
        for name, values in grid.items():
            found = {}
            for value in values:
                moved = msgspec.structs.replace(weights, **{name: value})
                found[value] = worth(ground.quality(moved, dense=dense))
            best = max(found.values())
            good = [value for value, got in found.items() if got >= best - NOISE]
            weights = msgspec.structs.replace(weights, **{name: good[len(good) // 2]})
            shown = ", ".join(f"{value:g}: {100 * got:.1f}" for value, got in found.items())
            print(f"{name}: {shown} -> {getattr(weights, name):g}", flush=True)
    return weights


def without_function_words(text: str) -> str:
    kept = [word for word in text.split() if word.strip("?,.'").lower() not in EMPTY]
    return " ".join(kept) or text


def ingredients(
    ground: Ground, weights: Weights, *, dense: bool
) -> Iterator[tuple[str, Mapping[str, metrics.Quality]]]:
    """Each left out alone."""
    replace = msgspec.structs.replace
    yield "text", ground.quality(weights, dense=False)
    for name, moved in (
        ("without the turns beside it", replace(weights, before=0.0, behind=0.0)),
        ("without the turn before", replace(weights, before=0.0)),
        ("without the turn after", replace(weights, behind=0.0)),
        ("without regard to length", replace(weights, b=0.0)),
        ("without recency", replace(weights, recency=0.0)),
    ):
        yield f"text {name}", ground.quality(moved, dense=False)
    unstemmed = ground.unstemmed()
    yield "text without stemming", ground.quality(weights, dense=False, index=unstemmed)
    unstemmed.close()
    asked = without_function_words
    yield (
        "text, questions without function words",
        ground.quality(weights, dense=False, asked=asked),
    )
    if dense:
        yield "text and vectors", ground.quality(weights, dense=True)
        equal = replace(weights, cosine=weights.bm25)
        yield "text and vectors, equal weights", ground.quality(equal, dense=True)
        alone = replace(weights, bm25=0.0, recency=0.0, importance=0.0)
        yield "vectors alone", ground.quality(alone, dense=True)


def table(rows: Iterator[tuple[str, Mapping[str, metrics.Quality]]]) -> str:
    body, kinds = [], ["all"]
    for name, quality in rows:
        every = quality["all"]
        kinds = sorted(kind for kind in quality if kind != "all")
        figures = [every.recall5, every.recall10, every.recall20, every.mrr, every.ndcg10]
        figures += [quality[kind].recall10 for kind in kinds]
        body.append([name, *(f"{100 * figure:.1f}" for figure in figures)])
    head = ["", "recall@5", "@10", "@20", "MRR", "nDCG@10", *(f"@10 {kind}" for kind in kinds)]
    return report.table(head, body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dialogues", type=int, default=20, help="of each set")
    parser.add_argument("--keep", action="store_true", help="do not choose: as the source has them")
    parser.add_argument("--embedder", help="as ortet.open takes it; without: wordllama")
    options = parser.parse_args()
    embedder: Any = None
    if options.embedder:
        embedder = memory_embedder.Ours(options.embedder)
    elif memory_embedder.available():
        embedder = memory_embedder.Embedder()
    dense = embedder is not None
    if not dense:
        print("no numpy and wordllama here: text alone")
    with tempfile.TemporaryDirectory(prefix="ortet-bench-") as place:
        grounds = [
            Ground(part, options.dialogues, Path(place), embedder) for part in ("choose", "look")
        ]
        weights = Weights(cosine=memory_embedder.trust(options.embedder))
        if not options.keep:
            weights = choose(grounds[0], weights, TEXT_GRID, dense=False)
            weights = choose(grounds[0], weights, DENSE_GRID, dense=True) if dense else weights
        print(f"\n{weights}\n")
        for name, ground in zip(("chosen on", "looked at"), grounds, strict=True):
            print(f"{name}\n\n{table(ingredients(ground, weights, dense=dense))}\n", flush=True)


if __name__ == "__main__":
    main()
