"""Every command in a workspace whose history is in PostgreSQL and S3."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.fixtures import forked
from tests.fixtures.commands import Ortet
from tests.fixtures.postgres import shared
from tests.fixtures.s3 import ENVIRON

# Runs command lines one after the other, each as a process of its own would, without its start.
_DRIVER = """
import contextlib, io, json, sys
from ortet.cli.main import run
for line in sys.stdin:
    words, given = json.loads(line)
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    said = []
    for stream in (out, err):
        stream.flush()
        said.append(stream.buffer.getvalue().decode())
    print(json.dumps([code, *said]), file=sys.__stdout__, flush=True)
"""

# What is typed, what standard input holds, and something of what is to be seen.
TABLE: list[tuple[str, str, str]] = [
    ("status", "", "A a.txt"),
    ("commit -m first", "", "first"),
    ("log", "", "first"),
    ("show HEAD", "", "commit "),
    ("tag golden", "", "golden is "),
    ("branch", "", "* proj"),
    ("reflog", "", "proj@{0}"),
    ("run -- sh -c 'echo two >> a.txt'", "", ""),
    ("diff", "", "M a.txt"),
    ("commit -m second --durable local", "", "second"),
    ("commit --durable remote", "", "nothing changed"),
    ("rewind", "", "1 written"),
    ("undo", "", "undid rewind"),
    ("redo", "", "did again"),
    ("restore golden --to {out}", "", "written"),
    ("fork -n 2", "", "proj/2"),
    ("run -w proj/1 -- sh -c 'echo f > f.txt'", "", ""),
    ("commit -w proj/1 -m forked", "", "forked"),
    ("merge proj/1", "", ""),
    ("drop proj/2", "", "dropped"),
    ("session new fix --goal green -w . --budget usd=5", "", "session fix"),
    ("say 'the login test fails'", "", ""),
    ("plan reproduce fix", "", "reproduce"),
    ("decide 'go on' --why because", "", "decided"),
    ("learn 'tests need PYTHONPATH' --about testing", "", "learned"),
    ("facts", "", "PYTHONPATH"),
    ("recall PYTHONPATH", "", "tests need"),
    ("context PYTHONPATH", "", "remembered"),
    ("brief", "", "Goal: green"),
    ("journal", "", "login test"),
    ("milestone 'it began'", "", "episode"),
    ("artifact add a.txt --kind report", "", "a.txt@1"),
    ("comment 'look here'", "", "left for fix"),
    ("collab set pr-7 --kind pull_request --link https://h/7 --status done", "", "pr-7"),
    ("secret set TOKEN", "t0p-secret", "kept TOKEN"),
    ("run --secret TOKEN -- sh -c 'test -n \"$TOKEN\"'", "", ""),
    ("hook", '{"hook_event_name": "Stop", "last_assistant_message": "done"}', ""),
    ("commit -m 'with mind'", "", "nothing changed"),
    ("turn chat hello --reply 'echo hi'", "", "hi"),
    ("replay fix", "", "login test"),
    ("diff-runs fix fix", "", "the same"),
    ("compact fix --keep-last 1", "", ""),
    ("checkpoint fix", "", '"goal":"green"'),
    ("audit fix", "", "sound: "),
    ("budget fix", "", "usd"),
    ("dataset {out}.jsonl", "", "2 sessions"),
    ("export HEAD {out}.bundle", "", "objects"),
    ("import {out}.bundle", "", " is "),
    ("retain --dry-run", "", ""),
    ("archive chat", "", "archived"),
    ("unarchive chat", "", "chat is paused"),
    ("hold chat", "", "on hold"),
    ("release chat", "", "released"),
    ("finish chat", "", "chat is closed"),
    ("access create me --allow admin", "", "ortet_"),
    ("ps", "", "no machine lives"),
    ("agent status", "", "not running"),
    ("migrate", "", "nothing to do"),
    ("stats", "", "objects"),
    ("sweep", "", "freed"),
    ("verify", "", "sound: "),
    ("clone {url} {out}.store", "", "travelled"),
    ("pull {out}.store", "", "nothing was missing"),
    ("push {out}.store", "", ""),
    ("doctor", "", "yes  postgresql"),
    ("session ls", "", "fix "),
]


@pytest.fixture
def url(schema: str, s3: str) -> str:
    bucket = quote(f"s3://ortet/{schema}?endpoint={s3}", safe="")
    return f"{shared().url()}&schema={schema}&bucket={bucket}"


@pytest.fixture
def proj(tmp_path: Path, ortet: Ortet, url: str) -> Path:
    ortet.env |= ENVIRON
    place = tmp_path / "proj"
    place.mkdir()
    (place / "a.txt").write_text("one\n")
    ortet("init", "--store", url, cwd=place)
    return place


@pytest.mark.slow
def test_every_verb_works_on_a_shared_store(
    ortet: Ortet, proj: Path, url: str, tmp_path: Path
) -> None:
    lines = [
        (shlex.split(words.format(out=tmp_path / "out", url=f"'{url}'")), given)
        for words, given, _ in TABLE
    ]
    done = forked.run(
        [sys.executable, "-c", _DRIVER],
        cwd=proj,
        env=ortet.env,
        input="".join(json.dumps(line) + "\n" for line in lines).encode(),
        capture_output=True,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"[")]
    wrong: list[Any] = [
        (words, *answer)
        for (words, _, wanted), answer in zip(TABLE, answers, strict=False)
        if answer[0] != 0 or wanted not in answer[1] + answer[2]
    ]
    assert not wrong, "\n".join(map(str, wrong))
    assert len(answers) == len(TABLE), done.stderr.decode()


def test_the_pointer_holds_the_address_and_no_password(
    ortet: Ortet, proj: Path, url: str, tmp_path: Path
) -> None:
    assert (proj / ".ortet").read_text() == f"{url}#proj\n"
    again = ortet.json("init", cwd=proj)
    assert (again["name"], again["store"]) == ("proj", url)
    other = tmp_path / "other"
    other.mkdir()
    (start, rest) = url.split("postgres@", 1)
    for bad in (
        f"{start}postgres:hush@{rest}",
        f"{url}&password=hush",
        f"{url}&sslpassword=hush",
        f"{url}&signal={quote('redis://:hush@127.0.0.1', safe='')}",
        f"{url}&cache={quote('redis://:hush@127.0.0.1', safe='')}",
    ):
        done = ortet("init", "--store", bad, cwd=other, code=2)
        assert "hush" not in done.out + done.err
        assert not (other / ".ortet").exists()


def test_pointer_with_a_foreign_server_address_is_not_followed(
    ortet: Ortet, proj: Path, url: str, tmp_path: Path
) -> None:
    copied = tmp_path / "copied"
    copied.mkdir()
    (copied / ".ortet").write_bytes((proj / ".ortet").read_bytes())
    other = Ortet(tmp_path / "somebody")
    other.env |= ENVIRON
    other.home.mkdir()
    refused = other("status", "--json", cwd=copied, code=6).error
    assert refused["kind"] == "unknown_store"
    assert "ortet init --store" in refused["message"]
    other("init", "--store", url, cwd=copied)
    assert other.json("status", cwd=copied)["name"] == "copied"  # proj is another host's


def test_doctor_does_not_call_an_unreachable_store_missing(
    ortet: Ortet, proj: Path, url: str, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    cases = {
        url.replace("@/postgres?", "@/nowhere?"): ("it cannot be opened from here, see below", 7),
        f"{url}&key_file={key}": ("it cannot be opened: ", 6),
        f"{url}&schema=ortet_not_there": ("not made yet", 0),
    }
    for wrong, (says, code) in cases.items():
        done = ortet("doctor", cwd=proj, env={"ORTET_URL": wrong}, code=code)
        first = done.out.splitlines()[0]
        assert says in first
        assert (says == "not made yet") == ("not made yet" in first)
        assert done.err.startswith("error: ") == (code != 0)
    assert ortet("doctor", cwd=proj, env={"ORTET_URL": url}).out.splitlines()[0] == f"store {url}"


@pytest.mark.parametrize("server", ["postgresql", "bucket", "valkey", "valkey cache"])
def test_doctor_fails_when_a_server_cannot_be_used(
    ortet: Ortet, proj: Path, url: str, server: str
) -> None:
    wrong = {
        "postgresql": url.replace("@/postgres?", "@/nowhere?"),
        "bucket": url.replace("ortet%2F", "not-there%2F"),
        "valkey": f"{url}&signal=redis://127.0.0.1:1",
        "valkey cache": f"{url}&cache=redis://127.0.0.1:1",
    }[server]
    env = {"ORTET_URL": wrong}
    done = ortet("doctor", cwd=proj, env=env, code=7)
    assert f"no   {server}  " in done.out and server in done.err
    told = ortet("doctor", "--json", cwd=proj, env=env, code=7)
    assert told.error["kind"] == "server_unusable"
    assert told.error["details"]["servers"] == [server]
    assert any(one["name"] == server and not one["ok"] for one in told.data["capabilities"])


def test_doctor_give_up_reports_when_the_store_was_not_opened(
    ortet: Ortet, proj: Path, url: str
) -> None:
    cases = {
        url.replace("@/postgres?", "@/nowhere?"): 7,
        f"{url}&schema=ortet_not_there": 4,
    }
    for wrong, code in cases.items():
        done = ortet("doctor", "--give-up", "lost", cwd=proj, env={"ORTET_URL": wrong}, code=code)
        assert "nothing was done about lost: the store was not opened" in done.err
        assert "error: " in done.err
        data = ortet(
            "--json", "doctor", "--give-up", "lost", cwd=proj, env={"ORTET_URL": wrong}, code=code
        ).data
        assert not data["given_up"]


def test_another_host_continues_the_session_and_restores_the_commit(
    ortet: Ortet, proj: Path, url: str, tmp_path: Path
) -> None:
    oid = ortet.json("commit", "-m", "first", cwd=proj)["oid"]
    ortet("session", "new", "fix", cwd=proj)
    ortet.env["XDG_CACHE_HOME"] = str(tmp_path / "another-host")
    there = tmp_path / "there"
    there.mkdir()
    ortet("init", "--store", url, "--name", "mine", cwd=there)
    ortet("say", "-s", "fix", "hello", cwd=there)
    ortet("restore", oid, "--to", str(tmp_path / "new"), cwd=there)
    assert (tmp_path / "new" / "a.txt").read_text() == "one\n"
    del ortet.env["XDG_CACHE_HOME"]
    assert "hello" in ortet("journal", "fix", cwd=proj).out


def test_a_machine_keeps_running_in_a_shared_store(ortet: Ortet, proj: Path) -> None:
    del ortet.env["ORTET_AGENT"]
    try:
        ortet("commit", "-m", "first", cwd=proj)
        ortet("start", cwd=proj)
        ortet("spawn", "sleeper", "--", "sleep", "1000", cwd=proj)
        (one,) = ortet.json("ps", cwd=proj)
        assert [job["name"] for job in one["jobs"]] == ["sleeper"]
        ortet("stop", one["name"], cwd=proj)
    finally:
        ortet("agent", "stop", "--force", cwd=proj)
