from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet._util.codec import Hasher
from ortet.backends.local.bucket import FileBucket
from ortet.ids import SystemClock
from ortet.objects.store import PackedObjectStore


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[PackedObjectStore]:
    store = PackedObjectStore(
        tmp_path, FileBucket(tmp_path / "bucket"), hasher=Hasher(), clock=SystemClock()
    )
    yield store
    store.close()
