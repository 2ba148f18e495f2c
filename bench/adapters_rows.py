"""The rows of the adapters part: what is asked, and whether the samples say it was reached."""

from __future__ import annotations

from rows import Found, Judge, Row, below, both, p50
from session_rows import times

LENGTHS = (100, 500, 1000, 2000)
"""What rows are named by; a quick run has fewer turns under the same names."""
HALF = 500
OURS, FLOOR, SQLITE = "ortet", "LangGraph InMemorySaver", "LangGraph SqliteSaver"
AOURS, AFLOOR, ASQLITE = (
    "ortet, async",
    "LangGraph InMemorySaver, async",
    "LangGraph AsyncSqliteSaver",
)
SESSION, ASESSION = "ortet", "OpenAI Agents SQLiteSession"
STORE, ASTORE, MSTORE = "ortet", "LangGraph SqliteStore", "LangGraph InMemoryStore"

_FLAT = 2.0
_BLOCK = 4.0  # KB that any write may cost on a disk


def turn(length: int) -> str:
    return f"graph-turn-{length}"


def fork(length: int) -> str:
    return f"graph-fork-{length}"


def _no_slower(row: str, ours: str, *theirs: str) -> Judge:
    """A twentieth more is noise."""
    return both(*(times(row, 1.05, system=ours, peer=peer) for peer in theirs))


def _flat(found: Found) -> bool | None:
    """What a fork takes on the disk does not grow with what came before it."""
    sizes = [p50(found, "graph-fork-size", f"{OURS}, {length}") for length in LENGTHS]
    if None in sizes:
        return None
    known = [size for size in sizes if size is not None]
    return max(known) <= _FLAT * min(known) + _BLOCK


ROWS = (
    *(
        Row(
            turn(length),
            f"LangGraph: a turn of an agent, behind {length} turns",
            "ms",
            "≤ 2x of InMemorySaver, async too",
            both(
                times(turn(length), 2, system=OURS, peer=FLOOR),
                times(turn(length), 2, system=AOURS, peer=AFLOOR),
            ),
        )
        for length in LENGTHS
    ),
    Row("graph-whole", "all turns (2 000) together", "s", ""),
    Row(
        "graph-size",
        f"on disk after {HALF} turns",
        "KB",
        "≥ 200x smaller than SqliteSaver",
        below("graph-size", 200, SQLITE, ASQLITE),
    ),
    Row("graph-size-whole", "on disk after all turns (2 000)", "KB", ""),
    Row(
        "graph-get",
        f"get of the latest checkpoint, behind {HALF} turns",
        "ms",
        "no slower than SqliteSaver and AsyncSqliteSaver",
        both(
            _no_slower("graph-get", OURS, SQLITE),
            _no_slower("graph-get", AOURS, ASQLITE),
        ),
    ),
    Row(
        "graph-open",
        f"the same by a saver that was just opened, behind {HALF} turns",
        "ms",
        "",
    ),
    *(
        Row(
            fork(length),
            f"fork from the middle of {length} turns (update_state of an old checkpoint)",
            "ms",
            "≤ 2x of InMemorySaver: what grows is its list of messages",
            times(fork(length), 2, system=OURS, peer=FLOOR),
        )
        for length in LENGTHS
    ),
    Row("graph-fork-size", "each such fork on disk", "KB", "flat", _flat),
    Row(
        "agents-add",
        "OpenAI Agents: add_items of a turn",
        "ms",
        "no slower than SQLiteSession; durable",
        _no_slower("agents-add", SESSION, ASESSION),
    ),
    Row(
        "agents-get",
        "get_items, all of them (2 000)",
        "ms",
        "no slower than SQLiteSession",
        _no_slower("agents-get", SESSION, ASESSION),
    ),
    Row("agents-last", "get_items, the last 10", "ms", ""),
    Row("agents-size", "on disk after all turns (1 000)", "KB", ""),
    Row(
        "store-put",
        "LangGraph store: put of one item, with 10 000 in it",
        "ms",
        "no slower than SqliteStore",
        _no_slower("store-put", STORE, ASTORE),
    ),
    Row(
        "store-get",
        "get of one",
        "ms",
        "no slower than SqliteStore",
        _no_slower("store-get", STORE, ASTORE),
    ),
    Row("store-search", "search, the first 10 of a namespace of a tenth", "ms", ""),
    Row(
        "store-filter",
        "search of all by a field",
        "ms",
        "no slower than SqliteStore",
        _no_slower("store-filter", STORE, ASTORE),
    ),
    Row("store-words", "search of all by words", "ms", ""),
    Row(
        "store-vector",
        "search of all by meaning (384 numbers), the first 10",
        "ms",
        "no slower than InMemoryStore",
        _no_slower("store-vector", STORE, MSTORE),
    ),
    Row("store-open", "the first search of a process", "ms", ""),
)
