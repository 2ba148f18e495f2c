"""The contract of Signal as tests.

    class TestMine(SignalTests):
        @pytest.fixture
        def signal(self) -> Iterator[Signal]:
            signal = MySignal()
            yield signal
            signal.close()

Use `SharedSignalTests` for a signal between processes. Its fixture is `opener`, a picklable
function without arguments. Each call of it joins the same signal.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from ortet.backends.base import Signal
from ortet.errors import Invalid
from ortet.testing.processes import WAIT_TIMEOUT_SECONDS, SignalOpener, wait_for_notification


class SignalTests:
    """Tests of one signal. Supply the fixture `signal`, which nobody else may use."""

    def test_wait_without_a_notify_times_out(self, signal: Signal) -> None:
        token = signal.token("topic")
        assert signal.wait("topic", token, 0.0) is False
        assert signal.wait("topic", token, 0.01) is False

    def test_notify_between_token_and_wait_is_seen(self, signal: Signal) -> None:
        token = signal.token("topic")
        signal.notify("topic")
        assert signal.wait("topic", token, WAIT_TIMEOUT_SECONDS) is True

    def test_a_token_can_be_used_for_several_waits(self, signal: Signal) -> None:
        token = signal.token("topic")
        signal.notify("topic")
        assert signal.wait("topic", token, WAIT_TIMEOUT_SECONDS) is True
        assert signal.wait("topic", token, WAIT_TIMEOUT_SECONDS) is True

    def test_each_new_token_sees_the_next_notify(self, signal: Signal) -> None:
        for _ in range(3):
            token = signal.token("topic")
            signal.notify("topic")
            assert signal.wait("topic", token, WAIT_TIMEOUT_SECONDS) is True

    def test_notify_of_one_topic_is_seen_among_others(self, signal: Signal) -> None:
        tokens = {topic: signal.token(topic) for topic in ("a", "b", "c")}
        for topic in tokens:
            signal.notify(topic)
        for topic, token in tokens.items():
            assert signal.wait(topic, token, WAIT_TIMEOUT_SECONDS) is True

    def test_a_flood_of_other_topics_hides_no_notify(self, signal: Signal) -> None:
        token = signal.token("rare")
        for n in range(3000):
            signal.notify(f"common-{n % 7}")
        signal.notify("rare")
        for n in range(3000):
            signal.notify(f"common-{n % 7}")
        assert signal.wait("rare", token, WAIT_TIMEOUT_SECONDS) is True

    def test_waiting_threads_all_wake(self, signal: Signal) -> None:
        token = signal.token("topic")
        waiting = [Event() for _ in range(4)]

        def wait(ready: Event) -> bool:
            ready.set()
            return signal.wait("topic", token, WAIT_TIMEOUT_SECONDS)

        with ThreadPoolExecutor(len(waiting)) as pool:
            results = [pool.submit(wait, ready) for ready in waiting]
            for ready in waiting:
                assert ready.wait(WAIT_TIMEOUT_SECONDS)
            signal.notify("topic")
            assert [result.result() for result in results] == [True] * len(waiting)

    def test_each_thread_waits_for_its_own_topic(self, signal: Signal) -> None:
        topics = [f"topic-{n}" for n in range(4)]
        tokens = [signal.token(topic) for topic in topics]
        with ThreadPoolExecutor(len(topics)) as pool:
            results = [
                pool.submit(signal.wait, topic, token, WAIT_TIMEOUT_SECONDS)
                for topic, token in zip(topics, tokens, strict=True)
            ]
            for topic, result in zip(reversed(topics), reversed(results), strict=True):
                signal.notify(topic)
                assert result.result() is True

    def test_the_first_news_call_returns_at_once_without_topics(self, signal: Signal) -> None:
        signal.notify("before")
        token, topics = signal.wait_any(None, WAIT_TIMEOUT_SECONDS)
        assert topics == set()
        token, topics = signal.wait_any(token, 0.0)
        assert topics is None or topics <= {"before"}  # The notification may still be in transit.

    def test_news_returns_every_notified_topic(self, signal: Signal) -> None:
        token, _ = signal.wait_any(None, 0.0)
        missing = {"a", "b", "c"}
        for topic in missing:
            signal.notify(topic)
        while missing:
            token, topics = signal.wait_any(token, WAIT_TIMEOUT_SECONDS)
            assert topics is None or topics & missing
            missing -= missing if topics is None else topics

    def test_news_returns_only_topics_after_its_token(self, signal: Signal) -> None:
        token, _ = signal.wait_any(None, 0.0)
        signal.notify("first")
        token, topics = signal.wait_any(token, WAIT_TIMEOUT_SECONDS)
        assert topics is None or topics == {"first"}
        signal.notify("second")
        _, topics = signal.wait_any(token, WAIT_TIMEOUT_SECONDS)
        assert topics is None or topics == {"second"}

    def test_notify_wakes_a_waiting_news_call(self, signal: Signal) -> None:
        token, _ = signal.wait_any(None, 0.0)
        waiting = Event()

        def wait() -> set[str] | None:
            waiting.set()
            return signal.wait_any(token, WAIT_TIMEOUT_SECONDS)[1]

        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(wait)
            assert waiting.wait(WAIT_TIMEOUT_SECONDS)
            signal.notify("topic")
            topics = result.result()
        assert topics is None or topics == {"topic"}

    def test_a_flood_of_topics_hides_no_news(self, signal: Signal) -> None:
        token, _ = signal.wait_any(None, 0.0)
        signal.notify("rare")
        for n in range(3000):
            signal.notify(f"common-{n % 7}")
        received: set[str] = set()
        while "rare" not in received:
            token, topics = signal.wait_any(token, WAIT_TIMEOUT_SECONDS)
            if topics is None:  # None means any topic, including the rare one.
                break
            assert topics
            received |= topics

    @pytest.mark.parametrize("topic", ["", "a\0b", "\udc80"])
    def test_an_invalid_topic_is_refused(self, signal: Signal, topic: str) -> None:
        for verb in (
            lambda: signal.notify(topic),
            lambda: signal.token(topic),
            lambda: signal.wait(topic, 0, 0.0),
        ):
            with pytest.raises(Invalid) as caught:
                verb()
            assert caught.value.kind == "bad_name"

    def test_topics_are_any_text(self, signal: Signal) -> None:
        token = signal.token("branch:späť/1")
        signal.notify("branch:späť/1")
        assert signal.wait("branch:späť/1", token, WAIT_TIMEOUT_SECONDS) is True

    def test_a_narrowed_signal_receives_its_own_topics(self, signal: Signal) -> None:
        narrow = signal.with_prefix("top")
        token = narrow.token("top:1")
        signal.notify("top:1")
        assert narrow.wait("top:1", token, WAIT_TIMEOUT_SECONDS) is True
        narrow.close()

    def test_close_after_use_is_no_error(self, signal: Signal) -> None:
        signal.token("topic")
        signal.close()


class SharedSignalTests(SignalTests):
    """Tests of a signal between processes. Supply the fixture `opener`; see the module."""

    @pytest.fixture
    def signal(self, opener: SignalOpener) -> Iterator[Signal]:
        signal = opener()
        yield signal
        signal.close()

    def test_notify_reaches_another_handle(self, signal: Signal, opener: SignalOpener) -> None:
        other = opener()
        tokens = signal.token("topic"), other.token("topic")
        opener().notify("topic")
        assert signal.wait("topic", tokens[0], WAIT_TIMEOUT_SECONDS) is True
        assert other.wait("topic", tokens[1], WAIT_TIMEOUT_SECONDS) is True
        other.close()

    def test_news_arrive_from_another_handle(self, signal: Signal, opener: SignalOpener) -> None:
        token, _ = signal.wait_any(None, 0.0)
        opener().notify("topic")
        _, topics = signal.wait_any(token, WAIT_TIMEOUT_SECONDS)
        assert topics is None or topics == {"topic"}

    def test_notify_reaches_other_processes(self, signal: Signal, opener: SignalOpener) -> None:
        context = multiprocessing.get_context("spawn")
        with context.Manager() as manager, context.Pool(2) as pool:
            ready = [manager.Event() for _ in range(2)]
            received = [
                pool.apply_async(wait_for_notification, (opener, "topic", event.set))
                for event in ready
            ]
            for event in ready:
                assert event.wait(WAIT_TIMEOUT_SECONDS)
            signal.notify("topic")
            assert [result.get(WAIT_TIMEOUT_SECONDS) for result in received] == [True, True]
