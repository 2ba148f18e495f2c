"""What each profile costs: messages, actions, commits and pauses, timed side by side.

`.venv/bin/python bench/profiles.py` prints the table, `--write` puts it into docs/profiles.md. The
workspace is a git repository of 200 files, in place; the profiles take turns, so that all of them
meet the same disk.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import host
import measure
import report
from ortet.config.environment import open_hub
from ortet.hub.hub import Hub
from ortet.sessions.session import Session

DOC = Path(__file__).resolve().parent.parent / "docs/profiles.md"
BEGIN, END = "<!-- figures: bench/profiles.py -->", "<!-- end of figures -->"
PROFILES = ("", "chatbot", "assistant", "worker", "enterprise")
ROWS = ("a message of 400 bytes", "an action", "a plan step", "`s.commit()`", "open", "pause")
TEXT = "x" * 400
FILES = 200
Found = dict[str, dict[str, list[float]]]


def repository(place: Path) -> Path:
    """A workspace like many: some files, in git."""
    place.mkdir()
    for number in range(FILES):
        (place / f"{number}.txt").write_text(f"{number}\n" * 50)
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        who = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
        subprocess.run(["git", *who, *words], cwd=place, check=True)
    return place


def timed(found: dict[str, list[float]], row: str, deed: object) -> None:
    assert callable(deed)
    found[row].append(measure.milliseconds(deed))


def work_on(session: Session, place: Path, found: dict[str, list[float]], number: int) -> None:
    """One round. What a profile commits by itself is in the time of the verb that made it due."""
    for _ in range(3):
        timed(found, ROWS[0], lambda: session.say("user", TEXT))
    (place / "0.txt").write_text(f"{number}\n")
    timed(found, ROWS[1], lambda: session.act(lambda: number, name="look", why="to see"))
    timed(found, ROWS[2], lambda: session.advance(number % 2))
    (place / "1.txt").write_text(f"{number}\n")
    session.say("assistant", TEXT)
    timed(found, ROWS[3], session.commit)


def measured(base: Path, rounds: int, visits: int) -> Found:
    """Milliseconds of each row, by profile."""
    found: Found = {profile: defaultdict(list) for profile in PROFILES}
    places = {profile: repository(base / (profile or "none")) for profile in PROFILES}
    with ExitStack() as stack:
        hubs: dict[str, Hub] = {}
        for profile in PROFILES:
            hubs[profile] = stack.enter_context(open_hub(base / f"store-{profile or 'none'}"))
            with open_one(hubs[profile], places, profile) as session:
                session.plan(["a", "b"])
                session.commit()
        for _ in range(visits):
            opened: dict[str, Session] = {}
            for profile in PROFILES:

                def begin(profile: str = profile, opened: dict[str, Session] = opened) -> None:
                    opened[profile] = open_one(hubs[profile], places, profile)

                timed(found[profile], ROWS[4], begin)
            for number in range(rounds):
                for profile, session in opened.items():
                    work_on(session, places[profile], found[profile], number)
            for profile, session in opened.items():
                timed(found[profile], ROWS[5], session.pause)
    return found


def open_one(hub: Hub, places: dict[str, Path], profile: str) -> Session:
    return hub.session("bench", workspace=places[profile], profile=profile)


def table(found: Found) -> str:
    head = ["ms, p50 / p95", *(f"`{name}`" if name else "*(none)*" for name in PROFILES)]
    body = [[row, *(cell(row, found[profile][row]) for profile in PROFILES)] for row in ROWS]
    return report.table(head, body)


def cell(row: str, values: list[float]) -> str:
    sample = measure.Sample(row, "ortet", values)
    return f"{sample.p50:.2f} / {sample.p95:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="of work in each visit")
    parser.add_argument("--visits", type=int, default=5, help="openings of each session")
    parser.add_argument("--write", action="store_true", help="put the table into docs/profiles.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ortet-bench-", dir=Path.cwd()) as base:
        facts = host.facts(Path(base))
        shown = table(measured(Path(base), options.rounds, options.visits))
    shown += "\n\n" + "; ".join(f"{name}: {value}" for name, value in facts.items())
    print(shown)
    if options.write:
        before, _, rest = DOC.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        DOC.write_text(f"{before}{BEGIN}\n{shown}\n{END}{after}")


if __name__ == "__main__":
    main()
