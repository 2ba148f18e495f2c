"""The names of forks: numbered on, whoever else is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ortet.hub.hub import Hub


def test_fork_numbers_continue_in_another_process(hub: Hub, opened: Callable[..., Hub]) -> None:
    with hub.session("s") as session:
        session.say("user", "hello")
        assert len(session.fork(20, machine=False)) == 20
    with opened().session("s") as again:
        assert [fork.name for fork in again.fork(2, machine=False)] == ["s/21", "s/22"]


def test_a_first_fork_does_not_read_the_names_of_all_sessions(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        hub.catalog.put_row("session-name", f"default/t-{number:03d}", b"another")
    seen: list[int] = []
    asked = type(hub.catalog).rows

    def rows(self: object, kind: str, after: str = "", limit: int = 1000) -> object:
        found = asked(self, kind, after, limit)  # type: ignore[arg-type]
        if kind == "session-name":
            seen.append(len(found))
        return found

    with hub.session("s") as session:
        session.say("user", "hello")
        session.commit("before")
        monkeypatch.setattr(type(hub.catalog), "rows", rows)
        (fork,) = session.fork(1, machine=False)
        monkeypatch.undo()
    assert fork.name == "s/1"
    assert seen
    assert sum(seen) < 20
