"""Messages and descriptors over a socket."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from ortet.machines.standalone import ipc


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def test_messages_come_whole_and_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    one, two = pair
    with one, two:
        large = {"text": "x" * 3_000_000, "odd": "\udcff\0\n"}

        def send() -> None:
            ipc.send(one, large)
            ipc.send(one, {})

        sender = threading.Thread(target=send)
        sender.start()
        assert ipc.receive(two) == (large, [])
        assert ipc.receive(two) == ({}, [])
        sender.join()


def test_descriptors_travel_and_are_closed_on_exec(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, two = pair
    reader, writer = os.pipe()
    with one, two:
        ipc.send(one, {"n": 2}, [reader, writer])
        os.close(reader)
        os.close(writer)
        message, fds = ipc.receive(two)
        assert message == {"n": 2}
        assert not any(os.get_inheritable(fd) for fd in fds)
        os.write(fds[1], b"through")
        assert os.read(fds[0], 100) == b"through"
        for fd in fds:
            os.close(fd)


def test_a_closed_socket_raises_closed_on_receive_and_send(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, two = pair
    with two:
        one.sendall(b"\0\0\0\x09{")
        one.close()
        with pytest.raises(ipc.ConnectionClosed):
            ipc.receive(two)
        with pytest.raises(ipc.ConnectionClosed):
            ipc.send(two, {"to": "nobody"})


def test_a_message_with_an_absurd_length_raises_closed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, two = pair
    with one, two:
        one.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(ipc.ConnectionClosed):
            ipc.receive(two)


def test_messages_are_cut_from_a_buffer_as_they_become_whole() -> None:
    one, two = {"text": "\udcff"}, {"number": 7}
    stream = ipc.pack(one) + ipc.pack(two)
    buffer, found = bytearray(), []
    for byte in stream:
        buffer.append(byte)
        if (message := ipc.pop_message(buffer)) is not None:
            found.append(message)
    assert found == [one, two] and not buffer


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_an_invalid_or_oversized_message_raises_closed(body: bytes) -> None:
    with pytest.raises(ipc.ConnectionClosed):
        ipc.pop_message(bytearray(len(body).to_bytes(4, "big") + body))
    with pytest.raises(ipc.ConnectionClosed):
        ipc.pop_message(bytearray(ipc.pack({"long": "x" * 100})), max_bytes=50)
