"""The seams of the index of memories: where words and vectors are kept, in a file or a database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ortet.memory.records import FactEnd, MemoryDocument, Tier

if TYPE_CHECKING:
    from ortet.ids import Clock
    from ortet.memory.embedders.base import Embedder
    from ortet.memory.lexical.reader import DocumentRow, FactEndRow, IndexPosition
    from ortet.memory.lexical.search import SemanticRanker
    from ortet.memory.lexical.tokenizer import Tokenizer
    from ortet.memory.lexical.visibility import VisibleDocuments
    from ortet.memory.library import ReadDocuments


class IndexPage(NamedTuple):
    """All there is in events after < seq <= upto of a timeline."""

    timeline: str
    after: int
    upto: int
    docs: Sequence[MemoryDocument]
    ends: Sequence[FactEnd]


class IndexState(NamedTuple):
    """Up to which event timelines were taken in, those of which nothing was left out; `mark` is
    of that moment: what is read behind it may be taken in as long as nothing was emptied."""

    indexed: dict[str, int]
    mark: object


class TermPostings(Protocol):
    """Which of the documents that can be seen have a term, and how many they are."""

    def count(self, terms: Iterable[str]) -> dict[str, float]:
        """How many documents have each term: counted, or, from the limit on, inferred from how
        many had to be looked at: the nearest stretches first, each from its beginning."""

    def ids_with_term(self, term: str) -> list[int]:
        """Ids of all that have it, the nearest first."""

    def nearest(self, term: str, limit: int) -> list[int]:
        """The same, and no more than so many."""


class IndexReader(Protocol):
    """The index at one moment. Ids are those of `lookup`: line * FIRST + 1 and so on."""

    def timeline(self, name: str) -> tuple[int, int]:
        """Its number, and the last event of it that was taken in; 0, 0: none."""

    def timelines(self, names: Iterable[str]) -> dict[str, tuple[int, int]]:
        """The same of many; those that are not known are left out."""

    def last_positions(
        self, tiers: Iterable[Tier], ends: Collection[int]
    ) -> dict[Tier, dict[int, IndexPosition]]:
        """The last document of each tier at or before each of `end_of`, as far as there is one."""

    def document_ids(self, wanted: Mapping[int, Sequence[int]]) -> dict[tuple[int, int], int]:
        """The ids of the documents at events of timelines, by their numbers, where there are any:
        (timeline, seq) -> id."""

    def seqs(self, ids: Collection[int]) -> dict[int, int]:
        """At which event each document is."""

    def last_before(
        self, pieces: Sequence[tuple[IndexPosition, IndexPosition]], time: int
    ) -> list[IndexPosition]:
        """The last of low.id < id <= high.id that happened by then, of each (low, high); its `low`:
        none. Times along a timeline never go back."""

    def token_totals(self, ids: Collection[int]) -> dict[int, int]:
        """All tokens of its line up to each document; 0 where it is a line's beginning."""

    def entries(self, ids: Iterable[int], *, without_words: bool = False) -> dict[int, DocumentRow]:
        """In the order of the ids; `bare`: without their words."""

    def contents(self, ids: Iterable[int]) -> Iterator[tuple[int, int, str, bytes | None]]:
        """(id, length, words, counts) of documents."""

    def ends(self, keys: Iterable[str]) -> list[FactEndRow]: ...

    def text_hashes(
        self, timeline: int, tiers: Sequence[Tier], after: int, upto: int
    ) -> list[tuple[int, bytes]]:
        """(seq, hash of the text) of the documents of events after < seq <= upto."""

    def postings(self, visible: VisibleDocuments, *, limit: int) -> TermPostings:
        """Of what can be seen; counts are exact as far as `limit`."""


class WordIndex(Protocol):
    """Documents by their words. Any thread may use it, and any process, of any host that can see
    it. All of it is made of the journals, and is made of them again when it is lost.

    To ask it: `take` what is behind `standing`; then search. Both may raise Lost, when another has
    emptied it or it was damaged: then do both again.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...

    def index_state(self, timelines: Iterable[str]) -> IndexState: ...

    def add_pages(self, pages: Iterable[IndexPage], mark: object) -> None:
        """Takes them in, each whole. What another was faster with is passed over. Raises Lost
        when a page does not follow what is known, or it was emptied since `mark`: what was read
        before that may have been erased."""

    def open_reader(self) -> AbstractContextManager[IndexReader]:
        """All that is read in the block is of one moment."""

    def forget(self, timelines: Collection[str] | None) -> None:
        """Nothing stays of what some timelines said, or of all: they are read again. Raises
        Unavailable."""

    def close(self) -> None: ...


class VectorStore(Protocol):
    """The vectors of one embedder by hash of text, as bytes in half precision: no text is embedded
    twice. The mark is another one whenever something was taken out."""

    def state(self) -> tuple[bytes, int]:
        """The mark, and the size of this embedder's vectors; 0: there is none yet."""

    def get(self, hashes: Iterable[bytes]) -> dict[bytes, bytes]:
        """Those that are there."""

    def put(self, mark: bytes, size: int, rows: Sequence[tuple[bytes, bytes]]) -> bool:
        """What another was faster with stays as it is. False, and nothing is done, when the mark is
        another one by now: these texts may have been erased since they were read. Invalid when
        vectors under this name have another size."""

    def forget(self, hashes: Iterable[bytes]) -> int:
        """Takes the vectors of erased texts out, whoever made them. Returns how many."""

    def prune(self) -> int:
        """Takes out what other embedders made. Returns how many."""

    def empty(self) -> None: ...

    def close(self) -> None: ...


class SemanticIndex(Protocol):
    """Finds by meaning, with one embedder."""

    def ranker(self, index: WordIndex, read_documents: ReadDocuments) -> SemanticRanker:
        """To be searched with, for one question: what the index has, as far as `news` reads it."""

    def close(self) -> None: ...


class IndexFactory(Protocol):
    """Where a store keeps what its memories are found by, when that is not this host's disk."""

    def word_index(self) -> WordIndex: ...

    def vector_store(self, embedder: str) -> VectorStore:
        """Of one embedder; "" for what is of all."""

    def semantic_index(self, embedder: Embedder, clock: Clock) -> SemanticIndex: ...
