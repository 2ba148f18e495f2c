"""The first page: sessions searched, filtered, and updated as they change."""

from __future__ import annotations

from playwright.sync_api import Browser, Page, expect
from tests.fixtures.browser import PATIENCE, Look, phone
from tests.fixtures.http_server import Serve, Server
from tests.web.sample import Sample


def test_session_list_shows_goal_and_status(page: Page, sample: Sample, look: Look) -> None:
    page.goto("/")
    one = page.locator(f"[data-session='{sample.session}']")
    expect(one).to_contain_text("fix-lexer")
    expect(one).to_contain_text("make the suite green")
    expect(one).to_contain_text("1,200 tokens")
    expect(one).to_contain_text("verified")
    expect(one.locator(".oid")).to_have_text(sample.head[:12])
    look(page, "light")
    page.emulate_media(color_scheme="dark")
    look(page, "dark")
    look(phone(page), "phone")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    one.get_by_role("link", name="fix-lexer", exact=True).click()
    page.wait_for_url(f"**/s/{sample.session}")


def test_session_search_covers_names_goals_and_messages(page: Page, sample: Sample) -> None:
    page.goto("/")
    search = page.get_by_role("searchbox", name="Search sessions")
    page.keyboard.press("/")
    expect(search).to_be_focused()
    for words in ("FIX-LEX", "suite green", "login test"):
        search.fill(words)
        search.press("Enter")
        expect(page.locator(f"[data-session='{sample.session}']")).to_be_visible()
        expect(page.locator(f"[data-session='{sample.hostile}']")).to_have_count(0)
    expect(page.locator(f"[data-session='{sample.session}']")).to_contain_text("login test fails")
    search.fill("nothing has these words")
    search.press("Enter")
    expect(page.get_by_role("heading", name="Nothing like that")).to_be_visible()


def test_filters_by_status_and_agent(page: Page, server: Server, sample: Sample) -> None:
    client = server.client()
    path = client.new("to-be-closed", agent="filtered")
    client.post(f"{path}/close")
    page.goto("/")
    page.get_by_label("Agent").select_option("filtered")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".session")).to_have_count(1)
    page.get_by_role("navigation", name="Status").get_by_role("link", name="closed").click()
    expect(page.locator(".session")).to_have_count(1)
    expect(page.locator(".session")).to_contain_text("to-be-closed")
    page.goto("/?agent=filtered&status=paused")
    expect(page.locator(".session")).to_have_count(0)


def test_session_list_updates_itself(page: Page, server: Server) -> None:
    client = server.client()
    page.goto("/?agent=watched")
    expect(page.get_by_role("heading", name="Nothing like that")).to_be_visible()
    path = client.new("came-later", agent="watched", goal="be seen")
    one = page.locator(".session")
    expect(one).to_contain_text("be seen")
    client.post(f"{path}/close")
    expect(one.locator(".badge.closed")).to_be_visible()


def test_many_sessions_come_in_pages(page: Page, server: Server, look: Look) -> None:
    client = server.client()
    for n in range(51):
        client.post(client.new(f"one-of-many-{n}", agent="many") + "/pause")
    page.goto("/?agent=many")
    names = page.locator(".session .main")
    expect(names).to_have_count(50)
    expect(names.first).to_have_text("one-of-many-50")
    page.get_by_role("link", name="Older").click()
    expect(names).to_have_text(["one-of-many-0"])
    expect(page.get_by_role("navigation", name="Pages")).to_contain_text("51 to 51 of 51")
    here = page.url
    page.get_by_role("link", name="Newer").click()
    expect(names).to_have_count(50)
    client.post("/sessions/one-of-many-20/messages", {"role": "user", "content": "me again"})
    expect(names.first).to_have_text("one-of-many-20")  # as it happens
    look(page)
    page.goto(here)  # who was on another page meanwhile sees nothing twice, and misses nothing
    expect(names).to_have_text(["one-of-many-0"])
    page.goto("/?agent=many")
    order = page.get_by_role("navigation", name="Order")
    order.get_by_role("link", name="Newest").click()
    expect(names.first).to_have_text("one-of-many-50")
    order.get_by_role("link", name="Name").click()
    expect(names.nth(1)).to_have_text("one-of-many-1")
    page.get_by_role("link", name="Next").click()
    expect(names).to_have_text(["one-of-many-9"])
    expect(order.get_by_role("link", name="Name")).to_have_attribute("aria-current", "true")


def test_session_list_of_an_empty_store_shows_the_first_command(
    browser: Browser, serve: Serve, look: Look
) -> None:
    server = serve("--no-auth")
    context = browser.new_context(base_url=server.url)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto("/")
    main = page.get_by_role("main")
    expect(main).to_contain_text("ortet init")
    expect(main).to_contain_text("ortet session new")
    expect(main).to_contain_text("import ortet")
    look(page)
    look(phone(page), "phone")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for path, command in (("/memory", "ortet learn"), ("/storage", "ortet commit")):
        page.goto(path)
        expect(main).to_contain_text(command)
        look(page, path[1:])
    page.goto("/")
    path = server.client().new("the-first")
    expect(page.locator(".session")).to_contain_text("the-first")
    server.client().post(f"{path}/pause")
    for tab in ("", "/memory", "/memory?show=episodes", "/artifacts", "/budget", "/terminal"):
        page.goto(f"/s/the-first{tab}")  # each says what to type next
        expect(page.locator("main .empty .copyable")).to_have_count(1)
    context.close()


def test_session_list_shows_only_agents_of_the_token(browser: Browser, serve: Serve) -> None:
    server = serve()
    owner = server.client(server.token("owner", "--allow", "admin"))
    owner.new("mine", agent="mine")
    owner.post(
        owner.new("hidden-one", agent="other") + "/messages", {"role": "user", "content": "pears"}
    )
    token = server.token("some", "--allow", "read", "--agent", "mine")
    context = browser.new_context(base_url=server.url)
    context.set_default_timeout(PATIENCE)
    context.add_cookies([{"name": "ortet", "value": token, "url": server.url}])
    page = context.new_page()
    page.goto("/")
    expect(page.locator(".session")).to_have_count(1)
    expect(page.get_by_role("main")).not_to_contain_text("hidden-one")
    expect(page.get_by_role("navigation", name="Site")).not_to_contain_text("Store")
    page.goto("/?q=pears")
    expect(page.locator(".session")).to_have_count(0)
    page.goto("/memory?q=pears")
    expect(page.locator(".hit")).to_have_count(0)
    for path in ("/storage", "/s/hidden-one/journal", "/s/hidden-one/budget"):
        answer = page.goto(path)
        assert answer is not None
        assert answer.status in (403, 404)
    page.goto("/s/mine/journal")
    expect(page.get_by_role("group", name="Actions")).to_have_count(0)
    expect(page.get_by_role("button", name="Comment")).to_have_count(0)
    context.close()
