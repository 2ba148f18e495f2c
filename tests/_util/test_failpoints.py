"""A fault point does nothing, unless it was armed from outside."""

from __future__ import annotations

import errno
import os
import signal
import sys

import pytest
from tests.fixtures import forked

from ortet._util.failpoints import failpoint, parse
from ortet.errors import Invalid

PROGRAM = """
from ortet._util.failpoints import failpoint
for name in ("first", "second", "second"):
    try:
        failpoint(name)
    except OSError as error:
        print(name, error.errno)
    else:
        print(name, "passed")
"""


def run(fault: str | None) -> tuple[int, list[str]]:
    environment = {key: value for key, value in os.environ.items() if key != "ORTET_FAULT"}
    if fault is not None:
        environment["ORTET_FAULT"] = fault
    done = forked.run(
        [sys.executable, "-u", "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_an_unarmed_fault_point_does_nothing() -> None:
    failpoint("any.name")
    assert run(None) == (0, ["first passed", "second passed", "second passed"])
    assert run("") == (0, ["first passed", "second passed", "second passed"])


def test_kill_ends_the_process_at_the_point() -> None:
    assert run("second:kill") == (-signal.SIGKILL, ["first passed"])


def test_kill_at_the_nth_time() -> None:
    assert run("second:kill:2") == (-signal.SIGKILL, ["first passed", "second passed"])
    assert run("second:kill:3")[0] == 0


def test_an_armed_nospace_fault_fails_once() -> None:
    code, said = run("second:nospace")
    assert code == 0
    assert said == ["first passed", f"second {errno.ENOSPC}", "second passed"]


@pytest.mark.parametrize("text", ["name", "name:melt", "name:kill:x", "a:b:c:d", "name:kill:"])
def test_a_mistyped_fault_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="NAME:kill"):
        parse(text)
