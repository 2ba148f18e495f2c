"""The socket that a server listens on."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.fixtures.waiting import WAIT

from ortet.errors import Unavailable
from ortet.server.serve import bind


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_answer_is_not_held_back_until_the_client_has_acknowledged_its_head(host: str) -> None:
    """asyncio turns the delay off where a socket says that it is TCP, and else says nothing."""

    async def delay() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            one: socket.socket = writer.get_extra_info("socket")
            found.set_result(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with bind(host, 0) as bound:
            async with await asyncio.start_server(connected, sock=bound):
                _, writer = await asyncio.open_connection(host, bound.getsockname()[1])
                try:
                    return await asyncio.wait_for(found, WAIT)
                finally:
                    writer.close()

    assert asyncio.run(delay()) != 0


def test_binding_a_taken_port_is_refused() -> None:
    with bind("127.0.0.1", 0) as bound:
        bound.listen()
        with pytest.raises(Unavailable) as refused:
            bind("127.0.0.1", bound.getsockname()[1])
    assert refused.value.kind == "port_taken"
