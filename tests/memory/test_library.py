"""Words and meanings of a store, as they are opened and missed."""

from __future__ import annotations

from pathlib import Path as Directory

import pytest

from ortet.ids import SystemClock
from ortet.memory.library import Library
from ortet.memory.records import EventSpan, MemoryDocument, Query, TimelinePath

LINE = "ab" * 16


def ask(library: Library) -> tuple[list[int], str]:
    doc = MemoryDocument(1, "working", "the clock jumps", 1)
    paths = [TimelinePath("", [EventSpan(LINE, 0, 1)])]
    answer = library.search(paths, Query("clock"), lambda span, after: iter([(1, [doc], [])]))
    return [found.seq for found in answer.found], answer.dense


def test_without_an_installed_embedder_search_uses_words_and_reports_it(
    tmp_path: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortet.memory.embedders.base.find_spec", lambda name: None)
    library = Library(tmp_path, SystemClock(), embedder="wordllama")
    found, dense = ask(library)
    library.close()
    assert found == [1]
    assert dense.startswith("failed: numpy is not installed") and "pip install" in dense
