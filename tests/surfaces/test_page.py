"""The page behind `clutch open`, in a real Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from clutch.surfaces.http.pages import FILES
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.typed import typed

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
#: What browsers have taken for a program, each with a mark that a run would leave.
MARKS = "window.ran=1"
TRICKS = (
    "<script>{0}</script>", "<img src=x onerror={0}>", "<svg onload={0}>", "<svg><script>{0}</script></svg>",
    "<body onload={0}>", "<iframe srcdoc='<script>parent.{0}</script>'>", "<iframe src=javascript:parent.{0}>",
    "<a href=javascript:{0} autofocus onfocus={0}>x</a>", "<input autofocus onfocus={0}>",
    "<details open ontoggle={0}>", "<video><source onerror={0}></video>", "<object data=javascript:{0}>",
    "<embed src=javascript:{0}>",
    "<meta http-equiv=refresh content='0;url=javascript:{0}'>", "<link rel=stylesheet href=http://127.0.0.1:9/x.css>",
    "<img src=http://127.0.0.1:9/leak>", "![x](http://127.0.0.1:9/leak)", "[x](javascript:{0})",
    "<base href=http://127.0.0.1:9/>",
    "<style>@import 'http://127.0.0.1:9/x.css'</style>", "{{{{constructor.constructor('{0}')()}}}}", "${{{0}}}",
    "<math><mi xlink:href=javascript:{0}>x</mi></math>", "<template><script>{0}</script></template>",
    "<marquee onstart={0}>",
)  # fmt: skip
WRAPPINGS = (
    "{0}",
    "'>{0}",
    '">{0}',
    "-->{0}",
    "</td></table>{0}",
    "</textarea>{0}",
    "</script>{0}",
    "]]>{0}",
)
HOSTILE = [wrapping.format(trick.format(MARKS)) for trick in TRICKS for wrapping in WRAPPINGS]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here; Debian, Ubuntu: apt install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, chromium_sandbox=os.geteuid() != 0, args=list(QUIET)
        )
        yield started
        started.close()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "state", policy=FAST) as here:
        yield here


@pytest.fixture
def page(browser: Browser, door: Served) -> Iterator[Page]:
    """Let in as a user is."""
    opened = typed("open", "--print", "--json", state=door.home)
    assert opened.code == 0
    assert not opened.body["opened"]
    with browser.new_context() as context:
        shown = context.new_page()
        shown.goto(opened.body["url"])
        yield shown


def spawned(door: Served, task: str, label: str) -> str:
    return str(door.client.post("/v1/tasks", {"task": task, "label": label})["taskId"])


def test_the_tree_is_live_and_a_task_tells_its_story(door: Served, page: Page) -> None:
    spawned(door, "slow work", "a slow one")
    line = page.get_by_role("row").filter(has_text="a slow one")
    expect(line).to_contain_text("running")
    door.let_go()
    expect(line).to_contain_text("done")
    expect(page.locator("#summary")).to_contain_text("1 done")
    line.get_by_role("button").click()
    expect(page.locator("#story")).to_contain_text("a slow one: done")
    expect(page.locator("#result")).to_contain_text("heard: ")
    expect(page.locator("#story li").first).to_be_visible()


def test_a_story_is_seen_where_it_was_asked_for_and_can_be_closed(door: Served, page: Page) -> None:
    page.set_viewport_size({"width": 400, "height": 500})
    for number in range(20):
        spawned(door, "quick work", f"quick one {number}")
    page.locator("#tasks").get_by_text("quick one 1", exact=True).click()
    expect(page.locator("#story-title")).to_be_in_viewport()
    expect(page.get_by_role("button", name="quick one 2", exact=True)).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.get_by_role("button", name="close").click()
    expect(page.locator("#story")).to_be_hidden()


def test_a_person_decides_on_the_page(door: Served, page: Page) -> None:
    spawned(door, "ask me", "curious")
    waiting = page.locator("#needs-you li")
    expect(waiting).to_contain_text("Which one?")
    expect(waiting).to_contain_text("• b")
    expect(page.locator("#line")).to_have_text("live")
    waiting.get_by_role("textbox").fill("c")
    waiting.get_by_role("button", name="answer").click()
    expect(page.get_by_role("alert")).to_contain_text("must be one of")
    spawned(door, "x", "another")  # a look that goes well takes nothing back
    expect(page.get_by_role("row").filter(has_text="another")).to_contain_text("done")
    expect(page.get_by_role("alert")).to_contain_text("must be one of")
    waiting.get_by_role("textbox").fill("b")
    waiting.get_by_role("button", name="answer").click()
    expect(page.locator("#needs-you")).to_be_hidden()
    expect(page.get_by_role("row").filter(has_text="curious")).to_contain_text("done")


def test_s5_a_code_leaves_the_address_and_lets_in_one_browser_once(browser: Browser, door: Served) -> None:
    url = typed("open", "--print", state=door.home).out.strip()
    assert url.startswith(f"{door.clutch.url}/#")
    with browser.new_context() as first, browser.new_context() as second:
        inside, outside = first.new_page(), second.new_page()
        inside.goto(url)
        expect(inside.locator("#line")).to_have_text("live")
        assert inside.url == f"{door.clutch.url}/"
        inside.reload()
        expect(inside.locator("#line")).to_have_text("live")
        outside.goto(url)
        expect(outside.get_by_role("alert")).to_contain_text("clutch open")
        assert "clutch_" not in str(inside.evaluate("document.cookie"))
        inside.reload()
        expect(inside.get_by_role("alert")).to_contain_text("clutch open")  # one of the two was not meant


def test_s27_what_cannot_be_seen_is_shown_as_an_escape(door: Served, page: Page) -> None:
    spawned(door, "tidy up \u202egro.live\u202c and\u200b wait", "plain")
    page.get_by_role("row").filter(has_text="plain").get_by_role("button").click()
    expect(page.locator("#result")).to_contain_text("tidy up \\u{202e}gro.live\\u{202c} and\\u{200b} wait")


def test_s26_no_word_of_a_child_is_ever_run_or_fetched(door: Served, page: Page) -> None:
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(urlsplit(request.url).netloc)

    assert len(HOSTILE) == 200
    page.on("request", note)
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
    for start in range(0, len(HOSTILE), 10):  # what one child says back holds ten of them
        spawned(door, " ".join(HOSTILE[start : start + 10]), " ".join(HOSTILE[start : start + 2])[:64])
    spawned(door, "ask me", HOSTILE[0][:64])
    expect(page.locator("#summary")).to_contain_text("20 done")
    expect(page.locator("#tasks tr")).to_have_count(21)
    for line in page.locator("#tasks button").all()[:-1]:
        line.click()
        expect(page.locator("#story-title")).to_contain_text(line.inner_text()[:20])
        expect(page.locator("#result")).to_contain_text("heard")
    assert page.evaluate("window.ran") is None
    assert (
        page.locator("main :is(script, img, iframe, svg, object, embed, style, link, base, a)").count() == 0
    )
    assert set(asked) == {urlsplit(page.url).netloc}


def test_s26_the_files_of_the_page_hold_nothing_and_run_nothing_foreign(door: Served) -> None:
    for path in FILES:
        heard = door.raw("GET", path, authorization=None)
        assert heard.status == 200
        assert "default-src 'none'" in heard.headers["content-security-policy"]
        assert "unsafe" not in heard.headers["content-security-policy"]
        assert heard.headers["cache-control"] == "no-store"
        assert door.raw("POST", path, b"{}", authorization=None).status == 401
        assert door.raw("GET", path, authorization=None, host="evil.example").status == 421
        assert door.raw("GET", path, authorization=None, sec_fetch_site="cross-site").status == 403
