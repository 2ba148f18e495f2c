"""Hundreds of streams, and clients that never read: other requests are not affected."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.server.event_streams import Stream

if TYPE_CHECKING:
    from tests.fixtures.http_server import Client, Serve, Server

MANY = 500
DEAF = 40
LARGE = 64 << 10


@contextmanager
def many_files() -> Iterator[None]:
    """Each stream is a descriptor of this process too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_streams(
    stack: ExitStack, server: Server, path: str, count: int, *, buffer: int = 0
) -> list[Stream]:
    found = []
    for _ in range(count):
        stream = Stream(server.url, f"{path}/events/stream", buffer=buffer)
        stack.callback(stream.close)
        found.append(stream)
    return found


def streams_open(client: Client) -> int:
    lines = client.ask("GET", "/metrics").body.decode().splitlines()
    return int(float(next(one for one in lines if one.startswith("ortet_streams ")).split()[1]))


def memory(server: Server) -> int:
    """Bytes that the server has in memory."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(one.split()[1]) << 10 for one in lines if one.startswith("VmRSS:"))


def think(client: Client, path: str, text: str) -> None:
    client.post(f"{path}/thoughts", {"text": text})


def test_hundreds_of_idle_streams_get_events_and_block_no_request(serve: Serve) -> None:
    server = serve("--no-auth")
    client = server.client()
    path = client.new("followed")
    with many_files(), ExitStack() as stack:
        streams = open_streams(stack, server, path, MANY)
        for stream in streams:
            stream.begin().upto("live")
        assert streams_open(client) == MANY
        other = client.new("other")
        think(client, other, "beside them")
        assert client.get(f"{other}/events")["items"]
        assert client.ask("GET", "/healthz").status == 200
        for text in ("first", "second"):
            think(client, path, text)
            for stream in streams:
                (heard,) = stream.take(1)
                assert heard.data["data"] == {"text": text}
        half = MANY // 2
        for stream in streams[:half]:
            stream.close()
        think(client, path, "to those who stay")
        for stream in streams[half:]:
            (heard,) = stream.take(1)
            assert heard.data["data"] == {"text": "to those who stay"}
        assert server.stop() == 0
        for stream in streams[half:]:
            assert stream.upto("end")[-1].data == {"reason": "stopping"}


def test_streams_that_never_read_use_bounded_memory_and_block_nobody(serve: Serve) -> None:
    server = serve("--no-auth", "--limit", "grace=2")
    client = server.client()
    path = client.new("loud")
    with many_files(), ExitStack() as stack:
        open_streams(stack, server, path, DEAF, buffer=4096)  # not even the head of the answer
        (reader,) = open_streams(stack, server, path, 1)
        reader.begin().upto("live")
        before = memory(server)
        batches, each = 10, 20
        for batch in range(batches):
            said = [{"role": "user", "content": f"{batch}.{n} " + "x" * LARGE} for n in range(each)]
            client.post(f"{path}/messages/batch", {"messages": said})
            heard = [one for one in reader.take(each) if one.data["kind"] == "message"]
            assert [one.data["data"]["content"].split()[0] for one in heard] == [
                f"{batch}.{n}" for n in range(each)
            ]
        written = batches * each * LARGE
        # all of it for each of them would be four times as much as is allowed here
        assert memory(server) - before < DEAF * written // 4
        assert client.get(f"{path}/messages", last=1)["items"]
        assert server.stop() == 0
