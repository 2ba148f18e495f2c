"""Overlay machines: what stays, what is kept from the host, what is left behind (nothing)."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.fixtures import forked
from tests.fixtures.machines import Shop
from tests.fixtures.waiting import WAIT, eventually
from tests.machines.nobody import pass_as_nobody

from ortet.errors import Conflict, Invalid, Unavailable
from ortet.history.records import Image
from ortet.ids import Oid, SystemClock, from_hex
from ortet.machines.base import Machine, MachineSpec
from ortet.machines.overlay import context
from ortet.machines.overlay.engine import OverlayEngine
from ortet.machines.overlay.machine import OverlayMachine
from ortet.machines.overlay.mount_plan import HostMount, MountStep, dirs_to_overlay, mount_steps

pytestmark = pytest.mark.overlay

Scope = Literal["workspace", "host"]


class Bench:
    """A store, a workspace directory on the host, and machines of it."""

    def __init__(self, shop: Shop, place: Path) -> None:
        self.shop = shop
        self.place = place
        self.work = place / "work"
        self.engine = OverlayEngine(shop.objects, shop.trees, SystemClock(), root=shop.path)
        self.opened: list[Machine] = []
        (self.work / "dir").mkdir(parents=True)
        (self.work / "dir/one").write_text("one")
        (self.work / "file").write_text("file")
        self.image = from_hex(shop.put(shop.freeze(self.work)))

    def spec(
        self, name: str, scope: Scope = "workspace", hide: tuple[Path, ...] = ()
    ) -> MachineSpec:
        home = self.shop.path / "local/machines" / name
        home.mkdir(parents=True, exist_ok=True)
        return MachineSpec(
            id=name,
            home=home,
            path=self.work,
            image=self.image,
            scope=scope,
            hide=(self.shop.path, *hide),
        )

    def open(
        self, name: str, scope: Scope = "workspace", hide: tuple[Path, ...] = ()
    ) -> OverlayMachine:
        machine = self.engine.open(self.spec(name, scope, hide))
        self.opened.append(machine)
        return machine

    def fork(self, machine: Machine, *names: str) -> list[Machine]:
        children = machine.fork([self.spec(name) for name in names])
        self.opened += children
        return children

    def commit(self, machine: Machine) -> Oid:
        with self.shop.objects.writing():
            image = machine.snapshot()
            self.shop.objects.flush()
            machine.mark_committed(image)
        return image

    def system(self, machine: Machine) -> Image:
        return self.shop.image(machine.snapshot().hex())


@pytest.fixture
def bench(shop: Shop, place: Path) -> Iterator[Bench]:
    bench = Bench(shop, place)
    yield bench
    for machine in bench.opened:
        machine.close()


def pid_of(machine: Machine) -> int:
    return int(machine.path.parts[2])


SCOPES: list[Scope] = ["workspace", "host"]


class TestTheHostIsLeftAlone:
    @pytest.mark.parametrize("scope", SCOPES)
    def test_writes_in_a_machine_do_not_reach_the_host(self, bench: Bench, scope: Scope) -> None:
        machine = bench.open("m", scope)
        mark = bench.place.name
        script = (
            f"echo in > file; rm -r dir; echo t > /tmp/{mark}.x; echo h > ~/{mark}.x;"
            f"echo e > /etc/{mark}.x; rm /etc/os-release; cat file /tmp/{mark}.x ~/{mark}.x"
        )
        assert machine.run(script).stdout == "in\nt\nh\n"
        assert (bench.work / "file").read_text() == "file"
        assert (bench.work / "dir/one").read_text() == "one"
        for directory in ("/tmp", str(Path.home()), "/etc"):
            assert not Path(directory, f"{mark}.x").exists()
        assert Path("/etc/os-release").exists()
        assert machine.run(f"cat /etc/{mark}.x").exit_code == (0 if scope == "host" else 1)

    @pytest.mark.parametrize("early", [True, False])
    def test_a_host_mount_that_disappears_during_open_is_left_out(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, early: bool
    ) -> None:
        gone = bench.place / "gone"

        def listed(spec: MachineSpec, host: Sequence[HostMount]) -> list[tuple[str, bool]]:
            if not early:
                gone.mkdir()
            return [*dirs_to_overlay(spec, host), (str(gone), False)]

        def planned(*args: Any, **options: Any) -> list[MountStep]:
            if not early:
                gone.rmdir()
            return mount_steps(*args, **options)

        monkeypatch.setattr(context, "dirs_to_overlay", listed)
        monkeypatch.setattr(context, "mount_steps", planned)
        assert bench.open("m", "host").run("echo up").stdout == "up\n"

    @pytest.mark.parametrize("scope", SCOPES)
    def test_host_files_outside_the_workspace_are_visible_in_the_machine(
        self, bench: Bench, scope: Scope
    ) -> None:
        machine = bench.open("m", scope)
        (bench.place / "beside").write_text("on the host")
        assert machine.run(["cat", str(bench.place / "beside")]).stdout == "on the host"
        assert (
            machine.run("echo $$ > /dev/null; ls /proc/1 > /dev/null; cat /proc/1/comm").exit_code
            == 0
        )
        assert machine.run("python3 -c 'import os; print(os.getpid() < 100)'").stdout == "True\n"

    @pytest.mark.parametrize("scope", SCOPES)
    def test_hidden_places_cannot_be_read_or_uncovered(self, bench: Bench, scope: Scope) -> None:
        secret = bench.place / "secret"
        secret.mkdir()
        (secret / "key").write_text("hunter2")
        token = bench.place / "token"
        token.write_text("hunter2")
        machine = bench.open("m", scope, (secret, token, bench.place / "not there"))
        for path in (secret / "key", token, bench.shop.path / "FORMAT"):
            result = machine.run(["cat", str(path)])
            assert "hunter2" not in result.stdout and "ortet store" not in result.stdout
        for path in (secret, bench.shop.path):
            assert machine.run(["ls", "-A", str(path)]).stdout == ""
        assert machine.run(f"echo x > {secret}/new").exit_code != 0
        assert machine.run(f"umount {secret}; cat {secret}/key").exit_code != 0

    def test_a_hidden_place_above_the_workspace_does_not_hide_it(self, bench: Bench) -> None:
        machine = bench.open("m", hide=(bench.place,))
        assert machine.run("cat file").stdout == "file"

    @pytest.mark.parametrize("scope", SCOPES)
    def test_close_ends_all_processes_and_leaves_no_mount(self, bench: Bench, scope: Scope) -> None:
        machine = bench.open("m", scope)
        assert str(bench.place) not in Path("/proc/self/mountinfo").read_text()
        machine.run("setsid sleep 1000 > /dev/null 2>&1 < /dev/null &")
        inside = Path(f"/proc/{pid_of(machine)}/task/{pid_of(machine)}/children").read_text()
        assert inside.split()
        machine.close()
        for pid in (pid_of(machine), *map(int, inside.split())):
            eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists())  # type: ignore[misc]
        assert str(bench.place) not in Path("/proc/self/mountinfo").read_text()


class TestWhatStays:
    def test_a_machine_that_is_open_cannot_be_opened_twice(self, bench: Bench) -> None:
        bench.open("m")
        with pytest.raises(Conflict) as caught:
            bench.open("m")
        assert caught.value.kind == "machine_open"

    def test_the_first_open_needs_an_image(self, bench: Bench) -> None:
        spec = MachineSpec(id="x", home=bench.spec("x").home, path=bench.work)
        with pytest.raises(Invalid) as caught:
            bench.engine.open(spec)
        assert caught.value.kind == "image_needed"

    def test_killed_with_its_hub_it_keeps_its_files(self, bench: Bench) -> None:
        """A process of its own opens the machine, changes files, and is killed."""
        spec = bench.spec("m")
        with forked.Popen(
            [
                sys.executable,
                "-c",
                HUB,
                str(bench.shop.path),
                spec.id,
                str(bench.work),
                bench.image.hex(),
            ],
            stdout=subprocess.PIPE,
        ) as hub:
            assert hub.stdout is not None
            said = json.loads(hub.stdout.readline())
            supervisor = os.pidfd_open(said["pid"])
            hub.send_signal(signal.SIGKILL)
        assert select.select([supervisor], [], [], WAIT)[0], "the supervisor outlived its hub"
        os.close(supervisor)
        machine = bench.open("m")
        assert machine.run("cat file; ls").stdout == "changed\ndir\nfile\nnew\n"
        assert machine.snapshot().hex() == said["image"]

    def test_a_dead_supervisor_raises_machine_gone_and_the_machine_reopens(
        self, bench: Bench
    ) -> None:
        machine = bench.open("m")
        os.kill(pid_of(machine), signal.SIGKILL)
        with pytest.raises(Unavailable) as caught:
            machine.run("true")
        assert caught.value.kind == "machine_gone"
        machine.close()
        assert bench.open("m").run("cat file").stdout == "file"

    def test_background_processes_live_until_close(self, bench: Bench) -> None:
        machine = bench.open("m")
        machine.run("mkfifo in; (while read line < in; do echo $line >> out; echo $line; done) &")
        machine.run("echo one > in; while ! [ -s out ]; do :; done")
        assert machine.run("cat out").stdout == "one\n"

    def test_a_timeout_leaves_earlier_processes_alone(self, bench: Bench) -> None:
        machine = bench.open("m")
        machine.run("sleep 1000 & echo $! > early")
        wild = (
            "setsid sleep 1001 & env -i setsid sh -c 'sleep 1002 & sleep 1003' & "
            "python3 -c 'import os\nif os.fork() == 0:\n os.setsid()\n"
            ' if os.fork() == 0: os.execvpe("sleep", ["sleep", "1004"], {})\' & wait; sleep 1005'
        )
        assert machine.run(wild, timeout=0.7).timed_out
        listing = machine.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
        assert "sleep 1000" in listing
        assert not [left for left in range(1001, 1006) if f"sleep {left}" in listing]
        assert machine.run("kill -0 $(cat early)").exit_code == 0


HUB = """
import json, sys
from pathlib import Path
from ortet.backends.local.bucket import FileBucket
from ortet._util.codec import Hasher
from ortet.history.tree.tree import Trees
from ortet.ids import SystemClock, from_hex
from ortet.machines.base import MachineSpec
from ortet.machines.overlay.engine import OverlayEngine
from ortet.objects.store import PackedObjectStore
store, name, work = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
bucket = FileBucket(store / "bucket")
objects = PackedObjectStore(store, bucket, hasher=Hasher(), clock=SystemClock())
engine = OverlayEngine(objects, Trees(objects), SystemClock(), root=store)
home = store / "local/machines" / name
machine = engine.open(MachineSpec(id=name, home=home, path=work, image=from_hex(sys.argv[4])))
machine.run("echo changed > file; echo new > new; rm -r dir; mkdir dir; sleep 1000 &")
image = machine.snapshot().hex()
print(json.dumps({"pid": int(machine.path.parts[2]), "image": image}), flush=True)
sys.stdin.read()
import time
time.sleep(1000)
"""


MAPPER = """
import mmap, os
fd = os.open("large", os.O_RDWR)
memory = mmap.mmap(fd, 0)
os.close(fd)
print("mapped", flush=True)
for word in (b"first", b"later", b"final"):
    open("go").read()
    memory[0:5] = word
    open("done", "w").close()
"""


class TestMemory:
    def test_stores_through_memory_are_seen_while_it_runs_and_after(self, bench: Bench) -> None:
        """By a process that lives on between commits, and by one that has just ended."""
        machine = bench.open("m")
        machine.run("head -c 300000 /dev/zero > large; mkfifo go done")
        (machine.path / "mapper.py").write_text(MAPPER)
        bench.commit(machine)
        machine.run("python3 mapper.py > log 2>&1 &")
        images = [bench.commit(machine)]
        for word in ("first", "later", "final"):
            machine.run("echo > go; cat done > /dev/null")
            if word == "final":
                machine.run("while pgrep -f '[m]apper.py' > /dev/null; do :; done")
            images.append(bench.commit(machine))
            assert machine.run("head -c 5 large").stdout == word
        assert len(set(images)) == 4

    def test_a_host_program_that_keeps_a_file_open(self, bench: Bench) -> None:
        machine = bench.open("m")
        machine.run("echo start > log")
        images = [bench.commit(machine)]
        with (machine.path / "log").open("a", buffering=1) as log:
            for number in range(3):
                log.write(f"line {number}\n")
                images.append(bench.commit(machine))
        assert len(set(images)) == 4
        assert bench.commit(machine) == images[-1]

    def test_a_new_hardlink_of_an_unchanged_file_is_captured(self, bench: Bench) -> None:
        machine = bench.open("m")
        machine.run("echo x > dir/new")
        bench.commit(machine)
        machine.run("ln dir/new twin")
        linked = bench.shop.image(bench.commit(machine).hex())
        assert linked.links
        machine.run("rm twin")
        assert not bench.shop.image(bench.commit(machine).hex()).links


class TestForks:
    def test_a_fork_of_an_idle_machine_copies_nothing(self, bench: Bench) -> None:
        machine = bench.open("m")
        machine.run("head -c 3000000 /dev/urandom > large; rm file; mv dir moved")
        image = bench.commit(machine)
        used = disk(bench.shop.path / "local")
        children = bench.fork(machine, *(f"c{number}" for number in range(8)))
        assert disk(bench.shop.path / "local") - used < 3_000_000  # which one copy would take
        for number, child in enumerate(children):
            assert child.snapshot() == image
            child.run(f"echo {number} >> large; echo {number} > file; rm -r moved")
        machine.run("echo parent > file")
        assert len({child.snapshot() for child in children} | {machine.snapshot()}) == 9
        assert machine.run("cat file; tail -c 2 large | wc -c; ls").stdout == (
            "parent\n2\nfile\nlarge\nmoved\n"
        )
        for number, child in enumerate(children):
            assert child.run("tail -n 1 large | tail -c 2; cat file").stdout.split()[-1] == str(
                number
            )

    def test_a_busy_machine_forks_and_runs_on(self, bench: Bench) -> None:
        machine = bench.open("m")
        machine.run("echo $$ > leader; sleep 1000 & echo $! > sleeper; rm file; echo n > dir/new")
        image = bench.commit(machine)
        pid = pid_of(machine)
        (child,) = bench.fork(machine, "c")
        assert child.snapshot() == image
        assert child.run("cat dir/new; ls").stdout == "n\ndir\nleader\nsleeper\n"
        assert pid_of(machine) == pid
        assert machine.run("kill -0 $(cat sleeper)").exit_code == 0

    def test_a_file_open_on_the_host_makes_it_busy(self, bench: Bench) -> None:
        machine = bench.open("m")
        machine.run("echo more >> file")
        image = bench.commit(machine)
        with (machine.path / "file").open("a") as held:
            (child,) = bench.fork(machine, "c")
            held.write("written after the fork")
        assert child.snapshot() == image
        assert "after the fork" in (machine.path / "file").read_text()

    def test_hardlinks_stay_one_file_through_several_forks(self, bench: Bench) -> None:
        machine: Machine = bench.open("m")
        machine.run("ln file dir/twin; ln file third")
        for generation in range(3):
            image = bench.commit(machine)
            (machine,) = bench.fork(machine, f"g{generation}")
            assert machine.snapshot() == image
            machine.run(f"echo {generation} >> dir/twin")
            assert machine.run("cat third").stdout == machine.run("cat file").stdout
            assert machine.run("stat -c %h file third dir/twin").stdout == "3\n3\n3\n"

    def test_repeated_forks_flatten_the_layer_stack(self, bench: Bench) -> None:
        machine = bench.open("m")
        for generation in range(12):
            machine.run(f"echo {generation} > dir/f{generation}; rm -f dir/f{generation - 2}")
            image = bench.commit(machine)
            (child,) = bench.fork(machine, f"g{generation}")
            assert child.snapshot() == image
            child.close()
        lowers = [line for line in mounts_of(machine) if f" {bench.work} " in line]
        assert lowers[-1].count("b/") <= 9
        assert machine.run("ls dir").stdout == "f10\nf11\none\n"

    def test_a_fork_gets_its_own_copy_of_ignored_files(self, bench: Bench) -> None:
        machine = bench.open("m")
        machine.run("echo '*.tmp' > .ortetignore; echo mine > x.tmp")
        image = bench.commit(machine)
        (child,) = bench.fork(machine, "c")
        assert child.run("cat x.tmp").stdout == "mine\n"
        assert child.snapshot() == image
        other = bench.engine.open(
            MachineSpec(id="o", home=bench.spec("o").home, path=bench.work, image=image)
        )
        bench.opened.append(other)
        assert other.run("cat x.tmp").exit_code == 1
        assert other.snapshot() == image


class TestLargeUppers:
    def test_an_upper_directory_with_many_files_becomes_a_layer(self, bench: Bench) -> None:
        machine = bench.open("m")
        machine.run("mkdir many; cd many; for i in $(seq 1100); do echo $i > $i; done; mv ../dir .")
        image = bench.commit(machine)
        assert not (bench.spec("m").home / "upper-1").exists()
        assert machine.snapshot() == image
        machine.run("echo changed > many/7")
        after = bench.commit(machine)
        assert after != image
        machine.restore(image)
        assert machine.snapshot() == image
        assert machine.run("cat many/7 many/dir/one; ls many | wc -l").stdout == "7\none1101\n"

    def test_a_restore_of_many_changes_switches_layers(self, bench: Bench) -> None:
        machine = bench.open("m")
        before = bench.commit(machine)
        machine.run("mkdir many; cd many; for i in $(seq 400); do echo $i > $i; done; rm ../file")
        after = bench.commit(machine)
        report = machine.restore(before)
        assert (report.removed, report.losses) == (401, [])
        assert machine.snapshot() == before
        assert machine.run("ls; cat file").stdout == "dir\nfile\nfile"
        machine.restore(after)
        assert machine.snapshot() == after

    def test_a_machine_with_running_processes_is_restored(self, bench: Bench) -> None:
        machine = bench.open("m")
        before = bench.commit(machine)
        machine.run("mkdir many; cd many; for i in $(seq 300); do echo $i > $i; done; sleep 1000 &")
        machine.restore(before)
        assert machine.snapshot() == before
        assert (
            machine.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout.count("sleep 1000") == 1
        )


def disk(path: Path) -> int:
    """Bytes that a directory takes, as du counts them."""
    return int(
        subprocess.run(
            ["du", "-s", "-B1", str(path)], capture_output=True, text=True, check=True
        ).stdout.split()[0]
    )


def mounts_of(machine: Machine) -> list[str]:
    return Path(f"/proc/{pid_of(machine)}/mounts").read_text().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["conformance/test_engine_overlay", "machines/overlay/upper/test_scanner"]
)
def test_the_engine_tests_pass_as_an_unprivileged_user(place: Path, name: str) -> None:
    """The engine's suite again."""
    tests = Path(__file__).parents[2] / f"{name}.py"
    pass_as_nobody(place, tests, "WorkspaceScope or any_changes")
