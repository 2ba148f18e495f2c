"""`OrtetSaver`: a LangGraph checkpointer whose threads are sessions.

Checkpoint content is stored once. Messages are messages of the session. Other values are parts that
later checkpoints refer to. So a list that grows costs only the added elements.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from ortet.errors import Conflict, Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.integrations._shared.session_pool import session_name
from ortet.integrations.aio import to_thread_shielded
from ortet.integrations.langgraph.messages import is_text
from ortet.integrations.langgraph.pending_writes import PendingWrite
from ortet.integrations.langgraph.read import (
    build_checkpoint_tuple,
    config_of,
    history,
    matches_metadata,
    run_of,
    select_checkpoints,
)
from ortet.integrations.langgraph.thread import (
    DROP,
    PUT,
    THREAD,
    WRITES,
    GraphThread,
    HeadId,
    PastId,
    StoredCheckpoint,
)
from ortet.integrations.langgraph.threads import GraphThreadStore, WorkspaceOption
from ortet.integrations.langgraph.values.encode import ValueEncoder
from ortet.integrations.langgraph.values.parts import PartNotLoaded
from ortet.integrations.langgraph.write import copy_events, is_thread_event, values_of
from ortet.sessions.session import Session


def parse_config(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Return thread id, namespace and checkpoint id."""
    conf = config["configurable"]
    return thread_of(config), conf.get("checkpoint_ns") or "", conf.get("checkpoint_id") or None


def thread_of(config: RunnableConfig) -> str:
    thread_id = config.get("configurable", {}).get("thread_id")
    if thread_id is None:
        raise Invalid("no_thread", 'of which thread? give {"configurable": {"thread_id": …}}')
    return str(thread_id)


def check_text(**texts: object) -> None:
    """Raise Invalid, naming the argument, for text that the journal cannot encode."""
    for key, value in texts.items():
        if isinstance(value, str) and not is_text(value):
            raise Invalid(
                "bad_name", f"{key} {value!r} has half a character in it: give other text", key=key
            )


def strip_id_marks(value: Any) -> Any:
    """Return the value with marked ids replaced by plain strings."""
    if isinstance(value, HeadId | PastId):
        return str(value)
    return (
        {key: strip_id_marks(one) for key, one in value.items()} if type(value) is dict else value
    )


_MAX_EMPTY_THREADS = 10_000
_RUNS = "__pregel_runtime"
_REPLAYS = "__pregel_replay_state"


class OrtetSaver(BaseCheckpointSaver[Any]):
    """A LangGraph checkpointer: `graph.compile(checkpointer=OrtetSaver(hub))`.

    Any thread and event loop, and any number of processes, may use it. If two of them continue from
    the same checkpoint at the same time, the second gets Conflict("thread_moved") and nothing of it
    is stored. To branch off, name an older checkpoint. `put` and `put_writes` are durable when they
    return.

    The asynchronous methods, whose names begin with "a", are those of the same name without it.

    Example:
        graph = builder.compile(checkpointer=OrtetSaver(ortet.open("threads")))
        graph.invoke({"messages": "hello"}, {"configurable": {"thread_id": "1"}})
    """

    def __init__(
        self,
        hub: Hub,
        *,
        agent: str = "default",
        workspace: WorkspaceOption | None = None,
        serde: SerializerProtocol | None = None,
    ) -> None:
        """Use an open store.

        Args:
            hub: The open store.
            agent: Agent that owns the sessions.
            workspace: A directory, or a function that returns one for a thread id. Its files are
                committed with each checkpoint. A run or update that names an older checkpoint
                restores its files.
            serde: Serializer of LangGraph; by default JsonPlusSerializer.
        """
        super().__init__(serde=serde)
        self._threads = GraphThreadStore(hub, agent, workspace)
        # by thread and namespace: the latest checkpoint that this saver has seen
        self._latest_seen: dict[tuple[str, str], str] = {}
        # threads and namespaces that were reported to have no checkpoint
        self._reported_empty: set[tuple[str, str]] = set()

    def __enter__(self) -> OrtetSaver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> OrtetSaver:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Release every thread. Closing the hub does this too."""
        self._threads.pool.close()

    def get_next_version(self, current: Any, channel: None) -> Any:  # noqa: ARG002
        """Return the next version of a channel.

        Versions are integers. A thread from another saver may have text versions; their format is
        kept.
        """
        if isinstance(current, str):
            whole, _, rest = current.partition(".")
            return f"{int(whole) + 1:0{len(whole)}}" + (f".{rest}" if rest else "")
        return 1 if current is None else int(current) + 1

    # Reading.

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint with its pending writes.

        Args:
            config: `thread_id`, and optionally `checkpoint_ns` and `checkpoint_id`. Without an id
                the latest checkpoint is returned.

        Returns:
            The checkpoint, or None if there is none.

        Raises:
            Corrupt: If a stored value is damaged. The error names thread and key.
        """
        tid, ns, checkpoint_id = parse_config(config)
        thread_id = config["configurable"]["thread_id"]
        if not ns and not checkpoint_id:
            with suppress(PartNotLoaded), self._threads.reading_head(tid) as partial_thread:
                if partial_thread is not None and (head := partial_thread.head("")) is not None:
                    latest = build_checkpoint_tuple(
                        partial_thread, head, self.serde, HeadId, thread_id
                    )
                    self._latest_seen[tid, ns] = head.id
                    return latest
        with self._threads.reading(tid) as thread:
            saved = None if thread is None else thread.find_checkpoint(ns, checkpoint_id)
            if thread is None or saved is None:
                if not checkpoint_id:
                    self._remember_empty(tid, ns)
                return None
            if not checkpoint_id:
                self._latest_seen[tid, ns] = saved.id
            elif self._threads.workspace is not None and _RUNS in config["configurable"] and not ns:
                self._threads.restore_files(tid, saved)
            mark = PastId if checkpoint_id else HeadId
            return build_checkpoint_tuple(thread, saved, self.serde, mark, thread_id)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first in each thread.

        Args:
            config: The thread, or None for all threads.
            filter: Values that the metadata of a checkpoint must have.
            before: Yield only checkpoints older than this one.
            limit: Largest number of checkpoints.
        """
        named = config is not None and "thread_id" in config.get("configurable", {})
        tids = [thread_of(config)] if config and named else map(str, self._threads.ids())
        left = limit
        for tid in tids:
            with self._threads.reading(tid) as thread:
                selected = [] if thread is None else select_checkpoints(thread, config, before)
            for saved in selected:
                assert thread is not None
                if left is not None and left <= 0:
                    return
                with self._threads.pool.hub():
                    if filter and not matches_metadata(thread, saved, filter, self.serde):
                        continue
                    checkpoint = build_checkpoint_tuple(
                        thread, saved, self.serde, PastId, thread.id
                    )
                left = None if left is None else left - 1
                yield checkpoint

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes of channels that store only changes, up to a checkpoint."""
        tid, ns, checkpoint_id = parse_config(config)
        if not channels:
            return {}
        with self._threads.reading(tid) as thread:
            if thread is None:
                return {channel: {"writes": []} for channel in channels}
            return history(thread, thread.find_checkpoint(ns, checkpoint_id), channels, self.serde)

    # Writing.

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; durable when this returns.

        Args:
            config: Thread, namespace and id of the parent checkpoint.
            checkpoint: The checkpoint.
            metadata: Its metadata.
            new_versions: The channels that changed, with their new versions.

        Returns:
            The config that names the stored checkpoint.

        Raises:
            Conflict: "thread_moved", if the parent was the latest checkpoint and no longer is.
            Invalid: If a value cannot be stored.
        """
        tid, ns, parent = parse_config(config)
        conf = config["configurable"]
        check_text(thread_id=tid, checkpoint_ns=ns, checkpoint_id=parent, id=checkpoint["id"])
        for channel in checkpoint["channel_values"]:
            check_text(channel=channel)
        with self._threads.writing(tid) as (session, thread):
            before = thread.get_checkpoint(ns, parent)
            is_stored = thread.get_checkpoint(ns, checkpoint["id"]) is not None
            if not is_stored:
                self._check_not_stale(thread, (tid, checkpoint["id"]), conf, metadata)
            with self._threads.with_pending_writes(tid, session, thread):
                make = ValueEncoder(thread.part_store, self.serde)
                rest = {key: value for key, value in checkpoint.items() if key != "channel_values"}
                data: dict[str, Any] = {
                    "ns": ns,
                    "id": str(checkpoint["id"]),
                    "rest": {
                        key: make.tree(key, value) for key, value in rest.items() if key != "id"
                    },
                    "meta": make.tree(
                        "metadata", strip_id_marks(get_checkpoint_metadata(config, metadata))
                    ),
                    "values": values_of(make, checkpoint, before, new_versions),
                }
                if is_stored:  # It replaces that checkpoint and does not become the latest.
                    data["again"] = True
                head = thread.head(ns)
                if parent != (head.id if head is not None else None):
                    data["parent"] = None if parent is None else str(parent)
                if self._threads.workspace is not None:
                    data["commit"] = self._threads.commit(session, thread, before, checkpoint["id"])
                self._threads.write(session, thread, make, (PUT, data), conf["thread_id"])
                self._latest_seen[tid, ns] = checkpoint["id"]
        return config_of(conf["thread_id"], ns, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task; durable when this returns.

        They are written together with the next checkpoint of the thread if one comes soon.

        Args:
            config: Thread, namespace and id of the checkpoint that the task runs on.
            writes: Pairs of channel and value.
            task_id: Id of the task.
            task_path: Path of the task.

        Raises:
            Conflict: "thread_moved", if the checkpoint was refused.
            Invalid: If the checkpoint id is missing, or a value cannot be stored.
        """
        tid, pending = self._make_pending_write(config, writes, task_id, task_path)
        if not self._threads.pending_writes.wait_until_added(tid, pending):
            self._threads.wait_for(tid, pending.checkpoint_key)
            self._write(tid, pending)
        elif not pending.is_stored:
            pending.ensure_stored()

    def _make_pending_write(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: str, path: str
    ) -> tuple[str, PendingWrite]:
        """Return the thread id and the task's writes, for the next writer of the thread."""
        tid, ns, id_ = parse_config(config)
        if not id_:
            raise Invalid("no_checkpoint", "writes of which checkpoint? give its checkpoint_id")
        check_text(thread_id=tid, checkpoint_ns=ns, checkpoint_id=id_)
        check_text(task_id=task, task_path=path)
        for channel, _ in writes:
            check_text(channel=channel)
        data = {"ns": ns, "id": str(id_), "task": task, "path": path}

        def add(session: Session, thread: GraphThread) -> Callable[[], None]:
            make = ValueEncoder(thread.part_store, self.serde)
            written_tasks = id_.written_tasks if isinstance(id_, HeadId) else None
            is_rerun = written_tasks is None or task in written_tasks
            missing = [
                [index, channel, make.channel(channel, value, None)]
                for index, channel, value in thread.missing(
                    (ns, id_), task, writes, is_rerun=is_rerun
                )
            ]
            if not missing:
                return lambda: None
            if written_tasks is not None:
                written_tasks.add(task)
            record = (WRITES, {**data, "writes": missing})
            thread_id = config["configurable"]["thread_id"]
            return self._threads.add(session, thread, make, record, thread_id)

        return tid, PendingWrite((ns, id_), add)

    def _write(self, tid: str, pending: PendingWrite) -> None:
        """Write what no checkpoint included, together with the pending writes of other tasks."""
        if self._threads.is_refused(tid, pending.checkpoint_key):
            raise _thread_moved_error(tid)
        with (
            self._threads.writing(tid) as (session, thread),
            self._threads.with_pending_writes(tid, session, thread),
        ):
            pending.add_to(session, thread)
            self._threads.flush(session, thread)
        pending.ensure_stored()

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with its session. Nothing happens if it does not exist."""
        tid = str(thread_id)
        self._threads.forget(tid)
        self._latest_seen = {key: id_ for key, id_ in self._latest_seen.items() if key[0] != tid}
        self._reported_empty = {key for key in self._reported_empty if key[0] != tid}
        with suppress(NotFound), self._threads.pool.closed_session(session_name(tid)) as (hub, row):
            hub.remove(row.id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs made, in all threads."""
        runs = set(run_ids)
        for tid in map(str, self._threads.ids() if runs else ()):
            with self._threads.reading(tid) as thread:
                saved = [] if thread is None else thread.all_checkpoints()
                dropped = [s for s in saved if thread and run_of(thread, s, self.serde) in runs]
            self._drop(tid, dropped)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread to a new one. Nothing happens if there is no source.

        Raises:
            Conflict: "thread_exists", if the target has checkpoints.
        """
        with self._threads.pool.hub():
            source = self._threads.pool.journal(session_name(str(source_thread_id)))
            events = [] if source is None else [e for e in source[1].events() if is_thread_event(e)]
        if not events:
            return
        check_text(target_thread_id=str(target_thread_id))
        with self._threads.writing(str(target_thread_id)) as (session, thread):
            if thread.namespaces():
                raise Conflict(
                    "thread_exists",
                    f"there is a thread {target_thread_id!r} already: delete it, or take another",
                )
            data = {"id": target_thread_id}
            named = (
                [] if thread.id is not None else [session.internals.pipeline.draft(THREAD, data)]
            )
            session.internals.pipeline.begin_change()
            after = session.internals.pipeline.writer.tip.seq + len(named)
            session.internals.pipeline.writer.add(*named, *copy_events(events, after), durable=True)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints of threads.

        Args:
            thread_ids: The threads.
            strategy: "keep_latest" keeps the latest checkpoint of each namespace, "delete" none.

        Raises:
            Invalid: "bad_strategy", for another strategy.
        """
        if strategy not in ("keep_latest", "delete"):
            raise Invalid("bad_strategy", f"strategy={strategy!r}: give 'keep_latest' or 'delete'")
        for tid in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(tid)
                continue
            with self._threads.reading(tid) as thread:
                spaces = [] if thread is None else thread.namespaces()
                dropped = [s for ns in spaces if thread for s in thread.newest_first(ns)[1:]]
            self._drop(tid, dropped)

    def _remember_empty(self, tid: str, ns: str) -> None:
        if len(self._reported_empty) > _MAX_EMPTY_THREADS:
            self._reported_empty.clear()
        self._reported_empty.add((tid, ns))

    def _check_not_stale(
        self,
        thread: GraphThread,
        new: tuple[str, str],
        conf: Mapping[str, Any],
        metadata: CheckpointMetadata,
    ) -> None:
        """Raise Conflict if the parent was given as the latest checkpoint and no longer is."""
        ns, parent = conf.get("checkpoint_ns") or "", conf.get("checkpoint_id")
        tid, id_ = new
        head = thread.head(ns)
        if head is None or parent == head.id or isinstance(parent, PastId):
            return
        if metadata.get("source") == "fork" or conf.get(_REPLAYS) is not None:
            return
        if parent:
            known = thread.get_checkpoint(ns, parent) is not None
            stale = known or self._threads.is_refused(tid, (ns, parent))
        else:
            stale = (tid, ns) in self._reported_empty or self._latest_seen.get((tid, ns)) != head.id
        if stale:
            self._threads.refuse(tid, (ns, id_))
            raise _thread_moved_error(tid, head.id)

    def _drop(self, tid: str, checkpoints: Sequence[StoredCheckpoint]) -> None:
        if not checkpoints:
            return
        with self._threads.writing(tid) as (session, thread):
            ids = [[saved.ns, saved.id] for saved in checkpoints]
            make = ValueEncoder(thread.part_store, self.serde)
            self._threads.write(session, thread, make, (DROP, {"ids": ids}), tid)

    # Async variants.

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        checkpoints = self.list(config, filter=filter, before=before, limit=limit)
        while (checkpoint := await asyncio.to_thread(next, checkpoints, None)) is not None:
            yield checkpoint

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await to_thread_shielded(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        tid, pending = self._make_pending_write(config, writes, task_id, task_path)
        if not self._threads.is_known(tid):
            await asyncio.to_thread(self._threads.read, tid)
        if not await self._threads.pending_writes.await_until_added(tid, pending):
            # It already waited for its checkpoint in the event loop.
            await to_thread_shielded(self._write, tid, pending)
        elif not pending.is_stored:
            await to_thread_shielded(pending.ensure_stored)

    async def adelete_thread(self, thread_id: str) -> None:
        await to_thread_shielded(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await to_thread_shielded(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await to_thread_shielded(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await to_thread_shielded(self.prune, thread_ids, strategy=strategy)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await asyncio.to_thread(
            self.get_delta_channel_history, config=config, channels=channels
        )


def _thread_moved_error(tid: str, latest: str = "") -> Conflict:
    return Conflict(
        "thread_moved",
        f"another run wrote to thread {tid!r}, so nothing was written: run again to continue from "
        "its latest checkpoint, or name a checkpoint_id to branch off",
        latest=latest,
    )
