"""scripts/bench: build the workspace, measure Ortet and its peers in one run, write the results."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import host
import measure
import ortet_side
import peer_side
import report
import workspace
from rows import ROWS

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few files, few repetitions")
    rows = [row.key for row in ROWS]
    parser.add_argument("--only", action="append", default=[], metavar="ROW", choices=rows)
    parser.add_argument("--no-peers", action="store_true", help="Ortet alone")
    parser.add_argument("--no-ortet", action="store_true", help="the peers alone")
    parser.add_argument("--output", type=Path, help="where to write (a full run: bench/RESULTS.md)")
    return parser.parse_args()


def samples(plan: measure.Plan, *, with_ortet: bool, with_peers: bool) -> Iterator[measure.Sample]:
    if with_ortet:
        yield from ortet_side.all_rows(plan)
    if with_peers:
        yield from peer_side.all_peers(plan)


def main() -> None:
    options = arguments()
    # A terminated run must unmount its devices too: turn the signal into an exception.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cache = workspace.cache_directory()
    scene = workspace.build(cache, quick=options.quick)
    place = Path(tempfile.mkdtemp(prefix="run-", dir=cache))
    counts = measure.QUICK if options.quick else measure.FULL
    plan = measure.Plan(scene, place, counts, frozenset(options.only))
    found: list[measure.Sample] = []
    try:
        facts = host.facts(scene, place)
        for sample in samples(
            plan, with_ortet=not options.no_ortet, with_peers=not options.no_peers
        ):
            found.append(sample)
            print(f"   {report.line(sample)}", file=sys.stderr)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    text = report.render(facts, found, quick=options.quick)
    whole = not (options.quick or options.only or options.no_peers or options.no_ortet)
    output = options.output or (RESULTS if whole else None)
    if output:
        output.write_text(text)
        print(f"written to {output}", file=sys.stderr)
    else:
        print(text)


if __name__ == "__main__":
    main()
