"""Where the packs of a store are, and everything that follows from it.

`PackedObjectStore` asks its placement for the parts that differ between a store on one host and a
store whose packs are in a remote bucket. Reads do not pass through the placement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

from ortet.backends.base import Bucket, UploadBacklog
from ortet.objects.gc.lock import FileFence, SweepFence
from ortet.objects.layout import SpaceGuard, StoreLayout
from ortet.objects.pack_set import LocalPackStorage, PackSet
from ortet.objects.writer import DiskFlush, FlushTarget, ObjectWriter

Durability = Literal["remote", "local"]
"""Where a commit is when it returns: in the bucket, or only on this host's disk."""


class StorePlacement(ABC):
    """The parts and the behaviour of a store that depend on where its packs are.

    A store handle calls `make_fence` and `make_packs` once, when it opens.
    """

    is_remote: bool
    """True if the bucket is remote and the directory of the store is only a local cache of it."""

    @abstractmethod
    def make_fence(self, layout: StoreLayout) -> SweepFence:
        """Return the fence that keeps a sweep and the writers apart."""

    @abstractmethod
    def make_packs(
        self,
        layout: StoreLayout,
        bucket: Bucket,
        *,
        key_id: bytes,
        new_id: Callable[[], str],
        space: SpaceGuard,
    ) -> tuple[PackSet, FlushTarget]:
        """Return the packs and tails of the store, and where a flush makes them durable."""

    @abstractmethod
    def flush(self, writer: ObjectWriter, *, sync: bool) -> None:
        """Flush `writer`. With `sync`, all objects are durable on return."""

    @abstractmethod
    def durability(self, durable: Durability | None) -> AbstractContextManager[None]:
        """Set what `flush` guarantees within the block. None keeps the present guarantee."""

    @abstractmethod
    def backlog(self) -> UploadBacklog:
        """Return what is stored only on this host and not yet readable by other hosts."""

    @abstractmethod
    def wait_uploaded(self, timeout: float) -> None:
        """Wait until the backlog is empty. Raises Unavailable("not_uploaded_yet") on timeout."""

    @abstractmethod
    def close(self) -> None:
        """Release what the placement has opened, after the writer has closed."""


class LocalPlacement(StorePlacement):
    """Packs in a bucket on this host. A flush syncs them to the disk."""

    is_remote = False

    def make_fence(self, layout: StoreLayout) -> SweepFence:
        return FileFence(layout.local)

    def make_packs(
        self,
        layout: StoreLayout,
        bucket: Bucket,
        *,
        key_id: bytes,
        new_id: Callable[[], str],
        space: SpaceGuard,
    ) -> tuple[PackSet, FlushTarget]:
        storage = LocalPackStorage(layout, bucket, key_id=key_id, new_id=new_id)
        packs = PackSet(layout, storage, new_id=new_id)
        return packs, DiskFlush(packs, space)

    def flush(self, writer: ObjectWriter, *, sync: bool) -> None:
        writer.flush(sync=sync)

    def durability(self, durable: Durability | None) -> AbstractContextManager[None]:
        """Ignore the value: there is only this host."""
        del durable
        return nullcontext()

    def backlog(self) -> UploadBacklog:
        return UploadBacklog()

    def wait_uploaded(self, timeout: float) -> None: ...

    def close(self) -> None: ...
