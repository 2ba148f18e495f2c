"""Hands secrets to one command of a live machine, past its pid 1, whose memory is in every dump."""

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
_MAX_SECRETS_BYTES = 1 << 20  # what a pipe takes

# Becomes the command: what it had in its own memory is gone then.
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
    """What to write in front of a command so that it has these in its environment. They go through
    a pipe with a name in the machine whose pid 1 is this, and so are never on a disk."""
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
