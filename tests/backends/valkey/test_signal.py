"""The signal on a Valkey server that is killed, paused or started later."""

from __future__ import annotations

import threading

import pytest
from tests.fixtures.valkey import Server, connection_count
from tests.fixtures.waiting import WAIT, eventually

from ortet.backends.pubsub import _CHANNELS, PubSubSignal
from ortet.backends.valkey.address import parse_valkey_url
from ortet.backends.valkey.signal import valkey_signal
from ortet.errors import Invalid

pytestmark = [pytest.mark.valkey, pytest.mark.usefixtures("unhurried")]


def test_a_signal_works_again_after_a_server_restart(hears: PubSubSignal, valkey: Server) -> None:
    token = hears.token("topic")
    valkey.kill()
    assert hears.wait("topic", token, WAIT) is True  # anything may have happened
    token = hears.token("topic")
    assert hears.wait("topic", token, WAIT) is True  # each second again
    assert hears.last_error
    hears.notify("topic")  # is no error
    valkey.start()
    eventually(lambda: not hears.last_error)
    token, _ = hears.wait_any(None, 0.0)

    def is_heard() -> bool:
        nonlocal token
        hears.notify("topic")
        token, topics = hears.wait_any(token, 1.0)
        return "topic" in (topics or ())

    eventually(is_heard)


def test_a_paused_server_wakes_waiting_listeners(hears: PubSubSignal, valkey: Server) -> None:
    token = hears.token("topic")
    valkey.pause()
    assert hears.wait("topic", token, WAIT) is True
    valkey.resume()
    eventually(lambda: not hears.last_error)


def test_a_signal_connects_when_the_server_starts_later() -> None:
    valkey = Server()
    signal = valkey_signal(parse_valkey_url(valkey.url), "space")
    try:
        token = signal.token("topic")
        assert signal.wait("topic", token, WAIT) is True
        valkey.start()
        eventually(lambda: not signal.last_error)
    finally:
        signal.close()
        valkey.close()


def test_signals_of_a_process_share_their_connections(valkey: Server) -> None:
    address, others = parse_valkey_url(valkey.url), set(threading.enumerate())
    signals = [valkey_signal(address, "space") for _ in range(20)]
    for signal in signals:
        signal.token("topic")
        signal.notify("topic")
    eventually(lambda: connection_count(valkey) == 2)  # one hears, one tells
    for signal in signals:
        signal.close()
    assert not _is_shared(valkey)
    eventually(lambda: connection_count(valkey) == 0)
    eventually(lambda: not [t for t in {*threading.enumerate()} - others if "valkey" in t.name])


def _is_shared(valkey: Server) -> bool:
    """Other tests may have left some of their own."""
    address = parse_valkey_url(valkey.url)
    return any(getattr(wire, "address", None) == address for wire in _CHANNELS)


def test_a_garbage_collected_signal_releases_its_connection(valkey: Server) -> None:
    valkey_signal(parse_valkey_url(valkey.url), "space").token("topic")
    eventually(lambda: not _is_shared(valkey))
    eventually(lambda: connection_count(valkey) == 0)


def test_a_narrowed_signal_hears_nothing_else(hears: PubSubSignal) -> None:
    narrow = hears.with_prefix("want")
    token, _ = narrow.wait_any(None, 0.0)
    hears.notify("other")
    hears.notify("want:1")
    _, topics = narrow.wait_any(token, WAIT)
    assert topics is None or topics == {"want:1"}
    narrow.close()
    with pytest.raises(Invalid) as caught:
        hears.with_prefix("a*")
    assert caught.value.kind == "bad_topic"


def test_signals_of_different_spaces_are_isolated(hears: PubSubSignal, valkey: Server) -> None:
    other = valkey_signal(parse_valkey_url(valkey.url), "other")
    token, _ = hears.wait_any(None, 0.0)
    other.notify("theirs")
    other.close()
    hears.notify("ours")
    _, topics = hears.wait_any(token, WAIT)
    assert topics is None or topics == {"ours"}
