"""Signal on a Valkey or Redis server: heard by all servers of a store, each on one connection."""

from __future__ import annotations

import msgspec

from ortet.backends.pubsub import Hearer, PostSignal, Speaker
from ortet.backends.valkey.client import Line, Link
from ortet.backends.valkey.valkeyaddress import Address, check_space

_QUIET = 1.0
"""Seconds of silence after which it is asked whether it is there."""
_ANSWER = 3.0


class ValkeySignal(PostSignal):
    """A channel a topic."""

    def __init__(self, address: Address, space: str) -> None:
        super().__init__(_Valkey(address, f"ortet:{{{check_space(space)}}}:s:"))


class _Valkey(msgspec.Struct, frozen=True):
    address: Address
    head: str

    name = "valkey"
    narrows = True
    is_deaf = False
    pace = 0.0

    @property
    def troubles(self) -> tuple[type[Exception], ...]:
        return Link(self.address).troubles

    def speaker(self) -> Speaker:
        return _Speaker(Link(self.address).connect(), self.head)

    def hearer(self, prefix: str) -> Hearer:
        line = Link(self.address).connect()
        try:
            line.call("PSUBSCRIBE", f"{self.head}{prefix}*")
        except BaseException:
            line.close()
            raise
        return _Hearer(line, self.head)


class _Speaker:
    def __init__(self, line: Line, head: str) -> None:
        self._line = line
        self._head = head

    def tell(self, topics: list[str]) -> None:
        self._line.calls([("PUBLISH", self._head + topic, b"") for topic in topics])

    def close(self) -> None:
        self._line.close()


class _Hearer:
    def __init__(self, line: Line, head: str) -> None:
        self._line = line
        self._head = head

    def heard(self) -> list[str]:
        told = self._line.heard(_QUIET)
        if told is None:
            self._line.send("PING")
            told = self._line.heard(_ANSWER)
            if told is None:
                raise TimeoutError("the server does not answer")
        if told[0] != b"pmessage":
            return []
        return [told[2].decode("utf-8", "replace")[len(self._head) :]]

    def wake(self) -> None:
        self._line.close()

    def close(self) -> None:
        self._line.close()
