"""Processes in another PID namespace of the same host, as in a container: they share a store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ortet.errors import Refused
from ortet.hub.hub import Hub

pytestmark = pytest.mark.root

HOLD = """
import sys, ortet
with ortet.open(sys.argv[1]) as hub, hub.session("work") as s:
    s.say("user", "mine")
    print("open", flush=True)
    sys.stdin.read()
    s.commit("still mine")
"""

TRY = """
import sys, ortet
with ortet.open(sys.argv[1]) as hub:
    try:
        hub.session("work")
    except ortet.Refused as error:
        print(error.kind, error.message, flush=True)
    else:
        print("seized", flush=True)
"""

NAMESPACES = {
    "with-its-own-proc": ("unshare", "--pid", "--fork", "--mount-proc"),
    "with-the-proc-of-the-host": ("unshare", "--pid", "--fork"),
}


@contextmanager
def holding(store: Path, prefix: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the session open until its input ends."""
    pipe = subprocess.PIPE
    command = [*prefix, sys.executable, "-c", HOLD, str(store)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.stdin.close()
        assert process.wait() == 0


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_process_in_another_namespace_does_not_seize_a_session(store: Path, namespace: str) -> None:
    with holding(store):
        found = subprocess.run(
            [*NAMESPACES[namespace], sys.executable, "-c", TRY, str(store)],
            capture_output=True,
            text=True,
            check=True,
        )
    assert found.stdout.startswith("lease_held ")
    assert "of another container or boot of this host" in found.stdout


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_session_of_a_process_in_another_namespace_is_not_seized(
    store: Path, hub: Hub, namespace: str
) -> None:
    with holding(store, NAMESPACES[namespace]):
        with pytest.raises(Refused, match="of another container or boot") as caught:
            hub.session("work")
        assert caught.value.kind == "lease_held"
    with hub.session("work") as s:
        assert [m.content for m in s.messages()] == ["mine"]
        assert s.head is not None
        assert s.head.message == "still mine"
