"""The Signal on a Valkey or Redis server, shared by all servers of a store."""

from __future__ import annotations

import msgspec

from ortet.backends.base import Signal
from ortet.backends.pubsub import Publisher, PubSubSignal, Subscriber
from ortet.backends.valkey.address import ValkeyAddress, check_namespace, parse_valkey_url
from ortet.backends.valkey.client import ValkeyClient, ValkeyConnection, shared_client

_KEEPALIVE_SECONDS = 1.0
"""Seconds of silence after which a PING is sent."""
_KEEPALIVE_TIMEOUT_SECONDS = 3.0


def open_signal(url: str, *, namespace: str) -> Signal:
    """Open the signal of the store with id `namespace`.

    Raise Refused if the server rejects the login. An unreachable server is not an error: the signal
    connects when the server is back.
    """
    address = parse_valkey_url(url)
    link = shared_client(address)
    try:
        return valkey_signal(address, namespace)
    finally:
        link.remove_user()


def valkey_signal(address: ValkeyAddress, namespace: str) -> PubSubSignal:
    """Return a signal with one channel per topic."""
    return PubSubSignal(_ValkeyTransport(address, f"ortet:{{{check_namespace(namespace)}}}:s:"))


class _ValkeyTransport(msgspec.Struct, frozen=True):
    address: ValkeyAddress
    channel_prefix: str

    name = "valkey"
    has_prefix_filter = True
    is_echo_free = False
    publish_interval = 0.0

    @property
    def connection_errors(self) -> tuple[type[Exception], ...]:
        return ValkeyClient(self.address).connection_errors

    def connect_publisher(self) -> Publisher:
        return _ValkeyPublisher(ValkeyClient(self.address).connect(), self.channel_prefix)

    def connect_subscriber(self, prefix: str) -> Subscriber:
        connection = ValkeyClient(self.address).connect()
        try:
            connection.call("PSUBSCRIBE", f"{self.channel_prefix}{prefix}*")
        except BaseException:
            connection.close()
            raise
        return _ValkeySubscriber(connection, self.channel_prefix)


class _ValkeyPublisher:
    def __init__(self, connection: ValkeyConnection, channel_prefix: str) -> None:
        self._connection = connection
        self._channel_prefix = channel_prefix

    def publish(self, topics: list[str]) -> None:
        self._connection.call_many(
            [("PUBLISH", self._channel_prefix + topic, b"") for topic in topics]
        )

    def close(self) -> None:
        self._connection.close()


class _ValkeySubscriber:
    def __init__(self, connection: ValkeyConnection, channel_prefix: str) -> None:
        self._connection = connection
        self._channel_prefix = channel_prefix

    def receive(self) -> list[str]:
        message = self._connection.receive(_KEEPALIVE_SECONDS)
        if message is None:
            self._connection.send("PING")
            message = self._connection.receive(_KEEPALIVE_TIMEOUT_SECONDS)
            if message is None:
                raise TimeoutError("the server does not answer")
        if message[0] != b"pmessage":
            return []
        return [message[2].decode("utf-8", "replace")[len(self._channel_prefix) :]]

    def wake(self) -> None:
        self._connection.close()

    def close(self) -> None:
        self._connection.close()
