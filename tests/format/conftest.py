from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ortet.backend.files import FileBucket
from ortet.codec import Hasher
from ortet.ids import SystemClock
from ortet.store.objects import LocalObjects


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[LocalObjects]:
    store = LocalObjects(
        tmp_path, FileBucket(tmp_path / "bucket"), hasher=Hasher(), clock=SystemClock()
    )
    yield store
    store.close()
