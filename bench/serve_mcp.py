"""How long a coding agent waits for `ortet mcp`: a whole process, until it answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from measure import Sample, command, now, ordinary_environment
from serve_plan import Plan

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}
SDK = "import mcp.server.lowlevel, mcp.server.stdio, mcp_types"


def all_rows(plan: Plan) -> Iterator[Sample]:
    store = plan.place / "mcp"
    command([sys.executable, "-c", SDK])  # what Python compiles once is compiled
    _answered(store)
    ours = [_answered(store) for _ in range(plan.counts.starts)]
    sdk = [command([sys.executable, "-c", SDK]).seconds for _ in range(plan.counts.starts)]
    yield Sample("mcp-start", "ortet", ours, "over standard streams")
    yield Sample("mcp-start", "the SDK imported, alone", sdk, "a process that does no more")


def _answered(store: Path) -> float:
    begin = now()
    with subprocess.Popen(
        [sys.executable, "-m", "ortet", "mcp", "--store", str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ordinary_environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        spent = now() - begin
        process.stdin.close()
    if "serverInfo" not in json.loads(line or b"{}").get("result", {}):
        raise SystemExit(f"ortet mcp did not answer: {line!r}")
    return spent
