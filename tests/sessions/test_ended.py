"""A process that has ended holds no session, though nobody has asked for its end yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ortet

_PROGRAM = """
import os, sys
import ortet
hub = ortet.open(sys.argv[1])
hub.session("x").say("user", "hello")
os._exit(0)
"""


def test_session_of_a_zombie_process_can_be_opened(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, str(store)]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with ortet.open(store) as hub, hub.session("x") as session:
            assert [message.content for message in session.messages()] == ["hello"]
