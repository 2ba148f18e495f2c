"""Forks of kernels: the same memory, files of their own, and one of them kept."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from msgspec.structs import replace
from tests.fixtures import forked
from tests.fixtures.kernels import HUB, OWN, PYTHON, files_of
from tests.fixtures.machines import Shop
from tests.fixtures.waiting import WAIT

from ortet.errors import Conflict, Invalid, Unavailable, Unsupported
from ortet.history.tree.tree import Trees
from ortet.ids import SystemClock
from ortet.machines.base import MachineSpec
from ortet.machines.folder import FolderEngine
from ortet.machines.kernels.kernel import Kernel
from ortet.machines.kernels.manager import KernelManager
from ortet.machines.overlay.engine import OverlayEngine
from ortet.machines.overlay.machine import OverlayMachine


def test_forks_share_the_state_of_their_parent_and_diverge(
    kernel: Kernel, machine: OverlayMachine
) -> None:
    kernel.run("import os\nstate = {'n': 1}\nopen('before', 'w').write('b')")
    forks = kernel.fork(3)
    assert [fork.name for fork in forks] == ["main/1", "main/2", "main/3"]
    for number, fork in enumerate(forks):
        fork.run(f"state['n'] += {number}; open('mine', 'w').write('{number}')")
        fork.run("os.remove('before'); os.rename('dir/b.txt', 'dir/c.txt')" if number else "")
    kernel.run("open('later', 'w').write('l')")
    for number, fork in enumerate(forks):
        assert fork.run("state").value == {"n": 1 + number}
        before = {} if number else {"before": "b"}
        assert files_of(fork) == {**OWN, **before, "mine": str(number)}
        assert fork.run("os.listdir('dir')").value == ["c.txt" if number else "b.txt"]
        assert fork.run("import subprocess\nsubprocess.getoutput('cat mine')").value == str(number)
    assert kernel.run("state").value == {"n": 1}
    assert files_of(kernel) == {**OWN, "before": "b", "later": "l"}
    assert machine.run("ls").stdout.split() == ["a.txt", "before", "dir", "later", "twin"]
    assert sorted(os.listdir(machine.path)) == ["a.txt", "before", "dir", "later", "twin"]


def test_hardlinks_stay_linked_in_a_fork(kernel: Kernel) -> None:
    (fork,) = kernel.fork()
    fork.run("open('a.txt', 'a').write('!')")
    assert files_of(fork) == {"a.txt": "alpha!", "twin": "alpha!"}
    assert files_of(kernel) == OWN


def test_a_kernel_forks_more_often_than_the_overlay_depth_limit(
    kernel: Kernel, machine: OverlayMachine, shop: Shop
) -> None:
    """More often than layers may lie on one another, with changes in between."""
    first = kernel.fork()[0]
    for number in range(11):
        kernel.run(f"open('f{number}', 'w').write('{number}')")
        (fork,) = kernel.fork()
        assert len(files_of(fork)) == 3 + number
        fork.run("open('x', 'w').write('x')")
        if number % 3:
            fork.close()
    assert files_of(first) == OWN
    image = machine.snapshot()
    assert shop.freeze(machine.path).root == shop.image(image.hex()).root
    assert machine.run("ls").stdout.split() == sorted(
        ["a.txt", "dir", "twin", *(f"f{n}" for n in range(11))]
    )


def test_open_files_stay_usable_in_each_fork(kernel: Kernel) -> None:
    kernel.run("import os\nlog = open('log', 'w'); log.write('both '); log.flush()")
    kernel.run("read = open('a.txt'); read.read(2)\nos.chdir('dir')\nhere = os.open('.', 0)")
    (fork,) = kernel.fork()
    for one, word in ((fork, "fork"), (kernel, "main")):
        one.run(f"log.write('{word}'); log.flush(); open('here', 'w').write('{word}')")
    for one, word in ((fork, "fork"), (kernel, "main")):
        assert one.run("open('../log').read()").value == f"both {word}"
        assert one.run("read.read(), os.getcwd().endswith('/dir')").value == ["pha", True]
        assert one.run("open('here').read(), sorted(os.listdir(here))").value == [
            word,
            ["b.txt", "here"],
        ]


def test_fork_with_deleted_or_mapped_open_files_is_refused(kernel: Kernel) -> None:
    kernel.run("import mmap, os\nf = open('gone', 'w'); os.remove('gone')")
    with pytest.raises(Conflict, match="gone") as caught:
        kernel.fork()
    assert caught.value.kind == "files_stuck"
    kernel.run("f.close()\nm = open('map', 'w+b'); m.write(b'x' * 4096); m.flush()")
    kernel.run("view = mmap.mmap(m.fileno(), 0)")
    with pytest.raises(Conflict, match="mapped"):
        kernel.fork()
    kernel.run("view.close()")
    assert kernel.fork()[0].run("1").value == 1


def test_fork_with_running_threads_is_refused_and_names_them(kernel: Kernel) -> None:
    kernel.run(
        "import threading\nstop = threading.Event()\n"
        "t = threading.Thread(target=stop.wait, name='the-watcher'); t.start()"
    )
    with pytest.raises(Conflict, match="the-watcher") as caught:
        kernel.fork()
    assert caught.value.kind == "threads_alive"
    (fork,) = kernel.fork(force=True)
    assert fork.run("threading.active_count()").value == 1
    kernel.run("stop.set(); t.join()")
    assert kernel.fork()[0].run("1").value == 1


def test_forks_draw_different_random_numbers(kernel: Kernel) -> None:
    kernel.run("import random, secrets, ssl, uuid\nrandom.seed(1)\nown = random.Random(1)")
    forks = kernel.fork(4)
    for code in ("random.random()", "secrets.token_hex()", "ssl.RAND_bytes(8).hex()"):
        assert len({fork.run(code).value for fork in forks}) == 4
    assert len({fork.run("str(uuid.uuid1())").value for fork in forks}) == 4
    assert len({fork.run("own.random()").value for fork in forks}) == 1  # it was asked for


@pytest.mark.parametrize("name", ["numpy.random", "torch"])
def test_numpy_and_torch_are_seeded_again_in_a_fork(
    kernel: Kernel, machine: OverlayMachine, name: str
) -> None:
    """By their own `seed`, which takes a new one from the host when it is given none."""
    package, _, module = name.rpartition(".")
    path = f"{package}/{module}.py" if package else f"{module}.py"
    machine.run(f"mkdir -p {package or '.'}; touch {package or 'x'}/__init__.py; true")
    machine.run(f"printf 'seeds = 0\ndef seed():\n  global seeds\n  seeds += 1\n' > {path}")
    assert kernel.run(f"import {name} as it").error is None
    assert kernel.fork()[0].run("it.seeds").value == 1
    assert kernel.run("it.seeds").value == 0


def test_forks_run_at_the_same_time(kernel: Kernel) -> None:
    forks = kernel.fork(8)
    with ThreadPoolExecutor(8) as pool:
        done = pool.map(lambda pair: pair[1].run(f"sum(range({pair[0]}))").value, enumerate(forks))
        assert list(done) == [sum(range(n)) for n in range(8)]


def test_asyncio_works_in_a_fork_and_in_its_parent(kernel: Kernel) -> None:
    kernel.run("import asyncio; await asyncio.sleep(0)")
    forks = kernel.fork(2)
    for one in (*forks, kernel):
        assert one.run("await asyncio.sleep(0.01, 'slept')").value == "slept"


def test_a_fork_that_exits_does_not_end_its_siblings(kernel: Kernel) -> None:
    one, two = kernel.fork(2)
    with pytest.raises(Unavailable, match="fork again"):
        one.run("import os; os._exit(1)")
    two.run("import subprocess; p = subprocess.Popen(['sleep', '1000'])")
    kernel.close()
    assert two.run("p.poll()").value is None
    assert two.run("1 + 1").value == 2
    two.close()


def test_invalid_fork_counts_and_foreign_kernels_to_keep_are_refused(
    kernel: Kernel, kernels: KernelManager
) -> None:
    (fork,) = kernel.fork()
    for odd in (kernel, None, kernels.get("other", python=PYTHON)[0]):
        with pytest.raises(Invalid):
            kernel.keep(odd)  # type: ignore[arg-type]
    for count in (0, -1, "2", True):
        with pytest.raises(Invalid):
            kernel.fork(count)  # type: ignore[arg-type]
    fork.close()
    with pytest.raises(Invalid):
        kernel.keep(fork)


def test_a_kernel_of_the_folder_engine_cannot_fork(shop: Shop, spec: MachineSpec) -> None:
    folder = FolderEngine(shop.objects, Trees(shop.objects), SystemClock(), watch=False)
    machine = folder.open(spec)
    kernels = KernelManager(
        machine.kernel_host(), reading_files=nullcontext, before_replace=lambda _: None
    )
    kernel, _ = kernels.get("main")
    with pytest.raises(Unsupported, match="engine 'folder'") as caught:
        kernel.fork()
    assert caught.value.kind == "no_kernel_fork"
    assert kernel.run("1").value == 1
    kernels.close()
    machine.close()


# beside other processes


def test_other_kernels_keep_their_open_files_after_a_fork(
    kernel: Kernel, kernels: KernelManager
) -> None:
    other, _ = kernels.get("other", python=PYTHON)
    other.run("log = open('log', 'w'); log.write('1'); log.flush()")
    (fork,) = kernel.fork()
    other.run("log.write('2'); log.flush(); open('new', 'w').write('n')")
    assert files_of(kernel) == {**OWN, "log": "12", "new": "n"}
    assert files_of(fork) == {**OWN, "log": "1"}


def test_keep_is_refused_while_other_processes_run_in_the_machine(
    kernel: Kernel, machine: OverlayMachine
) -> None:
    machine.run("(exec >> log; while sleep 0.01; do echo x; done) 2>/dev/null </dev/null &")
    kernel.run("open('before', 'w').write('b')")
    (fork,) = kernel.fork()
    assert files_of(fork).keys() >= {"a.txt", "before"}
    fork.run("open('mine', 'w').write('m')")
    with pytest.raises(Conflict, match="other processes") as caught:
        kernel.keep(fork)
    assert caught.value.kind == "busy"
    on = "was=$(wc -c < log); while [ $(wc -c < log) = $was ]; do sleep 0.01; done"
    assert machine.run(on, timeout=WAIT).exit_code == 0
    assert "mine" not in files_of(kernel)
    assert fork.run("1").value == 1


def test_ignored_files_are_in_a_fork(kernel: Kernel, machine: OverlayMachine) -> None:
    machine.run("echo '*.log' > .ortetignore; echo kept > a.log")
    machine.snapshot()
    for _ in range(3):
        (fork,) = kernel.fork()
        assert files_of(fork)["a.log"] == "kept\n"
    fork.run("open('b.log', 'w').write('b')")
    kept = kernel.keep(fork)
    assert files_of(kept)["b.log"] == "b"
    machine.run("(sleep 1000 & ) >/dev/null 2>&1 </dev/null; echo x > c.log")
    with pytest.raises(Conflict, match="other processes") as caught:
        kept.fork()
    assert caught.value.kind == "busy"


# one of them kept


def test_keeping_a_fork_makes_it_the_main_kernel_with_its_files(
    kernel: Kernel, kernels: KernelManager, machine: OverlayMachine, shop: Shop
) -> None:
    kernel.run("n = 1; log = open('log', 'w')")
    one, two = kernel.fork(2)
    two.run("n = 2; log.write('two'); log.flush(); import os; os.remove('twin')")
    kept = kernel.keep(two)
    assert kept is two and kept.name == "main"
    assert kernels.get("main")[0] is kept
    with pytest.raises(Invalid, match="replaced"):
        kernel.run("1")
    kept.run("log.write('!'); log.flush(); open('after', 'w').write(str(n))")
    expected = {"a.txt": "alpha", "log": "two!", "after": "2"}
    assert files_of(kept) == expected
    assert machine.run("cat log after").stdout == "two!2"
    image = shop.image(machine.snapshot().hex())
    assert image.root == shop.freeze(machine.path).root
    assert one.run("n").value == 1
    assert "twin" in files_of(one)
    again = kept.fork(2)
    again[0].run("open('after', 'a').write('+')")
    assert files_of(again[0])["after"] == "2+"
    assert files_of(kernels.get("main")[0].keep(again[0]))["after"] == "2+"
    assert machine.run("cat after").stdout == "2+"


def test_files_of_a_kept_fork_are_in_the_reopened_machine(
    kernel: Kernel,
    kernels: KernelManager,
    machine: OverlayMachine,
    engine: OverlayEngine,
    spec: MachineSpec,
) -> None:
    (fork,) = kernel.fork()
    fork.run("open('kept', 'w').write('k')")
    kernel.keep(fork)
    before = machine.snapshot()
    left = kernels.get("main")[0].fork()[0]
    left.run("open('lost', 'w').write('k')")
    kernels.close()
    machine.close()
    assert not [name for name in os.listdir(spec.home) if name.startswith("branch")]
    again = engine.open(replace(spec, scope=machine._spec.scope))
    assert (again.path / "kept").read_text() == "k"
    assert not (again.path / "lost").exists()
    assert again.snapshot() == before
    again.close()


@pytest.mark.parametrize(
    ("verb", "point"),
    [
        ("fork", "bases.adopted"),
        ("fork", "kernel.layer"),
        ("fork", "kernel.swapped"),
        ("keep", "kernel.taken"),
        ("keep", "kernel.swapped:kill:2"),
        ("keep", "none"),
    ],
)
def test_a_killed_fork_or_keep_leaves_the_machine_in_its_old_or_new_state(
    engine: OverlayEngine, shop: Shop, spec: MachineSpec, *, verb: str, point: str
) -> None:
    assert spec.image is not None
    fault = point if ":" in point else f"{point}:kill"
    done = forked.run(
        [
            *(sys.executable, "-c", HUB, str(shop.path), str(spec.path), str(spec.home)),
            *(spec.image.hex(), PYTHON or "", verb),
        ],
        env={**os.environ, "ORTET_FAULT": fault},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout == "done\n") == (point == "none"), done.stderr
    machine = engine.open(spec)
    found = sorted(os.listdir(machine.path))
    kept = ["mine"] if point == "none" else []
    assert found == sorted(["a.txt", "before", "dir", *kept])
    assert shop.image(machine.snapshot().hex()).root == shop.freeze(machine.path).root
    assert not [name for name in os.listdir(spec.home) if name.startswith("branch")]
    machine.close()


def test_layers_of_forks_are_not_pruned(
    kernel: Kernel, engine: OverlayEngine, machine: OverlayMachine
) -> None:
    machine.run("touch log; (exec >> log; sleep 1000) </dev/null 2>/dev/null &")
    (fork,) = kernel.fork()
    kernel.run("open('new', 'w').write('n')")
    engine.prune()
    assert set(files_of(fork)) == {*OWN, "log"}


def test_a_kernel_and_its_fork_cannot_mount(kernel: Kernel, machine: OverlayMachine) -> None:
    """A kernel has no right to mount: what hides a place from it stays."""
    (fork,) = kernel.fork()
    for one in (kernel, fork):
        status = one.run("open('/proc/self/status').read()").value
        assert isinstance(status, str)
        line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
        assert not int(line.split()[1], 16) >> 21 & 1
        assert one.run("import os; os.path.exists('/proc/1/root')").error is None
    assert machine.run("grep CapEff /proc/self/status").exit_code == 0
