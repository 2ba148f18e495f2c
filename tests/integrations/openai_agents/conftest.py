"""Nothing is sent to OpenAI."""

from __future__ import annotations

import pytest
from agents import set_tracing_disabled


@pytest.fixture(autouse=True)
def untraced() -> None:
    set_tracing_disabled(True)
