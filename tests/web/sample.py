"""A store with one of everything that pages show, and hostile strings in all of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import ortet
from ortet.sessions.session import Session

HOSTILE = (
    "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">\"'&{{7*7}}"
)

BEFORE = """def parse(text):
    words = text.split()
    return words[:-1]
"""
AFTER = """def parse(text: str) -> list[str]:
    # the last token counts, too
    words = text.split()
    return words
"""


class Sample(NamedTuple):
    store: Path
    session: str  # id of "fix-lexer": commits, forks, a restore, a swarm
    fork: str  # id of one of its forks
    hostile: str  # id of a session that is nothing but hostile strings
    first: str  # commits of the first, in order
    second: str
    away: str  # restored away
    head: str


def attempt(session: Session, i: int) -> int:
    session.learn(f"attempt {i} was here", about="swarm")
    return i


def make_sample(place: Path) -> Sample:
    """Takes a second or two."""
    store, work = place / "store", place / "work"
    work.mkdir(parents=True)
    with ortet.open(store) as hub:
        hostile = _hostile(hub)
        with hub.session(
            "fix-lexer", goal="make the suite green", workspace=work, budget={"usd": 5.0}
        ) as s:
            s.say("user", "the login test fails, please look")
            s.plan(["reproduce", "fix", "verify"])
            (work / "lexer.py").write_text(BEFORE)
            (work / "notes.md").write_text("# Notes\n\nnothing yet\n")
            s.think("the lexer drops the last token")
            s.run("ls", why="see what is there")
            first = s.commit("reproduced")
            s.advance()
            s.learn("tests need PYTHONPATH=src", about="testing")
            s.decide("patch the lexer", why="smallest change", instead_of=["rewrite the parser"])
            (work / "lexer.py").write_text(AFTER)
            (work / "wrong.py").write_text("print('a wrong turn')\n")
            s.say("assistant", "I changed parse(), and it is **not** done")
            s.spend(tokens=1200, usd=0.01)
            second = s.commit("patched the lexer")
            s.lesson("mocking the clock hid the bug")
            s.note("branch", "fix/lexer")
            away = s.commit("a wrong turn")
            s.restore(second.oid)
            s.internals.store.refs.create(
                "green", s.internals.store.refs.resolve(second.oid), kind="tag"
            )
            (work / "wrong.py").unlink()
            s.say("user", "better")
            fork = s.fork(1, machine=False)[0]
            fork.say("assistant", "another way to do it")
            fork.commit("tried another way")
            fork.pause()
            s.swarm(attempt, n=3, keep=0, losers="keep", name="tries")
            s.artifact("report.md", data="# Report\n\nall green\n", kind="report")
            s.say("assistant", "all green now")
            head = s.commit("verified\n\nThe suite passes, with and without the cache.")
            return Sample(store, s.id, fork.id, hostile, first.oid, second.oid, away.oid, head.oid)


def _hostile(hub: ortet.Hub) -> str:
    with hub.session("hostile", agent="x", goal=HOSTILE) as s:
        s.say("user", HOSTILE)
        s.plan([HOSTILE])
        s.think(HOSTILE)
        s.note("k" + HOSTILE, HOSTILE)
        s.ask(HOSTILE)
        s.learn(HOSTILE, about="x")
        s.decide(HOSTILE, why=HOSTILE, instead_of=[HOSTILE])
        s.artifact("x.html", data=HOSTILE, kind="report")
        s.commit(HOSTILE)
        s.say("assistant", HOSTILE + "2")
        s.learn(HOSTILE + "2", about="x")
        s.commit("second " + HOSTILE)
        return s.id
