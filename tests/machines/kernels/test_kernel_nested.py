"""Forks of forks of kernels: each begins with what the one it came from was at that moment."""

from __future__ import annotations

import os
import sys

import pytest
from tests.fixtures import forked
from tests.fixtures.kernels import HUB, OWN, PYTHON, files_of
from tests.fixtures.machines import Shop

from ortet.errors import Conflict
from ortet.machines.base import MachineSpec
from ortet.machines.kernels.kernel import Kernel
from ortet.machines.kernels.manager import KernelManager
from ortet.machines.overlay.engine import OverlayEngine
from ortet.machines.overlay.machine import OverlayMachine

_CHILDREN = """
sorted(
    name for name in os.listdir("/proc")
    if name.isdigit() and os.path.isdir(f"/proc/{name}/task")
    and open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[0] != "Z"
)
"""
"""Code that lists the living processes of a machine."""


def grow(kernel: Kernel, name: str) -> Kernel:
    """A fork that has something of its own in memory and in its files."""
    (fork,) = kernel.fork()
    error = fork.run(f"way = [*globals().get('way', []), '{name}']").error
    assert error is None
    fork.run(f"open('{name}', 'w').write(','.join(way))")
    return fork


def test_a_fork_of_a_fork_starts_with_the_state_of_its_parent(
    kernel: Kernel,
    machine: OverlayMachine,
) -> None:
    kernel.run("way = []; log = open('log', 'w'); log.write('0'); log.flush()")
    one = grow(kernel, "one")
    one.run("log.write('1'); log.flush()")
    children = one.fork(3)
    assert [child.name for child in children] == [f"main/1/{n}" for n in (1, 2, 3)]
    before = {**OWN, "one": "one", "log": "01"}
    for number, child in enumerate(children):
        child.run(f"way.append({number}); log.write('c{number}'); log.flush()")
    one.run("log.write('!'); log.flush(); open('later', 'w').write('l')")
    for number, child in enumerate(children):
        assert child.run("way").value == ["one", number]
        assert files_of(child) == {**before, "log": f"01c{number}"}
    assert files_of(one) == {**before, "log": "01!", "later": "l"}
    assert files_of(kernel) == {**OWN, "log": "0"}
    assert kernel.run("way").value == []
    assert "one" not in os.listdir(machine.path)
    numbers = {child.run("import random; random.random()").value for child in (*children, one)}
    assert len(numbers) == 4


def test_forks_nest_deeper_than_the_overlay_depth_limit(kernel: Kernel) -> None:
    line = [kernel]
    for depth in range(12):
        line.append(grow(line[-1], f"f{depth:02}"))
    for depth, fork in enumerate(line[1:]):
        names = [f"f{n:02}" for n in range(depth + 1)]
        assert fork.run("way").value == names
        assert set(files_of(fork)) == {*OWN, *names}
    line[5].close()
    line[0].run("open('x', 'w')")
    assert line[12].run("1").value == 1
    assert line[6].fork()[0].run("len(way)").value == 6


def test_a_fork_outlives_its_parents(kernel: Kernel) -> None:
    one = grow(kernel, "one")
    two = grow(one, "two")
    one.close()
    kernel.close()
    assert files_of(two) == {**OWN, "one": "one", "two": "one,two"}
    assert files_of(two.fork()[0])["two"] == "one,two"


def test_keep_of_a_nested_fork_lands_its_files_and_state(
    kernel: Kernel,
    kernels: KernelManager,
    machine: OverlayMachine,
    shop: Shop,
) -> None:
    two = grow(grow(kernel, "one"), "two")
    kept = kernel.keep(two)
    assert kernels.get("main")[0] is kept
    assert machine.run("cat one two").stdout == "oneone,two"
    image = shop.image(machine.snapshot().hex())
    assert image.root == shop.freeze(machine.path).root
    kept.run("open('two', 'a').write('+')")
    assert machine.run("cat two").stdout == "one,two+"
    assert files_of(kept.fork()[0])["two"] == "one,two+"


def test_a_fork_keeps_one_of_its_own_forks(
    kernel: Kernel,
    kernels: KernelManager,
    machine: OverlayMachine,
) -> None:
    one = grow(kernel, "one")
    two = grow(one, "two")
    kept = one.keep(two)
    assert (kept is two, kept.name, one.alive) == (True, "main/1", False)
    assert "two" not in os.listdir(machine.path)
    assert kernels.get("main")[0] is kernel
    assert files_of(kept)["two"] == "one,two"
    assert kept.fork()[0].name == "main/1/2"
    kernel.keep(kept)
    assert machine.run("cat two").stdout == "one,two"


def test_a_fork_with_running_processes_keeps_its_files_when_it_forks(
    kernel: Kernel,
    shop: Shop,
) -> None:
    """What it started goes on writing where it was, and shows in none of the copies."""
    del shop
    one = grow(kernel, "one")
    one.run(
        "import os, subprocess, sys, time\n"
        'loop = \'import time\\nwhile 1: print(1, file=open("log", "a")); time.sleep(0.01)\'\n'
        "p = subprocess.Popen([sys.executable, '-c', loop])\n"
        "while not (os.path.exists('log') and os.stat('log').st_size): time.sleep(0.01)"
    )
    (two,) = one.fork()
    size = two.run("os.stat('log').st_size").value
    assert isinstance(size, int) and size > 0
    grown = one.run(f"while os.stat('log').st_size <= {size}: time.sleep(0.01)\n1")
    assert grown.value == 1
    assert two.run("os.stat('log').st_size").value == size
    one.run("open('.ortetignore', 'w').write('*.tmp'); open('a.tmp', 'w').write('t')")
    before = one.run(_CHILDREN).value
    for _ in range(10):
        with pytest.raises(Conflict, match="other processes") as caught:
            one.fork()
        assert caught.value.kind == "busy"
        # the process of the refused fork has ended: it would be in the way of the next one
        assert one.run(_CHILDREN).value == before
    one.run("p.kill(); p.wait()")
    assert files_of(one.fork()[0])["a.tmp"] == "t"


def test_a_nested_fork_with_threads_or_deleted_files_is_refused(kernel: Kernel) -> None:
    one = grow(kernel, "one")
    one.run("import threading; stop = threading.Event()")
    one.run("t = threading.Thread(target=stop.wait, name='the-watcher'); t.start()")
    with pytest.raises(Conflict, match="the-watcher"):
        one.fork()
    one.run("stop.set(); t.join(); import os; f = open('gone', 'w'); os.remove('gone')")
    with pytest.raises(Conflict, match="gone"):
        one.fork()
    one.run("f.close()")
    assert one.fork()[0].run("1").value == 1


def test_a_kernel_whose_working_directory_was_deleted_can_fork(kernel: Kernel) -> None:
    kernel.run("import os; os.mkdir('sub'); os.chdir('sub'); os.rmdir('../sub')")
    assert kernel.fork()[0].run("os.getcwd()").value
    kernel.run("os.chdir('/tmp')")
    assert kernel.fork()[0].run("os.getcwd()").value == "/tmp"


@pytest.mark.parametrize("point", ["bases.adopted:kill:2", "kernel.branchlayer:kill", "none:kill"])
def test_a_killed_nested_fork_leaves_the_machine_as_without_it(
    engine: OverlayEngine,
    shop: Shop,
    spec: MachineSpec,
    point: str,
) -> None:
    """What lies below a fork is never the machine's: it is as if the fork had not been."""
    assert spec.image is not None
    program = HUB.replace('if verb == "keep":', 'fork.fork(2)\nif verb == "keep":')
    done = forked.run(
        [
            *(sys.executable, "-c", program, str(shop.path), str(spec.path), str(spec.home)),
            *(spec.image.hex(), PYTHON or "", "fork"),
        ],
        env={**os.environ, "ORTET_FAULT": point},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout == "done\n") == point.startswith("none"), done.stderr
    machine = engine.open(spec)
    assert sorted(os.listdir(machine.path)) == ["a.txt", "before", "dir"]
    assert shop.image(machine.snapshot().hex()).root == shop.freeze(machine.path).root
    assert not [name for name in os.listdir(spec.home) if name.startswith("branch")]
    layers = machine._context.layer_store.root
    machine.close()
    engine.prune()
    assert not [name for name in os.listdir(layers) if "fork" in name]
