"""The tree of many commits in headless Chromium: how soon it is there, how smoothly it scrolls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ortet
from measure import Sample
from serve_plan import Plan

NAME = "tree"
EVERY = 400  # commits from one fork to the next
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE = 120_000.0  # ms
TRACED = ["toplevel", "disabled-by-default-devtools.timeline", "blink.user_timing"]
TASKS = ("RunTask", "ThreadControllerImpl::RunTask")
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
ROWS = "performance.getEntriesByName('tree-first-rows')[0].startTime"
SCROLL = """async () => {
  const tree = document.getElementById('tree');
  const end = tree.scrollHeight - tree.clientHeight;
  const frame = () => new Promise((go) => requestAnimationFrame(go));
  await frame();
  performance.mark('scroll-begin');
  for (let step = 0; step <= 240; step++) {
    tree.scrollTop = end * (step <= 120 ? step / 120 : (240 - step) / 120);
    await frame();
  }
  performance.mark('scroll-end');
}"""


def all_rows(plan: Plan) -> Iterator[Sample]:
    from playwright.sync_api import sync_playwright

    from serve_side import serving

    store = plan.place / "tree"
    session = _grown(store, plan.counts.commits)
    with serving(store, plan.place, "--no-auth") as server, sync_playwright() as playwright:
        at = f"http://{server.host}:{server.port}/s/{session}"
        browser = playwright.chromium.launch(executable_path=plan.browser, args=list(FLAGS))
        try:
            paints, rows, longest = list[float](), list[float](), list[float]()
            for number in range(plan.counts.paints + 1):
                context = browser.new_context(viewport={"width": 1280, "height": 800})
                page = context.new_page()
                page.set_default_timeout(PATIENCE)
                page.goto(at)
                page.wait_for_selector("#tree[data-ready]")
                if number:  # the first draws what the others find drawn
                    paints.append(float(page.evaluate(PAINTED)))
                    rows.append(float(page.evaluate(ROWS)))
                    longest.append(_scrolled(browser, page))
                else:
                    first = float(page.evaluate(ROWS))
                    drawn = page.evaluate("document.getElementById('tree').dataset.ready")
                context.close()
        finally:
            browser.close()
    note = f"{drawn} commits"
    yield Sample("page-paint", "ortet, first paint", paints, note)
    yield Sample("page-paint", "ortet, rows are there", rows)
    yield Sample("page-paint", "of the first visit, rows", [first], "new browser, new server")
    yield Sample("page-scroll", "ortet", longest, "there and back, 240 frames")


def _grown(store: Path, commits: int) -> str:
    """A family of sessions with so many commits; the id of the first."""
    with ortet.open(store) as hub, hub.session(NAME, goal="grow", durability="commit") as trunk:
        trunk.say("user", "begin")
        trunk.commit("commit 1")
        writer = trunk
        for number in range(2, commits + 1):
            if number % EVERY == 0:  # a branch of its own for a while
                (writer,) = trunk.fork(1, machine=False)
            elif number % EVERY == EVERY // 4 and writer is not trunk:
                writer.pause()
                writer = trunk
            writer.say("user", f"step {number}")
            writer.commit(f"commit {number}: what was done in this step")
        return trunk.id


def _scrolled(browser: Any, page: Any) -> float:
    """The longest task of the main thread of the page, in ms."""
    browser.start_tracing(page=page, categories=TRACED)
    page.evaluate(SCROLL)
    events = json.loads(browser.stop_tracing())["traceEvents"]
    begin, end = (
        next(one for one in events if one["name"] == f"scroll-{which}")
        for which in ("begin", "end")
    )
    main = begin["pid"], begin["tid"]
    tasks = [
        one.get("dur", 0) / 1000
        for one in events
        if one["name"] in TASKS
        and (one["pid"], one["tid"]) == main
        and begin["ts"] <= one["ts"] <= end["ts"]
    ]
    if not tasks:
        raise SystemExit("the trace of Chromium has no tasks")
    return float(max(tasks))


def _mark(events: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(one for one in events if one["name"] == name)
