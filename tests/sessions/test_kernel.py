"""Kernels of a session: journaled, replayed, kept with a commit by their declared variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ortet
from ortet.errors import Conflict, Diverged, Invalid, NotFound, Unavailable, Unsupported
from ortet.hub.hub import Hub
from ortet.sessions.session import Session

pytestmark = pytest.mark.overlay

ENGINES = ["overlay", "folder"]


@pytest.fixture
def s(hub: Hub, work: Path) -> Session:
    return hub.session("s", workspace=work, engine="overlay")


def test_kernel_of_a_workspace_works_until_the_workspace_is_closed(hub: Hub, work: Path) -> None:
    for engine in ENGINES:
        with hub.workspace(work, engine=engine) as ws:
            kernel = ws.kernel()
            assert kernel.run("open('a.txt').read()").value == "one\ntwo\nthree\n"
            assert ws.kernel() is kernel
        with pytest.raises(Invalid, match="closed"):
            kernel.run("1")
        with pytest.raises(Invalid):
            ws.kernel()


def test_kernel_with_bad_arguments_is_refused(hub: Hub, work: Path, s: Session) -> None:
    ws = hub.workspace(work, engine="folder")
    for odd in ({"name": 5}, {"python": 5}, {"env": 5}, {"env": {"A": 5}}):
        with pytest.raises(Invalid):
            ws.kernel(**odd)
    for name in ("", "a/b", 5):
        with pytest.raises(Invalid):
            s.kernel(name)  # type: ignore[arg-type]
    keeps: list[Any] = ["df", [5], ["not a name"]]
    for keep in keeps:
        with pytest.raises(Invalid):
            s.kernel(keep=keep)
    with pytest.raises(Invalid):
        s.kernel().vars("not a name")


def test_uncommitted_kernel_forks_do_not_block_other_processes(hub: Hub, s: Session) -> None:
    """Their layers lie in the store's cache, of files that no other process can read of."""
    kernel = s.kernel()
    kernel.run("open('new', 'w').write('a')")
    forks = kernel.fork(2)
    assert [one.name for one in s.programs.kernels()] == ["main", "main/1", "main/2"]
    with ortet.open(hub.root) as other, other.session("other", engine="overlay") as another:
        assert another.run("echo fine").stdout == "fine\n"
    kernel.keep(forks[1])
    assert [one.name for one in s.programs.kernels()] == ["main", "main/1"]
    forks[0].close()
    assert [one.name for one in s.programs.kernels()] == ["main"]
    assert s.programs.is_running()
    s.kernel().close()
    assert not s.programs.is_running()


def test_kernel_runs_are_recorded_as_effects(s: Session) -> None:
    kernel = s.kernel()
    ran = kernel.run("print('out')\n1 + 1", why="to see")
    assert (ran.value, ran.stdout) == (2, "out\n")
    kernel.run("1/0", why="to fail")
    with pytest.raises(Invalid):
        kernel.run(5)  # type: ignore[arg-type]
    effects = [(e.name, e.state, e.why) for e in s.effects()]
    assert effects == [("kernel.run", "done", "to see"), ("kernel.run", "done", "to fail")]
    ended = [e.data for e in s.events() if e.kind == "ended"]
    assert ended[0]["outcome"]["value"] == 2
    assert ended[0]["outcome"]["stdout"] == "out\n"
    assert ended[1]["outcome"]["error"]["type"] == "ZeroDivisionError"


def test_kernel_run_with_a_key_is_done_once(s: Session) -> None:
    kernel = s.kernel()
    for _ in range(2):
        assert kernel.run("open('count', 'a').write('x')\n{'a': 1}", key="k").value == {"a": 1}
    assert kernel.run("open('count').read()").value == "x"


def test_a_replay_runs_nothing(hub: Hub, s: Session) -> None:
    def play(session: Session) -> list[object]:
        kernel = session.kernel()
        first = kernel.run("open('count', 'a').write('x')\n[1, 2]")
        forks = kernel.fork(2, why="two ways")
        values = [fork.run(f"{n} * 10").value for n, fork in enumerate(forks)]
        kept = kernel.keep(forks[1])
        failed = kept.run("1/0").error
        return [first.value, values, failed and failed.frames[0].source]

    before = play(s)
    assert before == [[1, 2], [0, 10], "1/0"]
    s.commit("played")
    s.pause()
    again = hub.session("s", replay=True)
    assert play(again) == before
    with pytest.raises(Diverged):
        again.kernel().run("something else")
    again.pause()
    s = hub.session("s")
    assert s.kernel().run("open('count').read()").value == "x"


def test_kept_kernel_fork_replaces_the_kernel(hub: Hub, work: Path, s: Session) -> None:
    kernel = s.kernel(keep=["n"])
    kernel.run("n = 0")
    forks = kernel.fork(3)
    for number, fork in enumerate(forks):
        fork.run(f"n = {number}; open('n', 'w').write('{number}')")
    kept = kernel.keep(forks[2], why="the best")
    assert s.kernel() is kept
    c = s.commit("kept")
    assert (s.path / "n").read_text() == "2"
    assert s.artifact_store.artifact_data("kernel/main")
    for fork in forks[:2]:
        fork.close()
        with pytest.raises(Invalid):
            fork.run("1")
    with pytest.raises(Invalid):
        kernel.run("1")
    names = [e.name for e in s.effects()]
    assert names.count("kernel.fork") == names.count("kernel.keep") == 1
    assert c.message == "kept"


def test_forks_of_forks_are_journaled(hub: Hub, s: Session) -> None:
    kernel = s.kernel()
    kernel.run("n = [0]")
    (one,) = kernel.fork()
    one.run("n.append(1); open('n', 'w').write('1')")
    two, three = one.fork(2)
    assert [two.name, three.name] == ["main/1/1", "main/1/2"]
    three.run("n.append(3); open('n', 'a').write('3')")
    kept = one.keep(three)
    assert s.kernel() is kernel and kept.name == "main/1"
    assert not (s.path / "n").exists()
    assert kernel.keep(kept).run("n").value == [0, 1, 3]
    assert s.kernel() is kept
    assert (s.path / "n").read_text() == "13"
    s.pause()
    assert hub.session("s").kernel().run("open('n').read()").value == "13"


def test_what_the_machine_had_is_committed_before_a_fork_is_kept(s: Session) -> None:
    kernel = s.kernel()
    (fork,) = kernel.fork()
    s.run("echo mine > mine")
    fork.run("open('theirs', 'w').write('t')")
    kernel.keep(fork)
    assert not (s.path / "mine").exists() and (s.path / "theirs").exists()
    lost = s.head
    assert lost is not None and "before keeping" in lost.message
    assert s.commit("after").parents == [lost.oid]


def test_declared_variables_come_back(hub: Hub, s: Session) -> None:
    kernel = s.kernel(keep=["a", "b"])
    kernel.run("a = {'x': [1, 2]}; b = 1; c = 3")
    first = s.commit("one")
    assert s.commit("again").oid == first.oid
    kernel.run("a['x'].append(3); b = 2")
    second = s.commit("two")
    restored = s.restore(first.oid)
    assert restored.to == first.oid
    with pytest.raises(Invalid, match="went elsewhere"):
        kernel.run("a")
    kernel = s.kernel()
    assert kernel.run("a, b, 'c' in globals()").value == [{"x": [1, 2]}, 1, False]
    s.restore(second.oid)
    assert s.kernel().run("a, b").value == [{"x": [1, 2, 3]}, 2]
    s.pause()
    s = hub.session("s")
    kernel = s.kernel()
    assert kernel.run("a, b").value == [{"x": [1, 2, 3]}, 2]
    kernel.run("b = 5")
    s.commit("names are remembered")
    forks = s.fork(2)
    for number, fork in enumerate(forks):
        assert fork.kernel().run(f"b += {number}\nb").value == 5 + number
    assert s.kernel().run("b").value == 5


def test_a_restored_kernel_that_ran_nothing_is_no_change(s: Session) -> None:
    s.kernel(keep=["a"]).run("a = {str(n) for n in range(50)}")
    one = s.commit("one")
    s.kernel().run("a.add('more')")
    s.commit("two")
    s.restore(one.oid)
    assert s.kernel().vars()[0].kept
    assert s.commit("nothing").oid == one.oid


def test_commit_lists_kernel_variables_that_cannot_be_pickled(s: Session) -> None:
    kernel = s.kernel(keep=["good", "lock", "gone", "made"])
    kernel.run("import sys; sys.modules['cloudpickle'] = None  # as where there is none")
    kernel.run("import threading\ngood = [1]; lock = threading.Lock(); made = lambda: 1")
    found = {var.name: (var.kept, var.type, var.why) for var in kernel.vars("file")}
    assert found["good"] == (True, "list", "")
    assert found["gone"] == (False, "", "there is no such variable")
    assert found["lock"][:2] == (False, "lock")
    assert "defined in a cell" in found["made"][2]
    kernel.run("file = open('a.txt')")
    commit = s.commit("some")
    warnings = [e.data for e in s.events() if e.kind == "warning"]
    assert warnings[0]["kind"] == "not_kept"
    assert "lock (lock): cannot pickle" in warnings[0]["error"]
    assert "file (TextIOWrapper): cannot pickle" in warnings[0]["error"]
    kernel.run("good.append(2)")
    s.commit("more")
    s.restore(commit.oid)
    kernel = s.kernel()
    assert kernel.run("good").value == [1]
    assert {var.name for var in kernel.lost} >= {"lock", "gone", "file"}


def test_with_cloudpickle_what_cells_define_is_kept(s: Session) -> None:
    kernel = s.kernel(keep=["made", "thing"])
    kernel.run("n = 2\nclass Thing:\n  x = 5\nmade = lambda: n * 2\nthing = Thing()")
    one = s.commit("one")
    kernel.run("del made")
    s.commit("two")
    s.restore(one.oid)
    assert s.kernel().run("made(), thing.x").value == [4, 5]


def test_restore_reports_kernel_variables_that_cannot_be_unpickled(s: Session) -> None:
    s.run("echo 'class Thing: pass' > things.py")
    s.kernel(keep=["a", "b"]).run("import things\na = things.Thing(); b = 2")
    one = s.commit("one")
    s.run("rm things.py")
    s.kernel().run("b = 3")
    two = s.commit("two")
    s.restore(one.oid)
    assert s.kernel().run("type(a).__name__, b").value == ["Thing", 2]
    s.restore(two.oid)
    kernel = s.kernel()
    assert kernel.run("'a' in globals(), b").value == [False, 3]
    assert [(var.name, "things" in var.why) for var in kernel.lost] == [("a", True)]


def test_a_commit_while_it_runs_is_refused(s: Session) -> None:
    kernel = s.kernel(keep=["a"])
    kernel.run("a = 1")
    caught: list[Conflict] = []

    def commit(*_: object) -> None:
        try:
            s.commit("too early")
        except Conflict as error:
            caught.append(error)

    kernel.run("a = 2; print('now')", output=commit)
    assert caught[0].kind == "kernel_busy"
    s.commit("now")


def test_kernel_of_an_in_place_workspace_cannot_fork_but_restores_variables(
    hub: Hub, work: Path
) -> None:
    s = hub.session("inplace", workspace=work)
    kernel = s.kernel(keep=["a"])
    kernel.run("a = 1; open('new', 'w').write('n')")
    assert (work / "new").read_text() == "n"
    with pytest.raises(Unsupported) as caught:
        kernel.fork(2)
    assert caught.value.kind == "no_kernel_fork"
    one = s.commit("one")
    kernel.run("a = 2")
    s.commit("two")
    s.restore(one.oid)
    assert s.kernel().run("a").value == 1


def test_running_a_kernel_fork_that_was_only_replayed_is_not_found(hub: Hub, s: Session) -> None:
    s.kernel().fork(1)
    s.pause()
    again = hub.session("s", replay="live")
    (fork,) = again.kernel().fork(1)
    with pytest.raises(NotFound, match="only replayed"):
        fork.run("1")


def test_variables_are_unpickled_inside_only(s: Session, tmp_path: Path) -> None:
    """A pickle that would do something does it in the machine, whose files are private."""
    mark = tmp_path / "proj" / "harm"
    kernel = s.kernel(keep=["a"])
    kernel.run(
        "import os, os.path\n"
        "class Harm:\n  def __reduce__(self): return os.system, ('touch harm',)\n"
        "a = Harm()"
    )
    one = s.commit("one")
    s.kernel().run("a = 1")
    s.commit("two")
    s.restore(one.oid)
    s.kernel().run("1")
    assert (s.path / "harm").exists()
    assert not mark.exists()


# in a live machine, whose processes are part of a commit


def test_memory_is_part_of_a_commit(live: Session) -> None:
    kernel = live.kernel()
    kernel.run("import threading\nn = 1; lock = threading.Lock()\nprint('out')")
    one = live.commit("one")
    ran = kernel.run("n += 1\nprint('still heard')\nn")
    assert (ran.value, ran.stdout) == (2, "still heard\n")
    forks = live.fork(2)
    for number, fork in enumerate(forks):
        ran = fork.kernel().run(f"n += {number}\nprint('in a fork')\n(n, lock.locked())")
        assert (ran.value, ran.stdout) == ([2 + number, False], "in a fork\n")
    assert kernel.run("n").value == 2
    live.restore(one.oid)
    with pytest.raises(Invalid, match="went elsewhere"):
        kernel.run("n")
    again = live.kernel()
    assert again.run("print('back')\n(n, lock.locked())").value == [1, False]
    assert again.run("while True: pass", timeout=0.2).timed_out
    again.close()
    assert live.kernel().run("'n' in globals()").value is False


def test_live_machine_refuses_commits_during_a_run_and_bad_interpreters(live: Session) -> None:
    kernel = live.kernel(keep=["n"])
    kernel.run("n = 1")
    errors: list[Conflict] = []

    def commit(*_: object) -> None:
        try:
            live.machine.commit("while it runs")
        except Conflict as error:
            errors.append(error)

    assert kernel.run("print('now')\nn + 1", output=commit).value == 2
    assert errors[0].kind == "kernel_busy"
    live.commit("now")
    assert kernel.run("n").value == 1
    with pytest.raises(NotFound) as missing:
        live.kernel("other", python="/no/such/python").run("1")
    assert missing.value.kind == "no_python"
    with pytest.raises(NotFound, match="cannot be started"):
        live.kernel("false", python="/bin/false").run("1")
    with pytest.raises(Unavailable):
        kernel.run("import os; os._exit(3)")
    assert live.kernel().run("n").value == 1  # as it was committed


def test_fork_of_a_live_machine_knows_declared_kernel_variables(live: Session) -> None:
    live.kernel(keep=["n"]).run("n = 1")
    (fork,) = live.fork(1)
    kernel = fork.kernel()
    kernel.run("n = 2")
    assert [(var.name, var.kept) for var in kernel.vars()] == [("n", True)]
