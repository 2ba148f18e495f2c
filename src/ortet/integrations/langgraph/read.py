"""Builds the results of the checkpointer interface from a thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import TASKS

from ortet.errors import Corrupt, OrtetError
from ortet.integrations.langgraph.thread import SENDS, GraphThread, StoredCheckpoint
from ortet.integrations.langgraph.values.parts import PartNotLoaded, Tree


def config_of(thread_id: Any, ns: str, id_: str) -> RunnableConfig:
    fields = {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id_}
    return {"configurable": fields}


def _value(thread: GraphThread, key: str, tree: Tree, serde: SerializerProtocol) -> Any:
    try:
        return thread.part_store.decode(tree, serde)
    except (OrtetError, PartNotLoaded):
        raise
    except Exception as error:
        raise Corrupt(
            "bad_value",
            f"{key!r} of thread {thread.id!r} cannot be read ({type(error).__name__}: {error}): "
            "what is stored is damaged, or was written with another serde; give OrtetSaver that "
            "one, or go on from an older checkpoint",
            thread=str(thread.id),
            key=key,
        ) from error


def build_checkpoint_tuple(
    thread: GraphThread,
    checkpoint: StoredCheckpoint,
    serde: SerializerProtocol,
    id_class: type[str],
    thread_id: Any,
) -> CheckpointTuple:
    """Build the checkpoint tuple.

    `id_class` marks its ids as latest (`HeadId`) or past (`PastId`). LangGraph takes the id for
    `put` from the config, and for `put_writes` from the checkpoint.
    """
    id_ = id_class(checkpoint.id)
    parent = (
        config_of(thread_id, checkpoint.ns, id_class(checkpoint.parent))
        if checkpoint.parent
        else None
    )
    return CheckpointTuple(
        config=config_of(thread_id, checkpoint.ns, id_),
        checkpoint=_checkpoint(thread, checkpoint, serde, id_),
        metadata=_value(thread, "metadata", checkpoint.meta, serde),
        parent_config=parent,
        pending_writes=[
            (write.task, write.channel, _value(thread, write.channel, write.tree, serde))
            for write in thread.writes(checkpoint.ns, checkpoint.id)
        ],
    )


def _checkpoint(
    thread: GraphThread, saved: StoredCheckpoint, serde: SerializerProtocol, id_: str
) -> Checkpoint:
    checkpoint: Any = {key: _value(thread, key, tree, serde) for key, tree in saved.rest.items()}
    checkpoint["id"] = id_
    values = {key: _value(thread, key, tree, serde) for key, tree in saved.values.items()}
    checkpoint["channel_values"] = values
    if (
        checkpoint.get("v", SENDS) < SENDS
        and saved.parent
        and TASKS not in checkpoint["channel_values"]
    ):
        _add_legacy_sends(thread, saved, checkpoint, serde)
    return checkpoint  # type: ignore[no-any-return]


def _add_legacy_sends(
    thread: GraphThread, saved: StoredCheckpoint, checkpoint: Any, serde: SerializerProtocol
) -> None:
    """Add sends from the parent checkpoint, where older LangGraph releases stored them."""
    assert saved.parent
    writes = thread.writes(saved.ns, saved.parent)
    sends = [_value(thread, TASKS, one.tree, serde) for one in writes if one.channel == TASKS]
    if sends:
        checkpoint["channel_values"][TASKS] = sends
        versions = checkpoint["channel_versions"]
        versions.setdefault(TASKS, max(versions.values()) if versions else 1)


def select_checkpoints(
    thread: GraphThread, config: RunnableConfig | None, before: RunnableConfig | None
) -> Iterable[StoredCheckpoint]:
    """Return the matching checkpoints, newest first."""
    conf = config["configurable"] if config else {}
    ns = conf.get("checkpoint_ns")
    checkpoints = thread.all_checkpoints() if ns is None else thread.newest_first(ns)
    if id_ := conf.get("checkpoint_id"):
        checkpoints = [one for one in checkpoints if one.id == id_]
    until = get_checkpoint_id(before) if before else None
    if until is None:
        return checkpoints
    known = thread.get_checkpoint(ns, until) if ns is not None else None
    if known is not None:
        return [one for one in checkpoints if one.seq < known.seq]
    return [one for one in checkpoints if one.id < until]


def matches_metadata(
    thread: GraphThread,
    checkpoint: StoredCheckpoint,
    expected: dict[str, Any],
    serde: SerializerProtocol,
) -> bool:
    meta = _value(thread, "metadata", checkpoint.meta, serde)
    return all(meta.get(key) == value for key, value in expected.items())


def run_of(thread: GraphThread, checkpoint: StoredCheckpoint, serde: SerializerProtocol) -> Any:
    return _value(thread, "metadata", checkpoint.meta, serde).get("run_id")


def history(
    thread: GraphThread,
    checkpoint: StoredCheckpoint | None,
    channels: Sequence[str],
    serde: SerializerProtocol,
) -> dict[str, DeltaChannelHistory]:
    """Return the writes to each channel on the path to a checkpoint since its last stored value.

    Writes in checkpoints that were deleted later are included.
    """
    writes: dict[str, list[Any]] = {channel: [] for channel in channels}
    seeds: dict[str, Any] = {}
    at = thread.get_checkpoint(checkpoint.ns, checkpoint.parent) if checkpoint else None
    while at is not None and len(seeds) < len(writes):
        for write in reversed(thread.writes(at.ns, at.id)):
            if write.channel in writes and write.channel not in seeds:
                value = _value(thread, write.channel, write.tree, serde)
                writes[write.channel].append((write.task, write.channel, value))
        for channel in writes:
            if channel in at.values and channel not in seeds:
                seeds[channel] = _value(thread, channel, at.values[channel], serde)
        at = thread.get_checkpoint(at.ns, at.parent)
    histories: dict[str, DeltaChannelHistory] = {}
    for channel in channels:
        histories[channel] = {"writes": writes[channel][::-1]}
        if channel in seeds:
            histories[channel]["seed"] = seeds[channel]
    return histories
