"""One small program with one of everything that is hard to carry."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.live.lives import Life, ask, heard, told, until

from ortet.sessions.session import Session

_PROGRAM = Path(__file__).with_name("odds.py")


def test_every_unusual_kernel_object_continues_in_each_copy(life: Life) -> None:
    shutil.copy(_PROGRAM, life.project / "odds.py")
    session = life.begin()
    job = session.spawn("odds", ["python3", "odds.py"], stdin=True)
    assert heard(job) == "ready"
    expected = ask(job, "check")
    assert expected.endswith(" good")
    assert int(expected.split()[0]) >= 13
    asked: dict[str, int] = {}

    def use(copy: Session, mark: str) -> None:
        assert ask(copy.programs.job("odds"), "check") == expected
        asked[mark] = asked.get(mark, 0) + 1
        # every round adds one byte to the deleted file, and only in its own copy
        size = "stat -Lc %s $(find /proc/$(pgrep -of odds.py)/fd -lname '*/gone (deleted)')"
        assert int(told(copy, size)) == len("deleted, but here") + 1 + asked[mark]
        until(copy, "! flock -n lock true")

    life.all_of_it(session, use)
