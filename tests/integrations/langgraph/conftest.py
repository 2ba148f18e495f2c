"""A saver of checkpoints on the store of a test."""

from __future__ import annotations

import pytest

from ortet.hub.hub import Hub
from ortet.integrations.langgraph import OrtetSaver


@pytest.fixture
def saver(hub: Hub) -> OrtetSaver:
    """A saver on `hub`."""
    return OrtetSaver(hub)
