"""Forks of kernels in a live machine: they are no part of its image, and one that is kept is."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.fixtures import forked
from tests.fixtures.waiting import WAIT

import ortet
from ortet.errors import Conflict, Unavailable
from ortet.hub.hub import hub_of
from ortet.sessions.session import Session


def test_forks_have_memory_and_files_of_their_own(live: Session) -> None:
    kernel = live.kernel()
    kernel.run("import os, random\nn = [1]; open('before', 'w').write('b')")
    kernel.run("log = open('log', 'w'); log.write('0'); log.flush()")
    forks = kernel.fork(3)
    for number, fork in enumerate(forks):
        fork.run(f"n.append({number}); open('mine', 'w').write('{number}')")
        fork.run("log.write('+'); log.flush(); os.remove('before')")
    for number, fork in enumerate(forks):
        assert fork.run("n, open('mine').read(), open('log').read()").value == [
            [1, number],
            str(number),
            "0+",
        ]
        inside = fork.run(
            "import subprocess\nsubprocess.getoutput('ls; readlink /proc/self/ns/user')"
        )
        assert isinstance(inside.value, str)
        *names, users = inside.value.split()
        assert "mine" in names and "before" not in names
        assert users == os.readlink("/proc/self/ns/user")  # none of its own
    assert len({fork.run("random.random()").value for fork in forks}) == 3
    assert kernel.run("n, os.path.exists('mine'), open('before').read()").value == [[1], False, "b"]
    assert live.run("cat log; ls").stdout.split() == ["0a.txt", "before", "log", "src"]
    (deep,) = forks[1].fork()
    forks[1].run("open('mine', 'w').write('later')")
    assert deep.run("n, open('mine').read()").value == [[1, 1], "1"]


def test_live_commit_is_refused_while_kernel_forks_are_open(live: Session) -> None:
    kernel = live.kernel()
    kernel.run("n = 1")
    one = live.commit("before")
    forks = kernel.fork(2)
    forks[0].run("import subprocess; p = subprocess.Popen(['sleep', '1000'])")
    for act in (lambda: live.commit("with forks"), lambda: live.fork(1)):
        with pytest.raises(Conflict, match="main/1, main/2") as caught:
            act()
        assert caught.value.kind == "kernel_forks"
    assert forks[0].run("n").value == kernel.run("n").value == 1
    for fork in forks:
        fork.close()
    two = live.commit("without")
    assert kernel.run("n += 1\nn").value == 2
    (copy,) = live.fork(1)
    assert copy.kernel().run("n").value == 2
    assert [f.run("n").value for f in copy.kernel().fork(2)] == [2, 2]
    (fork,) = live.kernel().fork()
    with pytest.raises(Conflict, match="main/3"):
        live.restore(two.oid)  # which commits first
    assert fork.run("n").value == 2
    fork.close()
    live.restore(two.oid)
    assert live.kernel().run("n").value == 1
    with live.kernel().fork()[0].live as again:  # type: ignore[union-attr]
        assert again.run("n").value == 1
    live.restore(one.oid)
    assert live.kernel().run("n").value == 1


def test_kept_kernel_fork_is_part_of_live_commits_and_restores(live: Session) -> None:
    kernel = live.kernel()
    kernel.run("import os; n = 1; log = open('log', 'w'); tmp = open('/tmp/of-kernel', 'w')")
    one, two = kernel.fork(2)
    two.run("n = 2; log.write('two'); log.flush(); other = open('/tmp/of-fork', 'w')")
    two.run("open('made', 'w').write('m'); os.makedirs('deep/er'); os.chdir('deep')")
    kernel = kernel.keep(two)
    one.close()
    assert live.run("cat log made; ls").stdout.startswith("twom")
    assert kernel.run("log.write('!'); log.flush(); other.write('x'); other.flush(); n").value == 2
    assert live.run("cat log /tmp/of-fork; ls deep").stdout == "two!xer\n"
    point = live.commit("kept")
    assert kernel.run("n += 1\nn, os.getcwd().endswith('/deep')").value == [3, True]
    (copy,) = live.fork(1)
    assert copy.kernel().run("log.write('?'); log.flush(); n").value == 3
    assert copy.run("cat log").stdout == "two!?"
    live.restore(point.oid)
    again = live.kernel()
    assert again.run("n").value == 2
    assert again.fork()[0].run("open('../log').read()").value == "two!"
    again.close()
    assert live.kernel().run("'n' in globals()").value is False


def test_files_of_the_machine_are_not_lost_when_one_is_kept(live: Session) -> None:
    kernel = live.kernel()
    (fork,) = kernel.fork()
    fork.run("open('from-fork', 'w').write('f')")
    live.run("echo kept > from-machine")
    kernel.keep(fork)
    assert not (live.path / "from-machine").exists()
    assert (live.path / "from-fork").read_text() == "f"
    before = next(one for one in live.machine.log() if "before keeping" in one.message)
    assert "from-machine" in {entry.path for entry in live.machine.diff(before.oid)}


def test_ignored_files_are_in_a_fork(live: Session) -> None:
    live.run("echo '*.log' > .ortetignore; echo kept > a.log; mkdir -p dist; echo d > dist/b.log")
    kernel = live.kernel()
    for _ in range(2):
        (fork,) = kernel.fork()
        assert fork.run("open('a.log').read() + open('dist/b.log').read()").value == "kept\nd\n"
        fork.run("open('a.log', 'w').write('changed')")
        (deep,) = fork.fork()
        assert deep.run("open('a.log').read()").value == "changed"
    kernel.keep(deep)
    assert live.run("cat a.log dist/b.log").stdout == "kept\nd\n"


def test_kernel_fork_that_imported_new_libraries_cannot_be_kept(live: Session) -> None:
    kernel = live.kernel()
    kernel.run("import sys")
    (fork,) = kernel.fork()
    assert fork.run("import _decimal, sqlite3").error is None
    with pytest.raises(Conflict, match="import it before you fork") as caught:
        kernel.keep(fork)
    assert caught.value.kind == "files_stuck"
    assert fork.run("1").value == kernel.run("1").value == 1
    fork.close()
    live.commit("without it")


def test_a_program_that_a_fork_left_behind_is_named(live: Session) -> None:
    kernel = live.kernel()
    (fork,) = kernel.fork()
    fork.run(
        "import subprocess\nnone = subprocess.DEVNULL\n"
        "subprocess.Popen(['sleep', '1000'], env={}, start_new_session=True, stdin=none, "
        "stdout=none, stderr=none) and None"
    )
    with pytest.raises(Unavailable):
        fork.run("import os; os._exit(1)")
    with pytest.raises(Conflict, match=r"sleep 1000.*fork of a Python kernel") as caught:
        live.commit("not yet")
    assert caught.value.kind == "cannot_freeze"
    (left,) = [one.pid for one in live.programs.ps() if one.name == "sleep"]
    gone = f"kill {left}; while kill -0 {left} 2> /dev/null; do sleep 0.01; done"
    assert live.run(gone, timeout=WAIT).exit_code == 0
    live.commit("now")
    assert kernel.run("1 + 1").value == 2


def test_a_refused_fork_costs_nothing(live: Session) -> None:
    kernel = live.kernel()
    for number in range(3):
        kernel.run(f"import os; open('f{number}', 'w').write('{number}')")
        kernel.run("gone = open('gone', 'w'); os.remove('gone')")
        with pytest.raises(Conflict, match="gone"):
            kernel.fork()
        kernel.run("gone.close()")
        (fork,) = kernel.fork()
        assert fork.run(f"open('f{number}').read()").value == str(number)
        fork.close()
    live.commit("whole")
    hub_of(live).verify()  # which raises


def test_a_killed_hub_leaves_nothing_of_its_forks(live: Session, tmp_path: Path) -> None:
    live.pause()
    hub_of(live).close()
    program = f"""
import os, signal, ortet
hub = ortet.open({str(live.internals.store.root)!r})
kernel = hub.session("live").kernel()
forks = kernel.fork(3)
forks[0].run("open('lost', 'w').write('x')")
forks[0].fork(2)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = forked.run([sys.executable, "-c", program], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    with ortet.open(live.internals.store.root) as hub:
        again = hub.session("live")
        assert "lost" not in again.run("ls").stdout
        home = Path(hub.root)
        assert not [path for path in home.rglob("branch*-*") if path.is_dir()]
        assert again.kernel().fork()[0].run("1").value == 1
