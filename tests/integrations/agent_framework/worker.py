"""A process of its own that runs the workflow, and waits in the middle of it."""

from __future__ import annotations

import asyncio
import sys

from tests.integrations.agent_framework.flow import Order, workflow

import ortet
from ortet.integrations.agent_framework import OrtetCheckpointStorage

ALLOWED = ["tests.integrations.agent_framework.flow:Order"]


async def main(store: str) -> None:
    with ortet.open(store) as hub:
        storage = OrtetCheckpointStorage(hub, "order 17", allowed_checkpoint_types=ALLOWED)
        await workflow(storage, wait=True).run(Order(17))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
