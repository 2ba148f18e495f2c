"""Commits between stores: embedded ones, and one behind a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.remote_hub import serving

from ortet.cli.commands import transfer
from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid, NotFound, Unsupported
from ortet.hub.hub import Hub
from ortet.ids import from_hex

pytestmark = pytest.mark.server


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Hub]:
    with open_hub(tmp_path / "here") as hub:
        yield hub


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Hub]:
    with open_hub(tmp_path / "there") as hub:
        yield hub


def grow(hub: Hub, work: Path, text: str) -> str:
    """A commit with files and a mind, on branch `s`."""
    work.mkdir(exist_ok=True)
    (work / "file.txt").write_text(text)
    with hub.session("s", workspace=work, files="inplace") as session:
        session.say("user", text)
        return session.commit(text).oid


def branch_of(hub: Hub) -> str:
    [row] = hub.sessions()
    return row.branch


def test_only_what_is_missing_travels(here: Hub, there: Hub, tmp_path: Path) -> None:
    grow(here, tmp_path / "w", "one")
    steps: list[tuple[int, int]] = []
    first = there.pull(here, progress=lambda done, of: steps.append((done, of)))
    name = branch_of(here)
    assert first.moved == [name]
    assert steps[-1] == (first.objects, first.objects)
    assert first.objects > 5
    again = there.pull(here)
    assert (again.moved, again.objects, again.bytes) == ([], 0, 0)
    oid = grow(here, tmp_path / "w", "two")
    second = there.pull(here)
    assert second.branches == {name: oid}
    assert 0 < second.objects < first.objects + 5
    assert there.verify().commits == here.verify().commits
    there.restore(oid, tmp_path / "out")
    assert (tmp_path / "out" / "file.txt").read_text() == "two"


def test_pull_brings_the_session_state_of_commits(here: Hub, there: Hub, tmp_path: Path) -> None:
    grow(here, tmp_path / "w", "said before")
    there.pull(here)
    with there.session("mine") as session:
        session.adopt(branch_of(here))
        assert [m.content for m in session.messages()] == ["said before"]


def test_pull_of_a_tag_keeps_an_existing_tag_unchanged(
    here: Hub, there: Hub, tmp_path: Path
) -> None:
    oid = from_hex(grow(here, tmp_path / "w", "one"))
    here.refs.create("v1", oid, kind="tag")
    here.refs.create("other", oid)
    found = there.pull(here, "v1")
    assert (found.branches, list(found.tags)) == ({}, ["v1"])
    with pytest.raises(NotFound) as caught:
        there.pull(here, ["nothing"])
    assert caught.value.kind == "no_ref"
    newer = from_hex(grow(here, tmp_path / "w", "two"))
    here.refs.delete("v1", kind="tag")
    here.refs.create("v1", newer, kind="tag")
    found = there.pull(here)
    assert found.kept == ["v1"]
    assert found.tags == {"v1": oid.hex()}


def test_diverged_branch_is_numbered_by_pull_and_refused_by_push(
    here: Hub, there: Hub, tmp_path: Path
) -> None:
    ours = grow(here, tmp_path / "a", "ours")
    theirs = grow(there, tmp_path / "b", "theirs")
    here.refs.create("shared", from_hex(ours))
    there.refs.create("shared", from_hex(theirs))
    with pytest.raises(Conflict) as caught:
        here.push(there, "shared")
    assert caught.value.kind == "not_forward"
    assert not there.objects.has(from_hex(ours))  # nothing was sent
    found = there.pull(here, "shared")
    assert found.branches == {"shared-2": ours}
    assert there.pull(here, "shared").branches == {"shared-2": ours}
    head = there.refs.get("shared")
    assert head is not None
    assert head.oid.hex() == theirs


def test_push_of_an_older_branch_keeps_the_newer_remote_head(
    here: Hub, there: Hub, tmp_path: Path
) -> None:
    oid = grow(here, tmp_path / "w", "one")
    name = branch_of(here)
    there.pull(here)
    newer = grow(here, tmp_path / "w", "two")
    here.refs.create("old", from_hex(oid))
    there.pull(here, name)
    there.refs.create("old", from_hex(newer))
    assert here.push(there, "old").branches == {"old": newer}


def test_a_branch_that_somebody_works_on_is_not_moved(
    here: Hub, there: Hub, tmp_path: Path
) -> None:
    """Its files would not be those of its head any more."""
    oid = grow(here, tmp_path / "w", "one")
    name = branch_of(here)
    there.pull(here)
    grow(there, tmp_path / "w2", "mine")
    newer = grow(here, tmp_path / "w", "two")
    del oid
    found = there.pull(here, name)
    [moved] = found.moved
    assert found.branches[moved] == newer


def test_what_was_erased_stays_erased(here: Hub, there: Hub, tmp_path: Path) -> None:
    grow(here, tmp_path / "w", "keep")
    with here.session("s", workspace=tmp_path / "w", files="inplace") as session:
        event = session.say("user", "a secret thing")
        session.commit("with it")
    here.erase("s", seqs=[event.seq])
    there.pull(here)
    assert there.verify().commits == here.verify().commits
    with there.session("mine") as session:
        session.adopt(branch_of(here))
        assert "secret" not in str([m.content for m in session.messages()])


def test_pull_from_a_store_with_another_key_is_refused(here: Hub, tmp_path: Path) -> None:
    grow(here, tmp_path / "w", "one")
    other = tmp_path / "keyed"
    other.mkdir()
    (other / "key").write_text("ab" * 32)
    (other / "config.toml").write_text('key_file = "key"\n')
    with open_hub(other) as keyed, pytest.raises(Unsupported) as caught:
        keyed.pull(here)
    assert caught.value.kind == "other_key"


def test_push_and_pull_work_through_a_server(
    here: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    oid = grow(here, tmp_path / "w", "one")
    name = branch_of(here)
    with serving(tmp_path / "team") as url:
        with open_hub(url) as team:
            assert here.push(team).branches == {name: oid}
            assert here.push(team).objects == 0
        newer = grow(here, tmp_path / "w", "two")
        with open_hub(url) as team, open_hub(tmp_path / "third") as third:
            here.push(team, name)
            assert third.pull(team).branches == {name: newer}
            assert third.verify().commits == here.verify().commits


_KILLED = """
import sys
from ortet.config.environment import open_hub
from ortet.history.transfer import copy_missing
copy_missing.FLUSH_EVERY_BYTES = 1
with open_hub(sys.argv[1]) as hub, open_hub(sys.argv[2]) as other:
    hub.pull(other)
"""


def test_killed_pull_resumes_without_resending_known_objects(here: Hub, tmp_path: Path) -> None:
    work = tmp_path / "w"
    work.mkdir()
    for n in range(20):
        (work / f"{n}.bin").write_bytes(os.urandom(2000))
    grow(here, work, "one")
    done = forked.run(
        [sys.executable, "-c", _KILLED, tmp_path / "there", tmp_path / "here"],
        env={**os.environ, "ORTET_FAULT": "carry.after-object:kill:10"},
        check=False,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    with open_hub(tmp_path / "there") as there:
        assert there.refs.branches() == []
        found = there.pull(here)
        assert found.known >= 9  # did not travel again
        assert there.verify().commits == here.verify().commits


def test_bundle_can_be_pushed_and_pulled_incrementally(
    here: Hub, there: Hub, tmp_path: Path
) -> None:
    first = grow(here, tmp_path / "w", "one")
    name, file = branch_of(here), tmp_path / "work.bundle"
    pushed = here.push(file)
    assert pushed.moved == [name]
    pulled = there.pull(file)
    assert (pulled.moved, pulled.branches) == ([name], {name: first})
    assert pulled.objects == pushed.objects
    assert there.pull(str(file)).objects == 0
    second = grow(here, tmp_path / "w", "two")
    assert here.push(file, name).moved == [name]
    found = there.pull(file, name)  # it goes on, and is no second branch
    assert (found.moved, found.branches) == ([name], {name: second})
    assert found.objects
    assert found.known == pushed.objects
    assert [head.name for head in there.refs.branches()] == [name]
    again = here.push(file)
    assert (again.moved, again.objects) == ([], 0)
    assert there.verify().commits == 2


def test_push_to_a_bundle_that_would_lose_branches_is_refused(
    here: Hub, there: Hub, tmp_path: Path
) -> None:
    grow(here, tmp_path / "w", "one")
    file = tmp_path / "work.bundle"
    here.refs.create("older", here.refs.resolve(branch_of(here)), kind="tag")
    here.push(file)
    known = here.pull(file)
    assert (known.moved, list(known.tags)) == ([], ["older"])  # and no branch of that name
    before = file.read_bytes()
    grow(there, tmp_path / "v", "another")
    for source, refs in ((there, ()), (here, "older")):
        with pytest.raises(Conflict, match="would be lost") as caught:
            source.push(file, refs)
        assert caught.value.kind == "not_forward"
    with pytest.raises(NotFound, match="nobody"):
        there.pull(file, "nobody")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(Conflict, match="is no bundle"):
        here.push(tmp_path / "notes.txt")
    assert (file.read_bytes(), (tmp_path / "notes.txt").read_text()) == (before, "mine")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("../there/", "there"),
        ("proj/.ortet", "proj"),
        ("some/work.bundle", "work"),
        ("http://build-host:7878", "build-host"),
        ("https://h/tenants/acme/", "acme"),
        ("postgresql://ann@db/team?bucket=s3%3A%2F%2Fb", "team"),
    ],
)
def test_clone_is_named_after_its_source(url: str, name: str, tmp_path: Path) -> None:
    assert transfer._directory_name(tmp_path / "x", url) == name


def test_clone_of_a_source_without_a_name_is_refused() -> None:
    with pytest.raises(Invalid, match="DIR"):
        transfer._directory_name(Path("/"), ".")


def test_clone_pull_and_push_commands_report_what_was_transferred(
    here: Hub, tmp_path: Path
) -> None:
    oid = grow(here, tmp_path / "w", "one")

    def ortet(*words: str, store: str = "copy") -> subprocess.CompletedProcess[str]:
        return forked.run(
            [sys.executable, "-m", "ortet", *words],
            cwd=tmp_path,
            env={**os.environ, "ORTET_URL": str(tmp_path / store)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    cloned = ortet("clone", "--json", "here", "copy")
    assert cloned.returncode == 0, cloned.stderr
    assert json.loads(cloned.stdout)["branches"] == {branch_of(here): oid}
    for words in (("clone", "here", "copy"), ("pull", "here"), ("push", "here")):
        done = ortet(*words)
        assert (done.returncode, done.stdout) == (0, "nothing was missing\n"), done.stderr
    refused = ortet("clone", "here", "w")
    assert refused.returncode == 5
    assert "is no store" in refused.stderr
    assert "travelled" in ortet("push", "all.bundle").stdout
    assert ortet("push", "all.bundle").stdout == "nothing was missing\n"
    assert ortet("pull", "all.bundle", store="here").stdout == "nothing was missing\n"
    cloned = ortet("clone", "--json", "all.bundle", "second")
    assert json.loads(cloned.stdout)["branches"] == {branch_of(here): oid}
    assert ortet("clone", "all.bundle").stdout.endswith(f"the store is {tmp_path}/all\n")
    assert (tmp_path / "all" / "FORMAT").exists()
    (tmp_path / "half.bundle").write_bytes((tmp_path / "all.bundle").read_bytes()[:-100])
    cut = ortet("clone", "half.bundle", "third")
    assert (cut.returncode, (tmp_path / "third").exists()) == (8, False)
    assert "ends too early" in cut.stderr
    nowhere = ortet("push", "nowhere")
    assert nowhere.returncode == 4
    assert "ortet clone STORE nowhere" in nowhere.stderr
