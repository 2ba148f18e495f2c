"""`OrtetStore`: LangGraph's long-term memory (`BaseStore`) in an Ortet store.

Design decisions:

- A store is one session, by name (`OrtetStore(hub, name="langgraph-store")`), not one for each
  namespace: namespaces come and go, and a search spans them.
- Put and delete are events of this session (`langgraph.item`). So `ortet log`, `hub.audit`,
  `hub.erase` and `history()` show every value, its time and the earlier values.
- `commit()` seals the events. A restore of the session restores the items. A fork is a store of its
  own (`OrtetStore(hub, name="langgraph-store/1")`).
- Writers hold no lease. Any thread, process or host appends after the last event, by
  compare-and-set on the event number. The last write to a key wins, and the journal keeps all of
  them. A leased session would refuse other writers.
- Each item has a catalog row that points to its event and is written in the same transaction. So
  get and put cost the same with ten items and with 100 000. `items.changes_of` derives the rows
  from events. They are rebuilt from the journal for a timeline that has none.
- A search uses an in-memory view (`view.py`) that follows the journal. The first search in a
  process reads all rows, which takes some seconds for 100 000 items.
- The time to live is in the rows: a read that refreshes it writes no event. An expired item is
  invisible at once. `sweep_ttl` deletes its row and records the end in the journal.
- A query without an `index` is answered by words (BM25). LangGraph's own stores ignore it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

from ortet._util.fork_safety import reset_in_child
from ortet._util.validation import COUNT, require
from ortet.errors import Invalid
from ortet.integrations.aio import to_thread_shielded
from ortet.integrations.langgraph.store.items import (
    ItemChange,
    ItemEntry,
    ItemId,
    checked_id,
    checked_value,
    copy_value,
    event_seqs,
    item_history,
)
from ortet.integrations.langgraph.store.journal import ItemJournal
from ortet.integrations.langgraph.store.search import ItemSearch, listed
from ortet.integrations.langgraph.store.view import ItemView

if TYPE_CHECKING:
    from ortet.history.commits import CommitInfo
    from ortet.hub.governance.tombstones import ErasureReceipt
    from ortet.hub.hub import Hub

_SWEEP_MINUTES = 5.0
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_log = logging.getLogger(__name__)


class ItemVersion(msgspec.Struct, frozen=True):
    """An earlier value of an item. `value` is None if the item was deleted or expired."""

    time: datetime
    value: dict[str, Any] | None
    by: str
    seq: int


class _EmbeddingTexts(msgspec.Struct):
    """Texts to embed before a batch runs, with their vectors."""

    documents: dict[str, list[float] | None]
    queries: dict[str, list[float] | None]


_NO_TEXTS = _EmbeddingTexts({}, {})


class OrtetStore(BaseStore):
    """LangGraph's long-term store on an Ortet hub, for any thread and event loop.

    The hub must stay open. Other code may use it at the same time. `put`, `get`, `search`, `delete`
    and `list_namespaces`, also asynchronous, are those of LangGraph's BaseStore.

    Example:
        store = OrtetStore(ortet.open("memory"))
        store.put(("users", "ann"), "food", {"likes": "pizza"})
        graph = builder.compile(store=store)
    """

    supports_ttl = True

    def __init__(
        self,
        hub: Hub,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        name: str = "langgraph-store",
        agent: str = "default",
    ) -> None:
        """Use an open store.

        Args:
            hub: The open store.
            index: LangGraph's IndexConfig: `dims`, `embed`, `fields`.
            ttl: LangGraph's TTLConfig.
            name: Name of the session that holds the items.
            agent: Agent that owns the session.
        """
        self.ttl_config = ttl
        self.index_config = index
        self.embeddings = ensure_embeddings(index.get("embed")) if index else None
        self._fields = _paths((index or {}).get("fields") or ["$"])
        self._hub = hub
        self._journal = ItemJournal(hub, name, agent)
        self._reset_view()
        reset_in_child(self._reset_after_fork)

    def _reset_after_fork(self) -> None:
        self._journal.reset()
        self._reset_view()

    def _reset_view(self) -> None:
        self._view = ItemView(self._journal)
        self._search = ItemSearch(self._journal, self._view)
        self._lock = self._journal.lock
        self._stop = threading.Event()
        self._sweeper: threading.Thread | None = None

    def setup(self) -> None:
        """Do nothing; present for compatibility with other stores."""

    # LangGraph's operations.

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run the operations.

        Reads see the state before the batch; puts are written all or none.

        Args:
            ops: Operations of LangGraph.

        Returns:
            One result for each operation, in order.

        Raises:
            Invalid: If an operation, a value or a vector is not valid. Nothing is written.
            InvalidNamespaceError: If a label of a namespace is empty or has a period.
        """
        checked = [_check_op(op) for op in ops]
        if len(checked) == 1 and isinstance(checked[0], GetOp):  # the most frequent call
            return [self._read(checked[0], _NO_TEXTS)]
        texts = self._texts(checked)
        if self.embeddings is not None:
            if texts.documents:
                vectors = self.embeddings.embed_documents(list(texts.documents))
                texts.documents = self._pair_vectors(texts.documents, vectors)
            queries = list(texts.queries)
            texts.queries = self._pair_vectors(queries, map(self.embeddings.embed_query, queries))
        return self._run(checked, texts)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run the operations without blocking the event loop; see `batch`."""
        checked = [_check_op(op) for op in ops]
        texts = self._texts(checked)
        if self.embeddings is not None:
            if texts.documents:
                vectors = await self.embeddings.aembed_documents(list(texts.documents))
                texts.documents = self._pair_vectors(texts.documents, vectors)
            queries = list(texts.queries)
            query_vectors = await asyncio.gather(*map(self.embeddings.aembed_query, queries))
            texts.queries = self._pair_vectors(queries, query_vectors)
        return await to_thread_shielded(self._run, checked, texts)

    def _run(self, ops: Sequence[Op], texts: _EmbeddingTexts) -> list[Result]:
        puts = {checked_id(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}
        changes = [self._change(id_, op, texts) for id_, op in puts.items()]
        results = [self._read(op, texts) for op in ops]
        if changes:
            self._journal.write(changes)
        return results

    def _read(self, op: Op, texts: _EmbeddingTexts) -> Result:
        if isinstance(op, GetOp):
            id_ = checked_id(op.namespace, op.key)
            stored = self._journal.get(id_, refresh=op.refresh_ttl)
            return None if stored is None else Item(**_item_fields(id_, stored[0], stored[1]))
        if isinstance(op, SearchOp):
            return self._run_search(op, texts.queries.get(op.query or ""))
        if isinstance(op, ListNamespacesOp):
            with self._lock:
                self._view.refresh()
                return listed(self._view.namespaces(self._journal.now), op)
        return None

    def _run_search(self, op: SearchOp, vector: list[float] | None) -> list[SearchItem]:
        require(COUNT, limit=op.limit, offset=op.offset)
        with self._lock:
            self._view.refresh()
            hits = self._search.find(op, vector)
            if op.refresh_ttl and (ids := [item.id for item, _ in hits if item.entry.ttl]):
                self._view.update_expiry(self._journal.refresh(ids))
            return [
                SearchItem(**_item_fields(item.id, item.entry, copy_value(item.value)), score=score)
                for item, score in hits
            ]

    def _change(self, id_: ItemId, op: PutOp, texts: _EmbeddingTexts) -> ItemChange:
        if op.value is None:
            return ItemChange(id_, None)
        if op.ttl is not None and not (isfinite(op.ttl) and op.ttl > 0):
            raise Invalid("bad_ttl", f"ttl={op.ttl!r} of item {id_[1]!r}: give minutes, or None")
        vectors = []
        for path, text in self._texts_to_index(op):
            vector = texts.documents.get(text)
            if vector is not None:
                vectors.append((path, struct.pack(f"<{len(vector)}f", *vector)))
        return ItemChange(id_, checked_value(id_, op.value), float(op.ttl or 0), vectors)

    # Embedding.

    def _texts(self, ops: Sequence[Op]) -> _EmbeddingTexts:
        if self.embeddings is None:
            return _EmbeddingTexts({}, {})
        puts = {(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}
        for (namespace, key), op in puts.items():
            if op.value is not None:  # Check the value before its embedding is paid for.
                checked_value(checked_id(namespace, key), op.value)
        documents = (text for op in puts.values() for _, text in self._texts_to_index(op))
        queries = (op.query for op in ops if isinstance(op, SearchOp) and op.query)
        return _EmbeddingTexts(dict.fromkeys(documents), dict.fromkeys(queries))

    def _texts_to_index(self, op: PutOp) -> list[tuple[str, str]]:
        """Return the texts of an item to embed, each with its path."""
        if self.embeddings is None or op.value is None or op.index is False:
            return []
        indexed = []
        for path, tokens in self._fields if op.index is None else _paths(op.index):
            texts = get_text_at_path(op.value, tokens)
            several = len(texts) > 1
            indexed += [(f"{path}.{n}" if several else path, text) for n, text in enumerate(texts)]
        return indexed

    def _pair_vectors(
        self, texts: Iterable[str], embeddings: Iterable[Sequence[float]]
    ) -> dict[str, list[float] | None]:
        texts, vectors = list(texts), [list(map(float, vector)) for vector in embeddings]
        dims = (self.index_config or {}).get("dims")
        if len(texts) != len(vectors):
            raise Invalid(
                "bad_vector",
                f"embed returned {len(vectors)} vectors for {len(texts)} texts: correct embed",
            )
        for vector in vectors:
            if (dims and len(vector) != dims) or not all(map(isfinite, vector)):
                raise Invalid(
                    "bad_vector",
                    f"embed returned {len(vector)} numbers, dims says {dims}: correct one of "
                    "them, and return finite numbers",
                )
        return dict(zip(texts, vectors, strict=True))

    # Time to live.

    def sweep_ttl(self) -> int:
        """Remove expired items; return their number."""
        with self._lock:
            self._view.refresh()
            return self._journal.expire(self._view.expired_ids(self._journal.now))

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Start to remove expired items in the background.

        To stop, cancel the future or call `stop_ttl_sweeper`.

        Args:
            sweep_interval_minutes: Minutes between two sweeps; by default those of TTLConfig.

        Returns:
            A future that is done when the sweeper has ended.
        """
        ended: Future[None] = Future()
        interval = sweep_interval_minutes or (self.ttl_config or {}).get("sweep_interval_minutes")
        if self.ttl_config is None and sweep_interval_minutes is None:
            ended.set_result(None)
            return ended
        self.stop_ttl_sweeper()
        stop = self._stop = threading.Event()

        def work() -> None:
            while not stop.wait(60 * float(interval or _SWEEP_MINUTES)):
                try:
                    self.sweep_ttl()
                except Exception:  # The next sweep tries again.
                    _log.exception("expired items could not be taken out of the store")
            if not ended.done():
                ended.set_result(None)

        ended.add_done_callback(lambda _: stop.set())
        self._sweeper = threading.Thread(target=work, name="ortet-ttl", daemon=True)
        self._sweeper.start()
        return ended

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the background sweep; return True if none is running any more."""
        self._stop.set()
        if self._sweeper is not None:
            self._sweeper.join(timeout)
            if self._sweeper.is_alive():
                return False
            self._sweeper = None
        return True

    # Methods beyond LangGraph's interface.

    def history(self, namespace: tuple[str, ...], key: str) -> list[ItemVersion]:
        """Return all versions of an item, oldest first. This reads the whole journal."""
        id_ = checked_id(namespace, key)
        with self._lock:
            versions = item_history(self._journal.all_events(), id_)
            values = self._journal.values([entry for _, entry in versions if entry is not None])
        return [
            ItemVersion(
                time=_time(event.time),
                value=None if entry is None else values.get(entry.said),
                by=event.actor,
                seq=event.seq,
            )
            for event, entry in versions
        ]

    def erase(self, namespace: tuple[str, ...], key: str) -> ErasureReceipt | None:
        """Delete an item and erase all of its versions.

        Like `hub.erase`, call it only while nobody else uses the hub.

        Returns:
            The receipt, or None if the item never existed.
        """
        id_ = checked_id(namespace, key)
        with self._lock:
            self._journal.write([ItemChange(id_, None)])
            past = item_history(self._journal.all_events(), id_)
            seqs = [seq for event, _ in past for seq in event_seqs(event)]
            return self._hub.erase(self._journal.session, seqs=seqs) if seqs else None

    def commit(self, message: str = "") -> CommitInfo:
        """Commit the present items; a restore of the session brings them back.

        Call it only while nobody else uses the hub.
        """
        with self._lock:
            return self._journal.commit(message)


def _paths(fields: Iterable[str]) -> list[tuple[str, Any]]:
    return [(path, path if path == "$" else tokenize_path(path)) for path in fields]


def _check_op(op: Op) -> Op:
    """Check the labels, which become part of row keys, by the rules of BaseStore's methods."""
    if isinstance(op, GetOp | PutOp):
        labels = op.namespace
    elif isinstance(op, SearchOp):
        labels = op.namespace_prefix
    elif isinstance(op, ListNamespacesOp):
        return op
    else:
        raise Invalid("bad_op", f"{type(op).__name__} is no operation of a store: see LangGraph's")
    for label in labels:
        if not isinstance(label, str) or not label or "." in label or "\0" in label:
            raise InvalidNamespaceError(
                f"label {label!r} in {labels!r}: give text that is not empty and has no period"
            )
    return op


def _item_fields(id_: ItemId, entry: ItemEntry, value: dict[str, Any]) -> dict[str, Any]:
    created = _time(entry.created)
    return {
        "namespace": id_[0],
        "key": id_[1],
        "value": value,
        "created_at": created,
        "updated_at": created if entry.updated == entry.created else _time(entry.updated),
    }


def _time(ns: int) -> datetime:
    return _UNIX_EPOCH + timedelta(microseconds=ns // 1000)
