"""The rows of the serve part: what is asked, and whether the samples say it was reached."""

from __future__ import annotations

from rows import Found, Judge, Row, both, p50, within

VERBS = {"say": "say", "commit": "commit", "fork": "fork, mind only", "recall": "recall"}
SIZES = ("one", "some", "many")
"""One client, the middle number of them, the most."""
HTTP, EMBEDDED = "ortet over HTTP", "embedded"
ONE_SESSION = "serve-shared"
PAUSED, BUSY = "serve-adds-paused", "serve-adds-busy"
ADDS = 3.0


def latency(verb: str, size: str) -> str:
    return f"serve-{verb}-{size}"


def rate(row: str) -> str:
    return f"{row}-rate"


def paced(verb: str) -> str:
    return f"serve-{verb}-paced"


LOADS = (
    *(latency(verb, size) for verb in VERBS for size in SIZES),
    *(paced(verb) for verb in VERBS),
    ONE_SESSION,
)


def _adds(row: str) -> Judge:
    """What it adds to each verb is within what was asked."""

    def judge(found: Found) -> bool | None:
        values = [p50(found, row, f"ortet, {verb}") for verb in VERBS]
        if None in values:
            return None
        return all(value <= ADDS for value in values if value is not None)

    return judge


ROWS = (
    Row(
        PAUSED,
        "HTTP adds, p50, paced: 32 clients that ask twice a second each",
        "ms",
        "≤ 3",
        _adds(PAUSED),
    ),
    Row(
        BUSY,
        "HTTP adds, p50, unpaced: 32 clients that ask without a pause",
        "ms",
        "≤ 3",
        _adds(BUSY),
    ),
    Row(
        "serve-own",
        "answering what needs no store (`/healthz`), 32 clients without a pause",
        "ms",
        "",
    ),
    Row(
        "serve-floor",
        "a route of Starlette that does nothing in a thread, 32 clients without a pause",
        "ms",
        "",
    ),
    *(Row(row, row, "ms", "", listed=False) for row in LOADS),
    *(Row(rate(row), row, "a second", "", listed=False) for row in LOADS),
    Row(
        "page-paint",
        "the tree of 10 000 commits: first paint in headless Chromium",
        "ms",
        "< 1000",
        both(within("page-paint", 1000), within("page-paint", 1000, system="ortet, rows")),
    ),
    Row(
        "page-scroll",
        "the longest task while it is scrolled from end to end",
        "ms",
        "≤ 100",
        within("page-scroll", 100),
    ),
    Row(
        "mcp-start",
        "`ortet mcp` answers `initialize`, from the start of its process",
        "s",
        "< 2.5",
        within("mcp-start", 2.5),
    ),
)
