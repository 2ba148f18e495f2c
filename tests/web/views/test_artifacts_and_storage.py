"""The pages of artifacts, budget, storage and memory, in the browser."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

from playwright.sync_api import Page, expect
from tests.fixtures.browser import Look, phone
from tests.fixtures.http_server import Client
from tests.web.sample import Sample

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d4944415478da63f8"
    "cfc0f01f0005000201d8b4e22b0000000049454e44ae426082"
)


def keep(client: Client, path: str, name: str, data: bytes) -> None:
    plain = {"Content-Type": "application/octet-stream"}
    made = client.ask("PUT", f"{path}/artifacts/{name}", data, headers=plain)
    assert made.status == HTTPStatus.CREATED, made


def test_artifact_preview_matches_the_content_type_and_runs_no_script(
    page: Page, client: Client, look: Look, tmp_path: Path
) -> None:
    path = client.new("maker")
    keep(client, path, "table.csv", b"name,score\n<b>ann</b>,3\nbob,5\n")
    keep(client, path, "data.json", b'{"a":[1,2],"b":"<i>"}')
    keep(client, path, "notes.md", b"# Notes\n\n[x](javascript:alert(1))\n")
    keep(client, path, "notes.md", b"# Notes, again\n")
    keep(client, path, "dot.png", PNG)
    keep(client, path, "page.html", b"<script>document.title='run'</script>")
    keep(client, path, "drawn.svg", b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>")
    keep(client, path, "blob.bin", bytes(range(256)))
    page.goto("/s/maker/artifacts")
    names = page.locator(".names")
    preview = page.get_by_role("region", name="Preview")
    names.get_by_role("link", name="table.csv").click()
    expect(preview.get_by_role("cell", name="<b>ann</b>")).to_be_visible()
    look(page, "table")
    names.get_by_role("link", name="data.json").click()
    expect(preview.locator("pre")).to_contain_text('"b": "<i>"')
    names.get_by_role("link", name="notes.md").click()
    expect(preview.locator("pre")).to_contain_text("# Notes, again")
    names.get_by_role("link", name="v1").click()
    expect(preview.locator("pre")).to_contain_text("javascript:alert(1)")
    expect(preview.locator("a[href^='javascript']")).to_have_count(0)
    names.get_by_role("link", name="dot.png").click()
    picture = preview.get_by_role("img", name="dot.png")
    expect(picture).to_be_visible()
    page.wait_for_function("document.querySelector('.picture').naturalWidth === 1")
    for name in ("page.html", "drawn.svg"):
        names.get_by_role("link", name=name).click()
        expect(preview.locator("pre")).to_contain_text("<script")
        expect(preview.locator("img, iframe, object")).to_have_count(0)
    names.get_by_role("link", name="blob.bin").click()
    expect(preview).to_contain_text("download it")
    with page.expect_download() as coming:
        preview.get_by_role("link", name="Download").click()
    coming.value.save_as(tmp_path / "blob.bin")
    assert (tmp_path / "blob.bin").read_bytes() == bytes(range(256))
    names.get_by_role("link", name="notes.md").click()
    look(phone(page), "phone")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_empty_artifacts_page_shows_a_command(page: Page, client: Client) -> None:
    client.new("made-nothing")
    page.goto("/s/made-nothing/artifacts")
    expect(page.get_by_role("main")).to_contain_text("ortet artifact add")


def test_budget_page_plots_and_lists_the_spend(page: Page, client: Client, look: Look) -> None:
    path = client.new("spender", budget={"usd": 2.0, "tokens": 100_000})
    for n in range(6):
        client.post(
            f"{path}/spend", {"amounts": {"usd": 0.25, "tokens": 5000}, "model": f"m{n % 2}"}
        )
    page.goto("/s/spender/budget")
    row = page.get_by_role("row", name="usd")
    expect(row.first).to_contain_text("$1.50")
    expect(row.first).to_contain_text("$2.00")
    expect(row.first).to_contain_text("75%")
    plot = page.get_by_role("img", name="usd over time")
    expect(plot).to_be_visible()
    expect(plot.locator("polyline")).to_have_count(3)  # both models, and all
    expect(page.get_by_role("table", name="By model")).to_contain_text("15.0k")
    look(page, "light")
    page.emulate_media(color_scheme="dark")
    look(page, "dark")
    look(phone(page), "phone")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    client.post(f"{path}/spend", {"amounts": {"usd": 0.5}})
    expect(page.get_by_role("main")).to_contain_text("used up")


def test_budget_page_without_a_budget_shows_a_command(page: Page, client: Client) -> None:
    client.new("free")
    page.goto("/s/free/budget")
    expect(page.get_by_role("main")).to_contain_text("ortet budget free --set usd=5")


def test_storage_page_lists_object_kinds_and_the_sweep_command(
    page: Page, sample: Sample, look: Look
) -> None:
    page.goto("/storage")
    kinds = page.get_by_role("table", name="What it holds, before compression")
    expect(kinds).to_contain_text("commits")
    expect(kinds).to_contain_text("file contents")
    expect(page.get_by_role("main")).to_contain_text("ortet sweep --dry-run")
    look(page, "light")
    page.emulate_media(color_scheme="dark")
    look(page, "dark")
    look(phone(page), "phone")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_memory_search_shows_the_scores_of_each_hit(page: Page, sample: Sample, look: Look) -> None:
    page.goto("/memory")
    search = page.get_by_role("searchbox", name="Search memory")
    search.fill("how do tests get PYTHONPATH?")
    search.press("Enter")
    hit = page.locator(".hit").first
    expect(hit).to_contain_text("tests need PYTHONPATH=src")
    hit.get_by_text("Why this hit").click()
    expect(hit.get_by_role("row", name="words")).to_contain_text("rank 1")
    expect(hit.locator("mark").first).to_be_visible()
    look(page, "light")
    page.emulate_media(color_scheme="dark")
    look(page, "dark")
    look(phone(page), "phone")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    hit.get_by_role("link").first.click()
    expect(page.locator(".event:target")).to_contain_text("tests need PYTHONPATH=src")


def test_memory_page_filters_by_tier_and_time(page: Page, sample: Sample) -> None:
    page.goto(f"/s/{sample.session}/memory?q=login+test")
    expect(page.locator(".hit").first).to_contain_text("the login test fails")
    page.get_by_label("Tier").select_option("semantic")
    page.get_by_role("button", name="Recall").click()
    expect(page.get_by_label("Tier")).to_have_value("semantic")
    expect(page.locator(".hit", has_text="the login test fails")).to_have_count(0)
    page.goto(f"/s/{sample.session}/memory?q=login+test&at=2020-01-01")
    expect(page.get_by_role("heading", name="Nothing is remembered of it")).to_be_visible()
    page.goto(f"/s/{sample.session}/memory?q=login+test&at=<b>never")
    expect(page.get_by_role("alert")).to_contain_text("<b>never")


def test_memory_page_shows_the_history_of_a_fact(page: Page, client: Client) -> None:
    path = client.new("learner")
    first = client.post(f"{path}/facts", {"text": "deploys run on Fridays"})["id"]
    client.post(f"{path}/facts", {"text": "deploys run on Mondays", "supersedes": first})
    page.goto("/s/learner/memory")
    main = page.get_by_role("main")
    expect(main).to_contain_text("deploys run on Mondays")
    expect(main).not_to_contain_text("deploys run on Fridays")
    page.get_by_role("link", name="history").click()
    expect(page.locator(".plain-steps li")).to_contain_text(["Fridays", "Mondays"])
    page.get_by_role("link", name="With those given up").click()
    expect(page.locator(".ended")).to_contain_text("Fridays")
    page.get_by_role("link", name="Episodes").click()
    expect(page.get_by_role("heading", name="No episode yet")).to_be_visible()
