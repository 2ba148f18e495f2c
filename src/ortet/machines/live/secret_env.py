"""Passes secrets to one command of a live machine without going through its pid 1.

The memory of pid 1 is in every dump, so a secret must never reach it. The module is separate
because the launcher code below runs inside the machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from ortet.errors import Invalid

_FIFO_DIRECTORY = "/run/ortet"
_F_SETPIPE_SZ = 1031
_MAX_SECRETS_BYTES = 1 << 20  # capacity of a pipe

# Replaces itself by the command with exec, which discards its memory and the secrets in it.
_LAUNCHER_CODE = """
import json, os, sys
with open(sys.argv[1], "rb") as file:
    size = int.from_bytes(file.read(8), "big")
    os.environ.update(json.loads(file.read(size)))
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
    why = "command not found" if missing else error.strerror
    sys.stderr.write(f"{sys.argv[2]}: {why}\\n")
    sys.exit(127 if missing else 126)
"""


@contextmanager
def secret_launcher_argv(pid: int, mark: str, values: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the launcher arguments that put `values` into the environment of a command.

    The values pass through a FIFO in the machine whose pid 1 is `pid`, so they never reach a disk.
    """
    data = json.dumps(dict(values)).encode()
    if len(data) + 8 > _MAX_SECRETS_BYTES:
        raise Invalid("bad_value", "these secrets are too large for an environment: write a file")
    name = f"{_FIFO_DIRECTORY}/{mark}"
    place = f"/proc/{pid}/root{name}"
    os.mkfifo(place, 0o600)
    try:
        fd = os.open(place, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.fcntl(fd, _F_SETPIPE_SZ, max(1 << 16, len(data) + 8))
            os.write(fd, len(data).to_bytes(8, "big") + data)
            python = os.path.realpath(sys.executable)
            yield [python, "-I", "-S", "-c", _LAUNCHER_CODE, name]
        finally:
            os.close(fd)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(place)
