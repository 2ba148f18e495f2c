"""Protocols of the memory index: words and vectors, in a file or a database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from ortet.memory.records import EventSpan, FactEnd, MemoryDocument, Tier

if TYPE_CHECKING:
    from ortet.ids import Clock
    from ortet.memory.embedders.base import Embedder
    from ortet.memory.lexical.tokenizer import Tokenizer
    from ortet.memory.lexical.visible_documents import VisibleDocuments
    from ortet.memory.records import DocumentRow, FactEndRow, IndexPosition, ReadDocuments


class IndexPage(NamedTuple):
    """All documents and fact ends in events after < seq <= upto of one timeline."""

    timeline: str
    after: int
    upto: int
    docs: Sequence[MemoryDocument]
    ends: Sequence[FactEnd]


class IndexState(NamedTuple):
    """Progress of the index.

    `indexed` maps each timeline to its last indexed event. `mark` identifies this moment. Documents
    read after it may be added, as long as nothing was erased meanwhile.
    """

    indexed: dict[str, int]
    mark: object


class TermPostings(Protocol):
    """Documents with a term, among the visible ones."""

    def count(self, terms: Iterable[str]) -> dict[str, float]:
        """Return the number of documents with each term.

        The number is exact up to a limit. Above it the number is estimated from the nearest
        ranges.
        """

    def ids_with_term(self, term: str) -> list[int]:
        """Return the ids of all documents with the term, nearest first."""

    def nearest(self, term: str, limit: int) -> list[int]:
        """Return the ids of at most `limit` documents with the term, nearest first."""


class IndexReader(Protocol):
    """Reads the index at one moment.

    The id of a document is line * IDS_PER_LINE + its position in the line, from 1.
    """

    def timeline(self, name: str) -> tuple[int, int]:
        """Return the number of a timeline and its last indexed event, or (0, 0)."""

    def timelines(self, names: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return number and last indexed event of many timelines. Unknown ones are left out."""

    def last_positions(
        self, tiers: Iterable[Tier], ends: Collection[int]
    ) -> dict[Tier, dict[int, IndexPosition]]:
        """Return the last document of each tier at or before each end, if there is one."""

    def document_ids(self, wanted: Mapping[int, Sequence[int]]) -> dict[tuple[int, int], int]:
        """Return (timeline, seq) -> id for the documents at the given events, where they exist."""

    def seqs(self, ids: Collection[int]) -> dict[int, int]:
        """Return the event number of each document."""

    def last_before(
        self, pieces: Sequence[tuple[IndexPosition, IndexPosition]], time: int
    ) -> list[IndexPosition]:
        """Return for each (low, high) the last document up to `time`, or `low` if there is none.

        The document has low.id < id <= high.id. Times on a timeline never decrease.
        """

    def token_totals(self, ids: Collection[int]) -> dict[int, int]:
        """Return the number of tokens of the line up to each document; 0 at the start of a line."""

    def entries(self, ids: Iterable[int], *, without_words: bool = False) -> dict[int, DocumentRow]:
        """Return rows in the order of the ids. `without_words` leaves out their words."""

    def contents(self, ids: Iterable[int]) -> Iterator[tuple[int, int, str, bytes | None]]:
        """Yield (id, length, words, counts) of documents."""

    def ends(self, keys: Iterable[str]) -> list[FactEndRow]: ...

    def text_hashes(
        self, timeline: int, tiers: Sequence[Tier], after: int, upto: int
    ) -> list[tuple[int, bytes]]:
        """Return (seq, hash of the text) of the documents of events after < seq <= upto."""

    def postings(self, visible: VisibleDocuments, *, limit: int) -> TermPostings:
        """Return the postings of the visible documents. Counts are exact up to `limit`."""


class WordIndex(Protocol):
    """Index of documents by their words.

    It can be used by several threads, processes and hosts. It is derived from the journals and
    rebuilt from them when it is lost.

    To search: call `index_state`, add missing documents with `add_pages`, then read. Each step may
    raise IndexLost, if another process emptied the index or it was damaged. Then repeat all steps.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...

    def index_state(self, timelines: Iterable[str]) -> IndexState: ...

    def add_pages(self, pages: Iterable[IndexPage], mark: object) -> None:
        """Add pages, each as a whole. Pages that another process added first are skipped.

        Raises:
            IndexLost: If a page does not follow the indexed events, or the index was emptied since
                `mark`. Texts that were read before that may be erased.
        """

    def open_reader(self) -> AbstractContextManager[IndexReader]:
        """Open a reader. All reads in the block see the same moment."""

    def forget(self, timelines: Collection[str] | None) -> None:
        """Delete everything of some timelines, or of all. They are indexed again when needed.

        Raises:
            Unavailable: If the index cannot be changed now.
        """

    def close(self) -> None: ...


class VectorStore(Protocol):
    """Vectors of one embedder by hash of text, as bytes in half precision.

    No text is embedded twice. The mark changes whenever a vector is deleted.
    """

    def state(self) -> tuple[bytes, int]:
        """Return the mark and the vector size of this embedder; size 0 means no vectors yet."""

    def get(self, hashes: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the stored vectors of these hashes."""

    def put(self, mark: bytes, size: int, rows: Sequence[tuple[bytes, bytes]]) -> bool:
        """Store vectors. Existing vectors stay.

        Returns:
            False, without any change, if the mark has changed. The texts may have been erased since
                they were read.

        Raises:
            Invalid: If this embedder has vectors of another size.
        """

    def forget(self, hashes: Iterable[bytes]) -> int:
        """Delete the vectors of erased texts, of all embedders. Return their number."""

    def prune(self) -> int:
        """Delete the vectors of all other embedders. Return their number."""

    def empty(self) -> None: ...

    def close(self) -> None: ...


class SemanticIndex(Protocol):
    """Finds documents by meaning, with one embedder."""

    def ranker(self, index: WordIndex, read_documents: ReadDocuments) -> SemanticRanker:
        """Return a ranker for one query on the indexed documents."""

    def close(self) -> None: ...


class IndexFactory(Protocol):
    """Creates the index of a store that is not on the disk of this host."""

    def word_index(self) -> WordIndex: ...

    def vector_store(self, embedder: str) -> VectorStore:
        """Return the vectors of one embedder; "" for operations on all embedders."""

    def semantic_index(self, embedder: Embedder, clock: Clock) -> SemanticIndex: ...


class SemanticMatches(msgspec.Struct, frozen=True):
    """Semantic matches (timeline, seq, cosine), nearest first.

    `status` has the values of `SearchResult.dense`.
    """

    places: list[tuple[str, int, float]]
    status: str = "all"


class SemanticRanker(Protocol):
    """Finds documents by meaning. Failures of an embedder do not raise; `status` reports them."""

    def rank(
        self, spans: Sequence[EventSpan], tiers: Sequence[Tier], text: str, limit: int
    ) -> SemanticMatches: ...
