"""What leaving out common terms costs and gains: the search itself, once as it is, once with all
terms of every question looked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import memory_metrics as metrics
from measure import Sample, now
from memory_talk import Dialogue
from ortet.memory.lexical.index import SqliteWordIndex
from ortet.memory.lexical.search import SearchEffort, search
from ortet.memory.records import EventSpan, MemoryDocument, Query
from ortet.memory.records import TimelinePath as Visible

PAGE = 5000


def filled(index: SqliteWordIndex, *dialogues: Dialogue) -> SqliteWordIndex:
    """Each dialogue as a timeline of its own; turn 0 is event 1."""
    for dialogue in dialogues:
        docs = [
            MemoryDocument(turn.id + 1, "working", turn.text, turn.time) for turn in dialogue.turns
        ]
        for start in range(0, len(docs), PAGE):
            some = docs[start : start + PAGE]
            index.add(dialogue.name, start, start + len(some), some, [])
    return index


def seen(dialogue: Dialogue) -> list[Visible]:
    return [Visible("", [EventSpan(dialogue.name, 0, len(dialogue.turns))])]


def all_rows(place: Path, data: Dialogue) -> Iterator[Sample]:
    place.mkdir()
    index = filled(SqliteWordIndex(place / "index.db"), data)
    every = SearchEffort(postings=10 * len(data.turns))
    for name, effort in (("ortet, pruned", SearchEffort()), ("ortet, nothing pruned", every)):
        found, spent, pruned = [], [], 0
        for question in data.questions:
            begin = now()
            answer = search(index, seen(data), Query(question.text, k=10), effort=effort)
            spent.append((now() - begin) * 1000)
            pruned += bool(answer.found and answer.found[0].scores.pruned)
            ids = [one.seq - 1 for one in answer.found]
            found.append(metrics.of(ids, question.evidence))
        note = f"terms left out of {pruned} of {len(found)} questions"
        yield Sample("prune-recall", name, [100 * metrics.mean(found).recall10], note)
        yield Sample("prune-time", name, spent)
    index.close()
