"""Kernels in real machines: values, errors, interrupts, and every way an interpreter can end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked
from tests.fixtures.kernels import PYTHON
from tests.fixtures.machines import Shop
from tests.fixtures.waiting import WAIT
from tests.machines.nobody import pass_as_nobody

from ortet.errors import Conflict, Invalid, NotFound, Refused, Unavailable, Unsupported
from ortet.history.tree.tree import Trees
from ortet.ids import SystemClock
from ortet.machines.base import Engine, Machine, MachineSpec
from ortet.machines.folder import FolderEngine
from ortet.machines.kernels import link
from ortet.machines.kernels import link as ran_module
from ortet.machines.kernels import manager as kernels_module
from ortet.machines.kernels.kernel import Kernel
from ortet.machines.kernels.local_host import choose_python
from ortet.machines.kernels.manager import KernelManager
from ortet.machines.overlay.engine import OverlayEngine

# an ordinary user's machine does not see what lies below root's home, this interpreter perhaps


def engine_of(shop: Shop, name: str) -> Engine:
    trees = Trees(shop.objects)
    if name == "folder":
        return FolderEngine(shop.objects, trees, SystemClock(), watch=False)
    return OverlayEngine(shop.objects, trees, SystemClock(), root=shop.path)


@pytest.fixture(params=["overlay", "folder"])
def machine(shop: Shop, place: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A machine of either engine, with one file."""
    work = place / "work"
    work.mkdir()
    (work / "a.txt").write_text("alpha")
    image = bytes.fromhex(shop.put(shop.freeze(work)))
    home = place / "home"
    home.mkdir()
    engine = engine_of(shop, request.param)
    made = engine.open(MachineSpec(id="m", home=home, path=work, image=image))  # type: ignore[arg-type]
    yield made
    made.close()
    engine.remove(home)  # as only an engine can


@pytest.fixture
def kernels(machine: Machine) -> Iterator[KernelManager]:
    """Kernels in the seat of the machine, because a machine of a folder is no overlay."""
    made = KernelManager(
        machine.kernel_host(), reading_files=nullcontext, before_replace=lambda _: None
    )
    yield made
    made.close()


# what it answers


@pytest.mark.parametrize(
    ("code", "value", "text"),
    [
        ("1 + 1", 2, "2"),
        ("x = 5\nx * 2", 10, "10"),
        ("x = 5", None, ""),
        ("None", None, ""),
        ("", None, ""),
        ("(1, 'two', [3.5, None, True])", [1, "two", [3.5, None, True]], None),
        ("{'a': {'b': [1]}}", {"a": {"b": [1]}}, None),
        ("{1: 2}", None, "{1: 2}"),
        ("object", None, "<class 'object'>"),
        ("float('nan')", None, "nan"),
        ("b'bytes'", None, "b'bytes'"),
        ("'\\ud800'", None, "'\\ud800'"),
        ("a = []; a.append(a); a", None, "[[...]]"),
        ("2 ** 5000", None, None),
        ("import asyncio\nawait asyncio.sleep(0)\n'awaited'", "awaited", None),
        (
            "class X:\n  def __repr__(self): 1/0\nX()",
            None,
            "<X whose repr failed: ZeroDivisionError>",
        ),
        ("class L(list): pass\nL([1])", None, "[1]"),
    ],
)
def test_run_returns_json_values_and_the_repr_of_the_last_expression(
    kernel: Kernel, code: str, value: object, text: str | None
) -> None:
    ran = kernel.run(code)
    assert ran.error is None
    assert ran.value == value
    if text is not None:
        assert ran.repr == text


def test_variables_stay_between_runs_of_one_kernel(kernel: Kernel, kernels: KernelManager) -> None:
    kernel.run("import json\ndef twice(n): return 2 * n\nkeep = [1]")
    kernel.run("keep.append(twice(3))")
    assert kernel.run("keep").value == [1, 6]
    assert kernels.get("main")[0] is kernel
    assert kernels.get("other", python=PYTHON)[0].run("'keep' in globals()").value is False


def test_a_kernel_runs_in_the_workspace_directory(kernel: Kernel, machine: Machine) -> None:
    kernel.run("open('b.txt', 'w').write('beta')")
    assert machine.run("cat a.txt b.txt").stdout == "alphabeta"
    machine.run("echo 'def f(): return 7' > mine.py; echo 'raise Exception' > json.py")
    assert kernel.run("import mine\nmine.f()").value == 7


def test_modules_of_the_workspace_do_not_replace_the_standard_library(
    machine: Machine, kernels: KernelManager
) -> None:
    machine.run("for m in json socket types wire ast; do echo 'raise Exception' > $m.py; done")
    assert kernels.get("main", python=PYTHON)[0].run("1").value == 1


def test_stdout_and_stderr_of_code_and_children_are_captured(kernel: Kernel) -> None:
    seen: list[tuple[str, bytes]] = []
    code = """
import os, subprocess, sys
print("printed")
print("wrong", file=sys.stderr)
os.write(1, b"\\xff raw\\n")
subprocess.run("echo from a child", shell=True)
sys.stdout.write("no end of line")
"""
    ran = kernel.run(code, output=lambda name, data: seen.append((name, data)))
    assert ran.stdout == "printed\n\ufffd raw\nfrom a child\nno end of line"
    assert ran.stderr == "wrong\n"
    assert b"".join(data for name, data in seen if name == "stderr") == b"wrong\n"
    assert kernel.run("1").stdout == ""


def test_long_output_is_cut_and_the_cut_is_reported(kernel: Kernel) -> None:
    total = 0

    def count(_name: str, data: bytes) -> None:
        nonlocal total
        total += len(data)

    ran = kernel.run("for _ in range(100): print('x' * (1 << 20))", output=count)
    assert total == 100 * ((1 << 20) + 1)
    assert len(ran.stdout) < 9 << 20
    assert "bytes cut" in ran.stdout
    assert "characters cut" in kernel.run("'x' * 1_000_000").repr
    assert kernel.run("['x' * (20 << 20)]").value is None


def test_a_callback_that_fails_ends_the_run_only(kernel: Kernel) -> None:
    def fail(_name: str, _data: bytes) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        kernel.run("print('x')\nimport time\ntime.sleep(600)", output=fail)
    assert kernel.run("'still here'").value == "still here"


# errors


def test_an_error_has_its_lines(kernel: Kernel) -> None:
    kernel.run("def outer():\n    inner()\n\ndef inner():\n    raise ValueError('no good')\n")
    ran = kernel.run("x = 1\nouter()")
    assert ran.value is None and ran.error is not None
    assert (ran.error.type, ran.error.message, str(ran.error)) == (
        "ValueError",
        "no good",
        "ValueError: no good",
    )
    assert [(f.file, f.line, f.function, f.source) for f in ran.error.frames] == [
        ("<cell 2>", 2, "<module>", "outer()"),
        ("<cell 1>", 2, "outer", "inner()"),
        ("<cell 1>", 5, "inner", "raise ValueError('no good')"),
    ]
    assert "raise ValueError('no good')" in ran.error.text
    assert "kernelcell" not in ran.error.text
    assert kernel.run("x").value == 1


def test_the_place_in_a_line_is_marked(kernel: Kernel) -> None:
    """Also in the last line of a cell, and after characters that only look like ends of lines."""
    error = kernel.run("odd = '\x0c \u2028'\nimport json; json.loads(3)").error
    assert error is not None and error.frames[0].source == "import json; json.loads(3)"
    source, marks = error.text.splitlines()[2:4]
    if set(marks.strip()) == {"^"}:  # from Python 3.11 on
        assert marks.index("^") == source.index("json.loads")


def test_an_error_of_any_type_leaves_the_kernel_alive(kernel: Kernel) -> None:
    for code, kind in (
        ("if", "SyntaxError"),
        ("x = '\0'", None),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("def f(): f()\nf()", "RecursionError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("class E(Exception):\n  def __str__(self): 1/0\nraise E", "E"),
        ("raise type('Odd', (BaseException,), {})('x')", "Odd"),
        ("input()", "EOFError"),
        ("(" * 1000, None),
    ):
        error = kernel.run(code).error
        assert error is not None
        if kind is not None:
            assert error.type == kind
        assert error.text
    chained = kernel.run("try:\n  1/0\nexcept Exception as e:\n  raise ValueError from e").error
    assert chained is not None and "ZeroDivisionError" in chained.text
    assert kernel.run("1").value == 1


def test_syntax_errors_show_the_line(kernel: Kernel) -> None:
    error = kernel.run("a = 1\nb = = 2").error
    assert error is not None and "b = = 2" in error.text and 'File "<cell 1>", line 2' in error.text


@pytest.mark.parametrize("code", [1, b"1", None])
def test_code_that_is_not_text_is_refused(kernel: Kernel, code: object) -> None:
    with pytest.raises(Invalid):
        kernel.run(code)  # type: ignore[arg-type]


# time


def test_an_interrupt_from_another_thread_ends_the_run(kernel: Kernel) -> None:
    begun = threading.Event()

    def interrupt() -> None:
        begun.wait()
        kernel.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    ran = kernel.run("x = 1\nprint('begun')\nwhile True: pass", output=lambda *_: begun.set())
    thread.join()
    assert ran.error is not None and ran.error.type == "KeyboardInterrupt"
    assert not ran.timed_out
    kernel.interrupt()  # which finds nothing to interrupt
    assert kernel.run("x").value == 1


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(600)",
        "import subprocess; subprocess.run(['sleep', '600'])",
        "import asyncio; await asyncio.sleep(600)",
    ],
)
def test_a_timeout_interrupts_the_run_and_keeps_the_kernel(kernel: Kernel, code: str) -> None:
    # of a package whose import is interrupted the half stays, as anywhere in Python
    kernel.run("import asyncio, subprocess, time; x = 1")
    ran = kernel.run(code, timeout=0.2)
    assert ran.timed_out
    assert ran.error is not None and ran.error.type == "KeyboardInterrupt"
    assert "<ortet" not in ran.error.text
    assert not [frame for frame in ran.error.frames if frame.file.startswith("<ortet")]
    assert kernel.run("x").value == 1
    assert kernel.run("import asyncio; await asyncio.sleep(0)").error is None


def test_a_timeout_that_expires_before_the_code_starts_interrupts_it(kernel: Kernel) -> None:
    kernel.run("x = 1")
    run = {"do": "run", "code": "while True: pass"}
    said = kernel.link.request(run, timeout=0)
    assert said.timed_out
    assert "KeyboardInterrupt" in str(said.reply["error"])
    assert kernel.run("x").value == 1


def test_a_kernel_paused_over_its_timeout_is_interrupted_and_not_killed(kernel: Kernel) -> None:
    """It is interrupted when it goes on, though that is late, and though much of it came before."""
    kernel.run("x = 1")
    waking = threading.Timer(2.5, kernel.link.signal, [signal.SIGCONT])
    kernel.link.signal(signal.SIGSTOP)
    waking.start()
    ran = kernel.run("while True: pass", timeout=0.1)
    waking.join()
    assert ran.timed_out
    assert ran.error is not None and ran.error.type == "KeyboardInterrupt"
    assert kernel.run("x").value == 1


def test_a_kernel_that_ignores_the_interrupt_is_killed(
    kernels: KernelManager, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "INTERRUPT_GRACE_SECONDS", 0.2)
    kernel.run("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    with pytest.raises(Unavailable, match="ignored the interrupt") as caught:
        kernel.run("while True: pass", timeout=0.1)
    assert caught.value.kind == "kernel_gone"
    assert not kernel.alive
    again, new = kernels.get("main", python=PYTHON)
    assert new and again.run("1").value == 1


# endings


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os._exit(7)", "exit code 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import os; os.closerange(0, 4096)", "exit code"),
    ],
)
def test_an_interpreter_that_exits_raises_kernel_gone_with_the_cause(
    kernels: KernelManager, kernel: Kernel, code: str, how: str
) -> None:
    with pytest.raises(Unavailable, match=how) as caught:
        kernel.run(f"import os; os.write(2, b'last words'); {code}")
    assert caught.value.kind == "kernel_gone"
    assert "starts a new one" in str(caught.value)
    assert "last words" in caught.value.details["stderr"] or "closerange" in code
    with pytest.raises(Invalid, match="starts a new one"):
        kernel.run("1")
    again, new = kernels.get("main", python=PYTHON)
    assert new and again.run("1").value == 1


def test_a_kernel_killed_while_idle_is_reported_and_replaced(
    kernels: KernelManager, kernel: Kernel
) -> None:
    signal.pidfd_send_signal(kernel.link.pidfd, signal.SIGKILL)
    with pytest.raises(Unavailable, match="SIGKILL"):
        kernel.run("1")
    assert kernels.get("main", python=PYTHON)[1]


def test_close_during_a_run_ends_the_run_with_a_conflict(kernel: Kernel) -> None:
    begun = threading.Event()
    caught: list[BaseException] = []

    def run() -> None:
        try:
            kernel.run("print(1)\nwhile True: pass", output=lambda *_: begun.set())
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    with pytest.raises(Conflict) as busy:
        kernel.run("1")
    assert busy.value.kind == "kernel_busy"
    kernel.close()
    thread.join()
    assert isinstance(caught[0], Conflict) and caught[0].kind == "closed"
    kernel.close()


def test_closing_a_kernel_kills_the_processes_it_started(kernel: Kernel, machine: Machine) -> None:
    long = f"4321.{int.from_bytes(os.urandom(6))}"  # another may do the same on this host
    kernel.run(
        "import subprocess\n"
        f"a = subprocess.Popen(['sleep', '{long}'])\n"
        f"b = subprocess.Popen(['sleep', '{long}'], start_new_session=True)"
    )
    look = f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '[s]leep {long}' || true"
    assert machine.run(look).stdout.strip() != "0"
    kernel.close()
    assert machine.run(look).stdout.strip() == "0"


def test_on_the_host_a_busy_kernel_ends_with_its_hub(tmp_path: Path) -> None:
    program = """
import sys, os, threading
import ortet
hub = ortet.open(sys.argv[1] + "/store")
os.mkdir(sys.argv[1] + "/work")
kernel = hub.workspace(sys.argv[1] + "/work", engine="folder").kernel()
kernel.run("import os; print(os.getpid(), flush=True)", output=lambda _, d: os.write(1, d))
kernel.run("print('busy', flush=True)\\nwhile True: pass", output=lambda _, d: os.write(1, d))
"""
    hub = forked.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert hub.stdout is not None
    pid = int(hub.stdout.readline())
    assert hub.stdout.readline() == "busy\n"
    pidfd = os.pidfd_open(pid)
    hub.kill()
    hub.wait()
    hub.stdout.close()
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(1000 * WAIT)
    os.close(pidfd)


# starting


def test_the_python_of_the_workspace_venv_is_used(kernels: KernelManager, machine: Machine) -> None:
    machine.run(["mkdir", "-p", ".venv/bin"])
    real = PYTHON or sys.executable
    machine.run(f"printf '#!/bin/sh\\nMINE=yes exec {real} \"$@\"\\n' > .venv/bin/python")
    machine.run("chmod +x .venv/bin/python")
    seat = machine.kernel_host()
    assert choose_python(seat, None) == f"{seat.workspace_path}/.venv/bin/python"
    kernel, _ = kernels.get("main")
    assert kernel.run("import os; os.environ['MINE']").value == "yes"


def _script(machine: Machine, text: str) -> str:
    machine.run(["sh", "-c", 'printf "#!/bin/sh\\n%s\\n" "$0" > fake; chmod +x fake', text])
    return f"{machine.kernel_host().workspace_path}/fake"


def test_a_program_that_is_not_python_is_refused_as_a_kernel(
    kernels: KernelManager, machine: Machine
) -> None:
    with pytest.raises(NotFound) as caught:
        kernels.get("main", python="/no/such/python")
    assert caught.value.kind == "no_python"
    with pytest.raises(Unavailable, match="did not become a kernel") as not_one:
        kernels.get("main", python="/bin/false")
    assert not_one.value.kind == "kernel_not_started"
    with pytest.raises(Unavailable, match="no good"):
        kernels.get("main", python=_script(machine, "echo no good >&2; exit 1"))
    with pytest.raises(Invalid):
        kernels.get("main", python="")
    assert kernels.list_alive() == []


def test_a_kernel_gets_the_given_environment_changes(kernels: KernelManager) -> None:
    kernel, _ = kernels.get("main", python=PYTHON, env={"GIVEN": "yes", "PATH": None})
    ran = kernel.run("import os; [os.environ.get('GIVEN'), os.environ.get('PATH')]")
    assert ran.value == ["yes", None]


def test_more_kernels_than_the_limit_are_refused(
    kernels: KernelManager, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_module, "_MAX_KERNELS", 1)
    with pytest.raises(Refused) as caught:
        kernels.get("second", python=PYTHON)
    assert caught.value.kind == "too_many_kernels"
    with pytest.raises((Refused, Unsupported)):
        kernel.fork()


# what cannot be trusted


@pytest.mark.parametrize(
    "said",
    [
        b"[]",
        b'{"error": 5}',
        b'{"error": {"type": 1, "message": "", "frames": [], "text": ""}}',
        b'{"repr": 5}',
        b'{"value": NaN}',
        b'{"value": "\\ud800"}',
        b"not json",
        b"[" * 100_000,
    ],
)
def test_a_kernel_that_sends_invalid_replies_is_ended(kernel: Kernel, said: bytes) -> None:
    code = f"""
import os, socket, struct
for fd in map(int, os.listdir("/proc/self/fd")):
    try:
        if os.readlink("/proc/self/fd/%d" % fd).startswith("socket:"):
            body = {said!r}
            os.write(fd, struct.pack("!I", len(body)) + body)
    except OSError: pass
import time; time.sleep(600)
"""
    with pytest.raises(Unavailable, match="no kernel says"):
        kernel.run(code)
    assert not kernel.alive


def test_a_malformed_list_of_variables_is_refused() -> None:
    several: list[Any] = [None, 5, [1], [{}], [{"name": 1, "type": ""}]]
    for odd in several:
        with pytest.raises(ValueError):
            ran_module.parse_variables(odd)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_kernel", "test_fork", "test_kernel_nested"])
def test_the_kernel_tests_pass_as_an_unprivileged_user(place: Path, name: str) -> None:
    """These tests and those of forks again."""
    if os.geteuid() == 0:
        tests = Path(__file__).with_name(f"{name}.py")
        pass_as_nobody(place, tests, "overlay or fork or nested")
