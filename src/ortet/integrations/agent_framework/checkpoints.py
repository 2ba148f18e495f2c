"""`OrtetCheckpointStorage`: stores workflow checkpoints as records of a session."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from agent_framework import WorkflowCheckpoint
from agent_framework.exceptions import WorkflowCheckpointException

from ortet._util.codec import decode, encode
from ortet._util.validation import check_text, check_texts
from ortet.errors import Corrupt, NotFound
from ortet.hub.hub import Hub, hub_of
from ortet.integrations._shared.messages import append_stored_events, get_session_pool
from ortet.integrations._shared.session_pool import session_name
from ortet.integrations.agent_framework.values import TYPE_KEY, CheckpointValueCodec
from ortet.integrations.aio import to_thread_shielded
from ortet.journal.events import Draft, Event, ObjectRef
from ortet.sessions.actions import artifacts
from ortet.sessions.actions.artifacts import StoredContent
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

# Splits large values into parts that are stored once; a list that grows adds only its end.

_MAX_INLINE_BYTES = 4096
_LIST_CHUNK_ITEMS = 64
"""Number of list items in one part."""
_MAX_EVENT_BYTES = 1 << 19
"""Maximum size in bytes of the event itself."""


class ChunkedValues:
    """Stores large values as objects; use it inside `hub.store.writing()`.

    `refs` are the object references that the event must name.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.refs: list[ObjectRef] = []

    def split(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Return the value with large parts replaced by references."""
        small = {key: self._split(value) for key, value in plain.items()}
        return small if len(encode(small)) <= _MAX_EVENT_BYTES else {"all": self._put(plain)}

    def _split(self, plain: Any) -> Any:
        if isinstance(plain, str) and len(plain) > _MAX_INLINE_BYTES:
            return self._put(plain)
        if not isinstance(plain, dict | list) or len(encode(plain)) <= _MAX_INLINE_BYTES:
            return plain
        if isinstance(plain, dict):
            return {key: self._split(value) for key, value in plain.items()}
        parts = [
            plain[at : at + _LIST_CHUNK_ITEMS] for at in range(0, len(plain), _LIST_CHUNK_ITEMS)
        ]
        return {TYPE_KEY: "parts", "v": [self._put(part) for part in parts]}

    def _put(self, plain: Any) -> dict[str, Any]:
        data = self._hub.store.secrets.redact_bytes(encode(plain))
        stored = artifacts.store_content(self._hub.objects, data)
        self.refs += stored.refs
        return {TYPE_KEY: "at", "o": stored.oid, "n": stored.size}


def join_parts(hub: Hub, stored: Any) -> Any:
    """Return the value with references replaced by the stored parts."""
    if isinstance(stored, list):
        return [join_parts(hub, one) for one in stored]
    if not isinstance(stored, dict):
        return stored
    if stored.get(TYPE_KEY) == "at":
        try:
            content = StoredContent(stored["o"], stored["n"])
        except KeyError as error:
            raise Corrupt("bad_checkpoint", "a part of this checkpoint has no place") from error
        return decode(Any, artifacts.load(hub.objects, content))
    if stored.get(TYPE_KEY) == "parts":
        return [one for part in stored["v"] for one in join_parts(hub, part)]
    return {key: join_parts(hub, value) for key, value in stored.items()}


SAVED = "agent-framework.checkpoint"
DELETED = "agent-framework.deleted"
_INDEXED_FIELDS = ("checkpoint_id", "workflow_name", "timestamp", "previous_checkpoint_id")
"""Fields of a checkpoint that its record repeats outside the content."""

T = TypeVar("T")


class OrtetCheckpointStorage:
    """Stores workflow checkpoints in an Ortet session.

    All checkpoints are in one Ortet session. Use a name for each run if many run at the same time.

    Plain data, the framework's own types, dataclasses and pydantic models are stored by their
    fields, not pickled.

    Example:
        storage = OrtetCheckpointStorage(ortet.open("flows"), "orders")
        workflow = WorkflowBuilder(start_executor=first, checkpoint_storage=storage).build()
    """

    def __init__(
        self,
        hub: Hub,
        name: str = "workflows",
        *,
        agent: str = "default",
        allowed_checkpoint_types: Iterable[str] = (),
        pickle: bool = False,
        **options: Any,
    ) -> None:
        """Use an open store.

        Args:
            hub: The open store.
            name: Name of the session.
            agent: Agent that owns the session.
            allowed_checkpoint_types: Types of the program that may be stored, as "module:qualname".
            pickle: Pickle values that cannot be stored otherwise, and read pickled values.
            options: Options of `hub.session` for a new session.
        """
        check_text(name=name)
        allowed = check_texts("allowed_checkpoint_types", allowed_checkpoint_types)
        self._values = CheckpointValueCodec(allowed, allow_pickle=pickle)
        self._options = options
        self._pool = get_session_pool(hub, agent)
        self._name = session_name(name)
        self._index = _CheckpointIndex()

    @property
    def name(self) -> str:
        """The name of the Ortet session, for `ortet journal NAME` and `hub.get(NAME)`."""
        return self._name

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint; it is on disk when this returns.

        Args:
            checkpoint: The checkpoint.

        Returns:
            Its id.

        Raises:
            Invalid: "not_storable", with the path of a value that cannot be stored.
        """
        return await to_thread_shielded(self._save, checkpoint)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint.

        Raises:
            WorkflowCheckpointException: If there is no checkpoint of this id.
        """
        check_text(checkpoint_id=checkpoint_id)

        def load(view: SessionReader) -> WorkflowCheckpoint | None:
            event = self._index.events_by_id(view).get(checkpoint_id)
            return None if event is None else self._build_checkpoint(view, event)

        checkpoint = await asyncio.to_thread(self._read, load)
        if checkpoint is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return checkpoint

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow in the order in which they were saved."""

        def load(view: SessionReader) -> list[WorkflowCheckpoint]:
            return [
                self._build_checkpoint(view, event)
                for event in self._events_of_workflow(view, workflow_name)
            ]

        return await asyncio.to_thread(self._read, load) or []

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of the checkpoints of a workflow in the order in which they were saved."""

        def ids(view: SessionReader) -> list[str]:
            return [
                event.data["checkpoint_id"]
                for event in self._events_of_workflow(view, workflow_name)
            ]

        return await asyncio.to_thread(self._read, ids) or []

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the newest checkpoint of a workflow, or None."""

        def load(view: SessionReader) -> WorkflowCheckpoint | None:
            events = self._events_of_workflow(view, workflow_name)
            return self._build_checkpoint(view, _latest(events)) if events else None

        return await asyncio.to_thread(self._read, load)

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint. It stays in the journal until `hub.erase`.

        Returns:
            False if there is no checkpoint of this id.
        """
        check_text(checkpoint_id=checkpoint_id)
        return await to_thread_shielded(self._delete, checkpoint_id)

    # Synchronous bodies, run in a thread.

    def _save(self, checkpoint: WorkflowCheckpoint) -> str:
        plain = self._values.encode(checkpoint.to_dict())
        with self._pool.writing(self._name, **self._options) as session:
            hub = hub_of(session)

            def checkpoint_events() -> list[Draft]:
                parts = ChunkedValues(hub)
                known = {key: plain[key] for key in _INDEXED_FIELDS}
                data = {**known, "content": parts.split(plain)}
                hub.objects.flush()
                return [Draft(SAVED, data, hub.store.author, parts.refs)]

            append_stored_events(session, checkpoint_events)
        return checkpoint.checkpoint_id

    def _delete(self, checkpoint_id: str) -> bool:
        def delete(session: Session) -> bool:
            if checkpoint_id not in self._index.events_by_id(session):
                return False
            session.record(DELETED, {"checkpoint_id": checkpoint_id})
            return True

        try:
            with self._pool.writing(self._name, create=False) as session:
                return delete(session)
        except NotFound:
            return False

    def _events_of_workflow(self, view: SessionReader, workflow_name: str) -> list[Event]:
        events = self._index.events_by_id(view).values()
        return [event for event in events if event.data["workflow_name"] == workflow_name]

    def _build_checkpoint(self, view: SessionReader, event: Event) -> WorkflowCheckpoint:
        content = event.data["content"]
        plain = join_parts(hub_of(view), content["all"] if list(content) == ["all"] else content)
        return WorkflowCheckpoint.from_dict(self._values.decode(plain))

    def _read(self, verb: Callable[[SessionReader], T]) -> T | None:
        try:
            with self._pool.reading(self._name) as view:
                return verb(view)
        except NotFound as error:
            if error.kind != "no_session":
                raise
            return None


class _CheckpointIndex:
    """Checkpoints by id, read from the journal of an open session.

    For another reader the index is built again, because events may have been erased in between.
    """

    def __init__(self) -> None:
        self._view_ref: weakref.ref[SessionReader] | None = None
        self._timeline, self._seq = "", 0
        self._events: dict[str, Event] = {}

    def events_by_id(self, view: SessionReader) -> dict[str, Event]:
        newest = view.internals.state.core.events
        is_same = self._view_ref is not None and self._view_ref() is view
        if not is_same or view.internals.event_log.timeline != self._timeline or newest < self._seq:
            self._view_ref = weakref.ref(view)
            self._timeline, self._seq, self._events = view.internals.event_log.timeline, 0, {}
        for event in view.events(self._seq, newest) if newest > self._seq else ():
            if event.erased:
                continue
            if event.kind in (SAVED, DELETED):
                self._events.pop(event.data["checkpoint_id"], None)
            if event.kind == SAVED:
                self._events[event.data["checkpoint_id"]] = event
        self._seq = newest
        return self._events


def _latest(events: Sequence[Event]) -> Event:
    """Return the latest checkpoint by time, like the framework's own storages.

    A checkpoint is later than its predecessor, even if the clock was set back in between.
    """
    after = {event.data["previous_checkpoint_id"]: event for event in events}
    latest = max(events, key=_event_order)
    while (next_ := after.get(latest.data["checkpoint_id"])) and next_.seq > latest.seq:
        latest = next_
    return latest


def _event_order(event: Event) -> tuple[datetime, int]:
    return datetime.fromisoformat(event.data["timestamp"]), event.seq
