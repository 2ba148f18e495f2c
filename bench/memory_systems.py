"""The systems whose recall is compared, behind one small interface: what people would write who
use each of them with the same texts and the same embedder. Run by the Python of their environment.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from memory_embedder import SIZE, Embedder
from memory_text import Numbers, tokens

PRUNED = 100  # commonest terms that the pruned query leaves out


class System(Protocol):
    """Remembers texts under the name of a dialogue, and finds the numbers of the nearest."""

    def begin(self, name: str) -> None:
        """Another dialogue: from now on nothing of those before it is found."""

    def add(self, texts: Sequence[str]) -> None:
        """In order; they are numbered from 0 in each dialogue."""

    def query(self, text: str, k: int) -> list[int]: ...


class Fts5:
    """SQLite's own full-text search: stemmed, any word of the question, ranked by bm25()."""

    def __init__(self, place: Path, *, pruned: bool = False) -> None:
        apsw: Any = import_module("apsw")
        self._db = apsw.Connection(str(place / "fts5.db"))
        self._pruned = pruned
        self._table = -1
        self._common: frozenset[str] | None = None

    def begin(self, name: str) -> None:
        del name
        self._table += 1
        self._common = None
        table = f"t{self._table}"
        self._db.execute(f"CREATE VIRTUAL TABLE {table} USING fts5(text, tokenize='porter')")
        self._db.execute(f"CREATE VIRTUAL TABLE {table}v USING fts5vocab({table}, 'row')")

    def add(self, texts: Sequence[str]) -> None:
        with self._db:
            insert = f"INSERT INTO t{self._table}(text) VALUES (?)"
            self._db.executemany(insert, [(text,) for text in texts])

    def query(self, text: str, k: int) -> list[int]:
        table, words = f"t{self._table}", list(dict.fromkeys(tokens(text)))
        if self._pruned:
            words = [word for word in words if not self._is_common(word)] or words
        ask = " OR ".join(f'"{word}"' for word in words)
        select = f"SELECT rowid FROM {table} WHERE {table} MATCH ? ORDER BY bm25({table}) LIMIT ?"
        return [row - 1 for (row,) in self._db.execute(select, (ask, k))]

    def _is_common(self, word: str) -> bool:
        if self._common is None:
            select = f"SELECT term FROM t{self._table}v ORDER BY doc DESC LIMIT ?"
            self._common = frozenset(term for (term,) in self._db.execute(select, (PRUNED,)))
            self._stem = self._db.fts5_tokenizer("porter", ["unicode61"])
        stemmed = self._stem(word.encode(), 0x0004, None, include_offsets=False)
        return any(part in self._common for parts in stemmed for part in parts)


class Bm25s:
    """bm25s as in its own introduction: English stop words left out, no stemmer."""

    def __init__(self) -> None:
        self._package: Any = import_module("bm25s")
        self._index: Any = None

    def begin(self, name: str) -> None:
        del name
        self._texts: list[str] = []

    def add(self, texts: Sequence[str]) -> None:
        self._texts += texts
        self._index = self._package.BM25()
        cut = self._package.tokenize(self._texts, stopwords="en", show_progress=False)
        self._index.index(cut, show_progress=False)

    def query(self, text: str, k: int) -> list[int]:
        cut = self._package.tokenize(text, stopwords="en", show_progress=False)
        found, _ = self._index.retrieve(cut, k=min(k, len(self._texts)), show_progress=False)
        return [int(number) for number in found[0]]


class RankBm25:
    """rank_bm25's BM25Okapi over lower-case words."""

    def begin(self, name: str) -> None:
        del name
        self._cut: list[list[str]] = []

    def add(self, texts: Sequence[str]) -> None:
        self._cut += [tokens(text) for text in texts]
        self._index: Any = import_module("rank_bm25").BM25Okapi(self._cut)

    def query(self, text: str, k: int) -> list[int]:
        scores = self._index.get_scores(tokens(text))
        return [int(number) for number in (-scores).argsort(kind="stable")[:k]]


class Dense:
    """Exact cosine, nothing else."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def begin(self, name: str) -> None:
        del name
        self._rows: Any = None

    def add(self, texts: Sequence[str]) -> None:
        numpy: Any = import_module("numpy")
        new = self._embedder.embed(texts)
        self._rows = new if self._rows is None else numpy.vstack([self._rows, new])

    def query(self, text: str, k: int) -> list[int]:
        cosines = self._rows @ self._embedder.embed([text])[0]
        return [int(number) for number in (-cosines).argsort(kind="stable")[:k]]


class Chroma:
    """A collection for each dialogue, on the disk, with cosine."""

    def __init__(self, place: Path, embedder: Embedder) -> None:
        package: Any = import_module("chromadb")
        settings = import_module("chromadb.config").Settings(anonymized_telemetry=False)
        self._client = package.PersistentClient(path=str(place / "chroma"), settings=settings)
        self._embedder = embedder

    def begin(self, name: str) -> None:
        space = {"hnsw": {"space": "cosine"}}
        self._kept = self._client.create_collection(
            name, configuration=space, embedding_function=None
        )
        self._count = 0

    def add(self, texts: Sequence[str]) -> None:
        most = self._client.get_max_batch_size()
        for start in range(0, len(texts), most):
            some = list(texts[start : start + most])
            ids = [str(self._count + number) for number in range(len(some))]
            self._kept.add(ids=ids, documents=some, embeddings=self._embedder.embed(some))
            self._count += len(some)

    def query(self, text: str, k: int) -> list[int]:
        asked = self._embedder.embed([text])
        found = self._kept.query(query_embeddings=asked, n_results=min(k, self._count), include=[])
        return [int(one) for one in found["ids"][0]]


class LangGraph:
    """A store of LangGraph with an index; the dialogue is the namespace."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def begin(self, name: str) -> None:
        self._name = (name,)
        self._count = 0

    def add(self, texts: Sequence[str]) -> None:
        for text in texts:  # one by one: a batch with a text twice is refused by InMemoryStore
            self._store.put(self._name, str(self._count), {"text": text})
            self._count += 1

    def query(self, text: str, k: int) -> list[int]:
        return [int(item.key) for item in self._store.search(self._name, query=text, limit=k)]


def in_memory_store(embedder: Embedder) -> LangGraph:
    index = {"dims": SIZE, "embed": embedder.lists, "fields": ["text"]}
    return LangGraph(import_module("langgraph.store.memory").InMemoryStore(index=index))


def sqlite_store(place: Path, embedder: Embedder) -> LangGraph:
    """Its vectors are an extension of SQLite: a Python that loads none is given one that does."""
    if not hasattr(sqlite3.Connection, "enable_load_extension"):
        sys.modules["sqlite3"] = import_module("pysqlite3")
    library: Any = sys.modules["sqlite3"]
    file = str(place / "store.db")
    connection = library.connect(file, check_same_thread=False, isolation_level=None)
    # Its manual says "fields", which it does not read: it would embed the JSON around the text.
    index = {"dims": SIZE, "embed": embedder.lists, "text_fields": ["text"]}
    store = import_module("langgraph.store.sqlite").SqliteStore(connection, index=index)
    store.setup()
    return LangGraph(store)


class Mem0:
    """No model: texts are kept as they are (`infer=False`), in its default store, on the disk."""

    def __init__(self, place: Path, embedder: Embedder) -> None:
        store = {"path": str(place / "qdrant"), "embedding_model_dims": SIZE, "on_disk": True}
        config = {
            "vector_store": {"provider": "qdrant", "config": store},
            "history_db_path": str(place / "history.db"),
        }
        self._memory = import_module("mem0").Memory.from_config(config)
        self._memory.embedding_model = _Mem0Embedder(embedder)

    def begin(self, name: str) -> None:
        self._name = name
        self._numbers: dict[str, int] = {}

    def add(self, texts: Sequence[str]) -> None:
        for text in texts:
            said = [{"role": "user", "content": text}]
            done = self._memory.add(said, user_id=self._name, infer=False)
            self._numbers[done["results"][0]["id"]] = len(self._numbers)

    def query(self, text: str, k: int) -> list[int]:
        found = self._memory.search(text, top_k=k, filters={"user_id": self._name})
        return [self._numbers[one["id"]] for one in found["results"]]


class _Mem0Embedder:
    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        del memory_action
        return self._embedder.lists([text])[0]

    def embed_batch(self, texts: list[str], memory_action: str | None = None) -> list[list[float]]:
        del memory_action
        return self._embedder.lists(texts)


class Ortet:
    """A session for each dialogue, all in one store; texts are messages."""

    def __init__(self, place: Path, embedder: Any = None) -> None:
        self._hub = import_module("ortet").open(place / "store", embedder=embedder)

    def begin(self, name: str) -> None:
        self._session = self._hub.session(name, durability="group")
        self._numbers = Numbers()

    def add(self, texts: Sequence[str]) -> None:
        for start in range(0, len(texts), 1000):
            some = texts[start : start + 1000]
            self._session.say_all([("user", text) for text in some])
        self._numbers.add(texts)
        while self._session.recall("the", 1).dense == "some":
            pass  # it fills its index when it is first asked, vectors bit by bit

    def query(self, text: str, k: int) -> list[int]:
        return self._numbers.matched([hit.text for hit in self._session.recall(text, k)])

    def close(self) -> None:
        """Commits, as one does, so that nothing is read again when it is opened."""
        self._session.commit("all of it")
        self._hub.close()


BUILDERS: dict[str, Callable[[Path, Any], System]] = {
    "ortet-text": lambda place, _: Ortet(place),
    "ortet-dense": Ortet,
    "fts5": lambda place, _: Fts5(place),
    "fts5-pruned": lambda place, _: Fts5(place, pruned=True),
    "bm25s": lambda *_: Bm25s(),
    "rank-bm25": lambda *_: RankBm25(),
    "dense": lambda _, embedder: Dense(embedder),
    "chroma": Chroma,
    "langgraph-memory": lambda _, embedder: in_memory_store(embedder),
    "langgraph-sqlite": sqlite_store,
    "mem0": Mem0,
}
WITHOUT = frozenset(("ortet-text", "fts5", "fts5-pruned", "bm25s", "rank-bm25"))
"""They need no embedder."""
