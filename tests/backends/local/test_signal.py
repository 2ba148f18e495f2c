"""What the signals do beside the contract: nothing without cause, and nothing left behind."""

from __future__ import annotations

import os
import signal as signals
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from tests.fixtures import forked
from tests.fixtures.waiting import WAIT

from ortet.backends.base import Signal
from ortet.backends.local.signal import HostSignal, ProcessSignal, SignalSocket, TopicVersions
from ortet.errors import Invalid, Unavailable

LISTENER = """
import sys
from pathlib import Path
from ortet.backends.local.signal import HostSignal
signal = HostSignal(Path(sys.argv[1]))
token = signal.token("topic")
print("ready", flush=True)
sys.stdin.read()
"""

FORKER = """
import os, sys
from pathlib import Path
from ortet.backends.local.signal import HostSignal
directory = Path(sys.argv[1])
signal = HostSignal(directory)
token = signal.token("topic")
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    mine = signal.token("topic")
    os.write(write, b"x")
    os._exit(0 if signal.wait("topic", mine, 60) else 1)
os.read(read, 1)
assert len(os.listdir(directory)) == 2
HostSignal(directory).notify("topic")
assert signal.wait("topic", token, 60)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
signal.close()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "signal"


@pytest.fixture(params=["process", "host"])
def signal(request: pytest.FixtureRequest, directory: Path) -> Iterator[Signal]:
    made: dict[str, Callable[[], Signal]] = {
        "process": ProcessSignal,
        "host": lambda: HostSignal(directory),
    }
    signal = made[request.param]()
    yield signal
    signal.close()


def test_a_notify_before_the_token_does_not_wake_the_waiter(signal: Signal) -> None:
    signal.token("topic")
    signal.notify("topic")
    token = signal.token("topic")
    assert signal.wait("topic", token, 0.0) is False


def test_a_notify_of_another_topic_does_not_wake_the_waiter(signal: Signal) -> None:
    token = signal.token("topic")
    signal.notify("other")
    assert signal.wait("topic", token, 0.01) is False
    assert signal.wait("other", token, WAIT) is True


def test_a_narrowed_signal_is_not_woken_by_other_topics(directory: Path) -> None:
    sender = HostSignal(directory)
    narrow = sender.with_prefix("rooms")
    token, _ = narrow.wait_any(None, 0.0)
    for _ in range(1000):  # more than its queue would hold
        sender.notify("session")
    assert narrow.wait_any(token, 0.0) == (token, set())
    sender.notify("rooms:1")
    _, topics = narrow.wait_any(token, WAIT)
    assert topics == {"rooms:1"}
    narrow.close()
    assert os.listdir(directory) == []


def test_narrowing_a_signal_to_more_than_one_word_is_refused(directory: Path) -> None:
    with pytest.raises(Invalid):
        HostSignal(directory).with_prefix("a.b")


def test_notify_without_listeners_leaves_nothing(directory: Path) -> None:
    HostSignal(directory).notify("topic")
    assert not directory.exists()


def test_listeners_leave_nothing_behind(directory: Path) -> None:
    signal = HostSignal(directory)
    signal.token("topic")
    assert len(os.listdir(directory)) == 1
    signal.close()
    assert os.listdir(directory) == []
    signal.close()


def test_a_closed_signal_makes_no_new_socket(directory: Path) -> None:
    signal = HostSignal(directory, os.urandom)
    token = signal.token("news")
    signal.close()
    for call in (
        lambda: signal.token("news"),
        lambda: signal.wait("news", token, 0),
        lambda: signal.wait_any(token, 0),
    ):
        with pytest.raises(Invalid, match="closed"):
            call()
    assert list(directory.iterdir()) == []


def test_socket_of_a_killed_listener_is_removed(directory: Path) -> None:
    command = [sys.executable, "-c", LISTENER, str(directory)]
    with forked.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "ready\n"
        listener.send_signal(signals.SIGKILL)
    assert len(os.listdir(directory)) == 1
    HostSignal(directory).notify("topic")
    assert os.listdir(directory) == []


def test_a_socket_that_is_being_renamed_is_not_removed(directory: Path) -> None:
    directory.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unborn:
        unborn.bind(str(directory / "unborn.new"))
    HostSignal(directory).notify("topic")
    assert os.listdir(directory) == ["unborn.new"]


def test_overflow_is_noticed_though_every_datagram_was_of_another_topic(directory: Path) -> None:
    signal, sender = HostSignal(directory), HostSignal(directory)
    token = signal.token("rare")
    for _ in range(5000):
        sender.notify("common")
    sender.notify("rare")
    assert signal.wait("rare", token, 0.0) is True
    token = signal.token("rare")  # and the alarm is over
    assert signal.wait("rare", token, 0.0) is False
    signal.close()


def test_a_listener_creates_its_removed_socket_again(directory: Path) -> None:
    signal = HostSignal(directory)
    token = signal.token("topic")
    (socket_file,) = directory.iterdir()
    socket_file.unlink()
    assert signal.wait("topic", token, 0.0) is True  # anything may have been missed
    token = signal.token("topic")
    assert signal.wait("topic", token, 0.0) is False
    HostSignal(directory).notify("topic")
    assert signal.wait("topic", token, WAIT) is True
    signal.close()


def test_a_datagram_read_by_another_thread_still_wakes_the_waiter(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal, asleep, was_read = HostSignal(directory), Event(), Event()
    token, sleep = signal.token("topic"), SignalSocket.sleep

    def late(listener: SignalSocket, *given: Any) -> None:
        asleep.set()
        assert was_read.wait(WAIT)
        sleep(listener, *given)

    monkeypatch.setattr(SignalSocket, "sleep", late)
    heard: list[bool] = []
    thread = Thread(target=lambda: heard.append(signal.wait("topic", token, 2 * WAIT)))
    thread.start()
    assert asleep.wait(WAIT)
    HostSignal(directory).notify("topic")
    signal.token("other")
    was_read.set()
    thread.join(WAIT)
    assert heard == [True]
    signal.close()


def test_a_signal_works_in_a_directory_with_an_overlong_path(tmp_path: Path) -> None:
    directory = tmp_path.joinpath(*["long" * 20] * 4)
    signal = HostSignal(directory)
    token = signal.token("topic")
    HostSignal(directory).notify("topic")
    assert signal.wait("topic", token, WAIT) is True
    signal.close()
    assert os.listdir(directory) == []


def test_a_signal_directory_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    signal = HostSignal(tmp_path / "file" / "signal")
    signal.notify("topic")
    with pytest.raises(Unavailable) as caught:
        signal.token("topic")
    assert caught.value.kind == "no_signal"


def test_a_forked_child_listens_for_itself(directory: Path) -> None:
    forked.run([sys.executable, "-c", FORKER, str(directory)], check=True, timeout=WAIT * 2)


def test_topic_versions_report_that_old_topics_were_dropped() -> None:
    board = TopicVersions(max_topics=2)
    board.mark("a")
    before = board.current
    board.mark("b")
    assert board.changed_topics(before) == {"b"}
    board.mark("c")
    assert board.changed_topics(0) is None  # what was of "a" is not known any more
    assert board.has_changed("a", 0)
    assert board.changed_topics(before) == {"b", "c"}
    assert not board.has_changed("a", before)
