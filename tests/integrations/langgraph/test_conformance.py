"""LangGraph's own conformance suite for checkpointers, with every capability detected, through the
async methods, which it calls, and through the sync ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability

import ortet
from ortet.integrations.langgraph import OrtetSaver


class Plain(OrtetSaver):
    """The async methods of the suite, answered by the sync ones."""

    async def aget_tuple(self, *args: Any) -> Any:
        return self.get_tuple(*args)

    async def alist(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        for one in self.list(*args, **kwargs):
            yield one

    async def aput(self, *args: Any) -> Any:
        return self.put(*args)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        self.put_writes(*args, **kwargs)

    async def adelete_thread(self, *args: Any) -> None:
        self.delete_thread(*args)

    async def adelete_for_runs(self, *args: Any) -> None:
        self.delete_for_runs(*args)

    async def acopy_thread(self, *args: Any) -> None:
        self.copy_thread(*args)

    async def aprune(self, *args: Any, **kwargs: Any) -> None:
        self.prune(*args, **kwargs)


@pytest.mark.parametrize("saver", [OrtetSaver, Plain])
def test_the_saver_passes_the_langgraph_conformance_suite(tmp_path: Path, saver: Any) -> None:
    with ortet.open(tmp_path / "store") as hub:

        @checkpointer_test(name="OrtetSaver")
        async def made() -> AsyncGenerator[Any, None]:
            yield saver(hub)

        report = asyncio.run(validate(made))
    for capability in Capability:
        result = report.results[capability.value]
        assert result.detected, capability
        assert result.passed, (capability, result.failures)
        assert result.tests_passed > 0 and not result.tests_failed and not result.tests_skipped
    assert report.passed_all()
