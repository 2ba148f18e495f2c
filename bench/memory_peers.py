"""The systems of the memory part: their environment, and how each is run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import session_peers
from memory_plan import Plan
from memory_rows import DENSE, TEXT
from session_peers import Peer

HERE = Path(__file__).resolve().parent
PINS = HERE.parent / "requirements" / "memory-peers.txt"
CHILD = HERE / "memory_child.py"
PACKAGES = (
    "mem0ai",
    "qdrant-client",
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "chromadb",
    "bm25s",
    "rank-bm25",
    "wordllama",
    "numpy",
    "apsw",
)
OURS = {TEXT: "ortet-text", DENSE: "ortet-dense"}
BY_WORDS = {
    "FTS5, porter, OR": "fts5",
    "FTS5, 100 commonest terms pruned": "fts5-pruned",
    "bm25s": "bm25s",
    "rank_bm25": "rank-bm25",
}
BY_MEANING = {"dense only": "dense"}
LOCAL = {
    "mem0, infer=False": "mem0",
    "LangGraph InMemoryStore": "langgraph-memory",
    "LangGraph SqliteStore": "langgraph-sqlite",
    "chromadb": "chroma",
}
"""By the name in the report, what the child is told to be."""


def environment(cache: Path) -> Path:
    return session_peers.environment(cache, PINS)


def versions(python: Path) -> str:
    words = [str(python), str(CHILD), "versions", ".", *PACKAGES]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return "; ".join(f"{name} {text}" for name, text in json.loads(done.stdout).items())


def systems(plan: Plan, *groups: dict[str, str]) -> dict[str, str]:
    """Those of the groups that this Python can run."""
    wanted = {name: kind for group in groups for name, kind in group.items()}
    if plan.peers:
        return wanted
    mine = (TEXT, DENSE) if plan.dense else (TEXT,)
    return {name: kind for name, kind in wanted.items() if name in mine}


@contextmanager
def running(plan: Plan, kinds: dict[str, str], place: Path) -> Iterator[Sequence[Peer]]:
    """In an environment that tells nobody: every switch their manuals name is off."""
    home = place / "home"
    home.mkdir(parents=True)
    environ = {
        "PYTHONPATH": str(HERE.parent / "src"),
        "HOME": str(home),
        "MEM0_DIR": str(home / "mem0"),
        "MEM0_TELEMETRY": "False",
        "ANONYMIZED_TELEMETRY": "False",
        "DO_NOT_TRACK": "1",
        "LANGSMITH_TRACING": "false",
        "HF_HUB_OFFLINE": "1",
        "OPENAI_API_KEY": "none",  # mem0 builds a client that is never asked
        "TOKENIZERS_PARALLELISM": "false",
    }
    with session_peers.running(plan.python, kinds, place, child=CHILD, environ=environ) as peers:
        yield peers
