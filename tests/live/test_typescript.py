"""`tsc --watch` in a project with its own node_modules."""

from __future__ import annotations

import subprocess

import pytest
from tests.fixtures.waiting import WAIT
from tests.live.lives import Life, told, until

from ortet.sessions.session import Session

_PACKAGE = "typescript@5.9.3"
_CONFIG = '{"compilerOptions": {"outDir": "out", "strict": true, "types": []}, "include": ["src"]}'


@pytest.fixture
def session(life: Life) -> Session:
    project = life.project
    (project / "src").mkdir()
    (project / "src" / "main.ts").write_text("export const said: string = 'hello'\n")
    (project / "tsconfig.json").write_text(_CONFIG)
    (project / "package.json").write_text('{"name": "live", "private": true}')
    words = ["npm", "install", "--no-audit", "--no-fund", "--silent", _PACKAGE]
    subprocess.run(words, cwd=project, check=True, stdin=subprocess.DEVNULL)
    return life.begin()


@pytest.mark.slow
def test_the_compiler_of_each_copy_compiles_only_its_own_changed_file(
    life: Life, session: Session
) -> None:
    compiler = ["node", "node_modules/typescript/lib/tsc.js", "--watch", "--preserveWatchOutput"]
    session.spawn("tsc", compiler, env={"UV_USE_IO_URING": "0"})
    until(session, "grep hello out/main.js")
    until(session, "true")
    compiled: dict[str, int] = {}

    def use(copy: Session, mark: str) -> None:
        here = told(copy, "cat out/main.js")
        assert (f"'{mark}-{compiled[mark]}'" if mark in compiled else "'hello'") in here
        errors = len(copy.programs.logs("tsc").split("TS2322")) - 1
        compiled[mark] = compiled.get(mark, 0) + 1
        text = f"export const said: string = '{mark}-{compiled[mark]}'"
        told(copy, f'echo "{text}" > src/main.ts')
        until(copy, f"grep {mark}-{compiled[mark]} out/main.js")
        # and what it says of a mistake goes to the one who made it
        told(copy, f'echo "export const bad_{mark}: string = {compiled[mark]}" > src/bad.ts')
        until(copy, f"grep bad_{mark} out/bad.js")
        _expect_log(copy, "TS2322", errors + 1)
        told(copy, "rm src/bad.ts")
        for other in {"first", "second", "original", "restored"} - {mark}:
            assert f"bad_{other}" not in told(copy, "cat out/*.js")

    life.all_of_it(session, use)


def _expect_log(session: Session, text: str, times: int) -> None:
    job = session.programs.job("tsc")
    cursor, seen = 0, b""
    while seen.count(text.encode()) < times:
        piece = job.read(cursor, WAIT)
        assert piece.data, (text, times, seen)
        seen, cursor = seen + piece.data, piece.cursor
