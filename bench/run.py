"""scripts/bench: measure Ortet and its peers in one run, part by part; write the results."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import adapters_plan
import adapters_side
import host
import live_plan
import live_side
import measure
import memory_embedder
import memory_peers
import memory_plan
import memory_side
import ortet_side
import peer_side
import report
import scale_plan
import scale_side
import serve_plan
import serve_side
import session_peers
import session_plan
import session_side
import workspace

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
Measured = tuple[dict[str, str], Iterator[measure.Sample]]
"""Facts of one part's run, and its samples as they come."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little data, few repetitions")
    parser.add_argument("--part", choices=list(report.PARTS), help="one part alone")
    rows = [row.key for part in report.PARTS.values() for row in part.rows]
    parser.add_argument("--only", action="append", default=[], metavar="ROW", choices=rows)
    parser.add_argument("--no-peers", action="store_true", help="Ortet alone")
    parser.add_argument(
        "--no-ortet", action="store_true", help="the peers alone; files and adapters"
    )
    parser.add_argument("--output", type=Path, help="where to write (a full run: bench/RESULTS.md)")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[report.Part]:
    """The part that was named, or those that have the rows that were, or all."""
    parts = [report.PARTS[options.part]] if options.part else list(report.PARTS.values())
    if options.only:
        parts = [part for part in parts if {row.key for row in part.rows} & set(options.only)]
    return parts


def of_files(options: argparse.Namespace, cache: Path, place: Path) -> Measured:
    scene = workspace.build(cache, quick=options.quick)
    counts = measure.QUICK if options.quick else measure.FULL
    plan = measure.Plan(scene, place, counts, frozenset(options.only))

    def samples() -> Iterator[measure.Sample]:
        if not options.no_ortet:
            yield from ortet_side.all_rows(plan)
        if not options.no_peers:
            yield from peer_side.all_peers(plan)

    return host.files_facts(scene), samples()


def of_session(options: argparse.Namespace, cache: Path, place: Path) -> Measured:
    python = None if options.no_peers else session_peers.environment(cache)
    counts = session_plan.QUICK if options.quick else session_plan.FULL
    plan = session_plan.Plan(place, counts, frozenset(options.only), python)
    facts = {"peers": session_peers.versions(python)} if python else {}
    return facts, session_side.all_rows(plan)


def of_live(options: argparse.Namespace, cache: Path, place: Path) -> Measured:
    from ortet.machines.live.criu.binary import find_criu, probe_criu

    del cache
    program = find_criu()
    for one in probe_criu(program):
        if not one.ok:
            raise SystemExit(f"live machines cannot be measured: {one.name}: {one.detail}")
    counts = live_plan.QUICK if options.quick else live_plan.FULL
    plan = live_plan.Plan(place, counts, frozenset(options.only), not options.no_peers)
    return {"peers": host.say(program, "--version")}, live_side.all_rows(plan)


def of_memory(options: argparse.Namespace, cache: Path, place: Path) -> Measured:
    peers = not options.no_peers
    python = memory_peers.environment(cache) if peers else Path(sys.executable)
    counts = memory_plan.QUICK if options.quick else memory_plan.FULL
    dense = peers or memory_embedder.available()
    plan = memory_plan.Plan(place, counts, python, dense, peers, frozenset(options.only))
    facts = {"peers": memory_peers.versions(python)} if peers else {}
    return facts, memory_side.all_rows(plan)


def of_serve(options: argparse.Namespace, cache: Path, place: Path) -> Measured:
    del cache
    browser = host.chromium()
    if browser is None and not options.no_peers:
        raise SystemExit("no Chromium: scripts/bench installs one, or leave it out: --no-peers")
    counts = serve_plan.QUICK if options.quick else serve_plan.FULL
    plan = serve_plan.Plan(place, counts, frozenset(options.only), browser)
    return host.serve_facts(browser), serve_side.all_rows(plan)


def of_adapters(options: argparse.Namespace, cache: Path, place: Path) -> Measured:
    del cache
    counts = adapters_plan.QUICK if options.quick else adapters_plan.FULL
    only, peers, ours = frozenset(options.only), not options.no_peers, not options.no_ortet
    plan = adapters_plan.Plan(place, counts, only, peers, ours)
    return {"peers": adapters_side.versions()}, adapters_side.all_rows(plan)


def of_scale(options: argparse.Namespace, cache: Path, place: Path) -> Measured:
    python = None if options.no_peers else session_peers.environment(cache)
    counts = scale_plan.QUICK if options.quick else scale_plan.FULL
    plan = scale_plan.Plan(place, counts, frozenset(options.only), python)
    return scale_side.facts(plan), scale_side.all_rows(plan)


MEASURE = {
    "files": of_files,
    "session": of_session,
    "live": of_live,
    "memory": of_memory,
    "serve": of_serve,
    "adapters": of_adapters,
    "scale": of_scale,
}


def measured(part: report.Part, options: argparse.Namespace, cache: Path) -> str:
    place = Path(tempfile.mkdtemp(prefix="run-", dir=cache))
    found: list[measure.Sample] = []
    try:
        facts = host.facts(place)
        more, samples = MEASURE[part.key](options, cache, place)
        for sample in samples:
            found.append(sample)
            print(f"   {report.line(sample)}", file=sys.stderr)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return report.render(part, facts | more, found, quick=options.quick)


def main() -> None:
    options = arguments()
    # A terminated run must unmount its devices too: turn the signal into an exception.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cache = workspace.cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    texts = {part.key: measured(part, options, cache) for part in chosen(options)}
    whole = not (options.quick or options.only or options.no_peers or options.no_ortet)
    output = options.output or (RESULTS if whole else None)
    if output:
        old = output.read_text() if output.exists() else ""
        output.write_text(report.merged(old, texts))
        print(f"written to {output}", file=sys.stderr)
    else:
        print(report.merged("", texts))


if __name__ == "__main__":
    main()
