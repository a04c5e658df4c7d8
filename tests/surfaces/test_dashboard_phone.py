"""The dashboard on a phone, in a real Chromium 390 px wide: tabs, sheets, targets, words, and no horizontal scroll."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from clutch.tools.registry import ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from tests.surfaces.served import Served, served
from tests.surfaces.test_dashboard import DEEP, Families, family, opened, violations
from tests.surfaces.test_page import CARD, is_live, row, spawned
from tests.surfaces.typed import typed

WIDTH, HEIGHT = 390, 844
KEYBOARD = 340  #: what the keyboard of a phone leaves of the height
LONG_WORD = "Donaudampfschifffahrtselektrizitaetenhauptbetriebswerkbauunterbeamtengesellschaft" * 2
LONG_LABEL = "Compare the authentication endpoints of both services and list each difference"[:64]

#: Targets that are smaller than a finger. A link inside a sentence is exempt, as in WCAG 2.5.8.
SMALL = """() => {
  const targets = "button, select, summary, textarea, input, a.chip, nav a, [role=tab], .row";
  return [...document.querySelectorAll(targets)]
    .filter((one) => one.checkVisibility({ visibilityProperty: true, opacityProperty: true }))
    .map((one) => ({ html: one.outerHTML.slice(0, 90), ...one.getBoundingClientRect().toJSON() }))
    .filter(({ width, height }) => width > 1 && (width < 44 || height < 43.99))
    .map(({ width, height, html }) => `${width} x ${height} ${html}`);
}"""

#: Words that would fit into a line and are on two.
BROKEN = r"""() => {
  const found = [];
  const isLetter = (one) => /[\p{L}\p{N}]/u.test(one ?? "");
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const holder = node.parentElement;
    if (!holder.checkVisibility({ visibilityProperty: true })) continue;
    if (holder.closest(".hidden-text, option, datalist")) continue;
    for (const { 0: word, index } of node.data.matchAll(/[\p{L}\p{N}]{2,24}/gu)) {
      if (isLetter(node.data[index - 1]) || isLetter(node.data[index + word.length])) continue;
      const range = document.createRange();
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      if (new Set([...range.getClientRects()].map((one) => Math.round(one.top))).size > 1) found.push(word);
    }
  }
  return found;
}"""

#: What reaches beyond the right edge, outside of regions that scroll by themselves.
BEYOND = """() => [...document.querySelectorAll("main *, #panel *, dialog[open] *, nav.tabs *")]
  .filter((one) => one.checkVisibility({ visibilityProperty: true }))
  .filter((one) => !one.closest(".filters, .scroll, pre, .hidden-text"))
  .map((one) => ({ html: one.outerHTML.slice(0, 90), ...one.getBoundingClientRect().toJSON() }))
  .filter(({ right, width }) => right > innerWidth + 1 && width > 0)
  .map(({ right, html }) => `${Math.round(right)} ${html}`)"""


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Served]:
    settings = ToolSettings(sandbox=Sandbox.OFF, shell_needs_approval=True)
    with served(tmp_path / "state", models=Families(), policy=DEEP, settings=settings) as here:
        yield here


@pytest.fixture
def phone(browser: Browser, db: Served) -> Iterator[Page]:
    with opened(browser, db, viewport={"width": WIDTH, "height": HEIGHT}, has_touch=True) as page:
        yield page


def names(page: Page) -> list[str]:
    """The views of the page, as the tabs name them."""
    return list(page.eval_on_selector_all("[data-tab-view]", "all => all.map(one => one.dataset.tabView)"))


def go_to(page: Page, name: str) -> None:
    tab = page.locator(f"nav.tabs [data-tab-view={name}]")
    if not tab.is_visible():
        page.get_by_role("button", name="More").click()
    tab.click()
    expect(page.locator(f"#view.view-{name}")).to_be_visible()


def fits(page: Page) -> None:
    """Nothing is wider than the screen, no word is broken, and every target is large enough for a finger."""
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    assert page.evaluate(BEYOND) == []
    assert page.evaluate(BROKEN) == []
    assert page.evaluate(SMALL) == []


def test_the_views_are_tabs_and_the_others_are_behind_more(db: Served, phone: Page) -> None:
    family(db)
    expect(row(phone, "first child")).to_be_visible()
    tabs = phone.get_by_role("navigation", name="Tabs")
    expect(phone.get_by_role("navigation", name="Views")).to_have_count(0)
    bar = tabs.bounding_box()
    assert bar is not None
    assert round(bar["y"] + bar["height"]) == HEIGHT
    expect(tabs.locator("[data-tab-view=tasks]")).to_have_attribute("aria-current", "page")
    first = [one for one in ("inbox", "tasks", "chat", "costs") if one in names(phone)]
    shown = tabs.locator("> ul [data-tab-view]")
    assert shown.evaluate_all("all => all.map(one => one.dataset.tabView)") == first
    expect(shown.filter(has_text="Tasks").locator(".count")).to_have_text(re.compile(r"^\d+$"))
    db.let_go()


def test_the_tabs_give_way_to_the_navigation_on_a_wide_screen(db: Served, phone: Page) -> None:
    phone.set_viewport_size({"width": 1280, "height": 800})
    expect(phone.get_by_role("navigation", name="Views")).to_be_visible()
    expect(phone.get_by_role("navigation", name="Tabs")).to_have_count(0)


def test_a_task_is_a_sheet_over_the_whole_screen_with_a_way_back(db: Served, phone: Page) -> None:
    family(db)
    row(phone, "first child").get_by_role("link").click()
    panel = phone.locator("#panel")
    expect(panel.get_by_role("heading", name="first child")).to_be_focused()
    assert panel.bounding_box() == {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT}
    expect(phone.get_by_role("navigation", name="Tabs")).to_have_count(0)
    expect(phone.get_by_role("button", name="New task")).to_have_count(0)
    fits(phone)
    back = panel.get_by_role("button", name="Back")
    place = back.bounding_box()
    assert place is not None
    assert place["x"] < WIDTH / 4
    back.click()
    expect(panel).to_be_hidden()
    expect(row(phone, "first child")).to_be_visible()
    row(phone, "first child").get_by_role("link").click()
    expect(panel).to_be_visible()
    phone.go_back()
    expect(panel).to_be_hidden()
    db.let_go()


def test_a_lost_connection_is_named_over_the_sheet_too(db: Served, phone: Page) -> None:
    spawned(db, "slow work", "a slow one")
    row(phone, "a slow one").get_by_role("link").click()
    expect(phone.locator("#panel h2")).to_be_visible()
    expect(phone.locator("#connection")).to_be_hidden()
    phone.route("**/v1/**", lambda route: route.abort())
    phone.get_by_role("button", name="Pause").click()
    expect(phone.locator("#connection")).to_contain_text("Reconnecting")
    expect(phone.locator("#connection")).to_be_visible()
    db.let_go()


def test_a_dialog_can_be_used_with_the_keyboard_open(db: Served, phone: Page) -> None:
    phone.get_by_role("button", name="New task").click()
    dialog = phone.get_by_role("dialog")
    phone.get_by_text("Options").click()
    phone.set_viewport_size({"width": WIDTH, "height": KEYBOARD})
    for label in ("Task", "Label", "Cost budget, USD"):
        dialog.get_by_label(label, exact=label != "Task").first.focus()
        expect(dialog.locator(":focus")).to_be_in_viewport(ratio=0.5)
        expect(dialog.get_by_role("button", name="Start")).to_be_in_viewport(ratio=1)
    assert phone.evaluate("document.documentElement.scrollWidth") <= WIDTH
    dialog.get_by_label("Label", exact=True).fill("by touch")
    dialog.locator("textarea").fill("quick work")
    dialog.get_by_role("button", name="Start").click()
    expect(phone.locator("#panel h2")).to_have_text("by touch")
    phone.get_by_role("textbox", name="Message").focus()
    expect(phone.get_by_role("textbox", name="Message")).to_be_in_viewport()


def test_every_view_fits_a_phone_and_axe_finds_nothing(db: Served, browser: Browser) -> None:
    family(db)
    spawned(db, "run it", "dangerous")
    spawned(db, f"x {LONG_WORD}", LONG_LABEL)
    spawned(db, "ask openly", LONG_WORD[:64])
    size = {"width": WIDTH, "height": HEIGHT}
    with opened(browser, db, viewport=size, has_touch=True) as page:
        expect(page.locator(CARD)).to_have_count(2)
        expect(page.get_by_role("button", name="Approve")).to_be_enabled()
        for name in names(page):
            go_to(page, name)
            expect(page.locator("#view > *").first).to_be_attached()
            expect(page.locator("#view > .loading")).to_have_count(0)
            fits(page)
            violations(page)
        go_to(page, "tasks")
        for label in (LONG_LABEL, LONG_WORD[:64]):
            page.locator(".row").filter(has_text=label).get_by_role("link").click()
            expect(page.locator("#panel h2")).to_have_text(label)
            for tab in ("Activity", "Result", "Files", "Details"):
                page.get_by_role("tab", name=tab).click()
                expect(page.locator("#tab-content > *").first).to_be_attached()
                fits(page)
            violations(page)
            page.get_by_role("button", name="Back").click()
        if page.get_by_role("button", name="More").count():
            page.get_by_role("button", name="More").click()
            expect(page.locator("#more-views")).to_be_visible()
            violations(page)
    db.let_go()


# ---- devices ---------------------------------------------------------------------------------------------


def test_a_revoked_device_loses_its_open_page_and_the_others_stay(
    db: Served, browser: Browser, phone: Page
) -> None:
    go_to(phone, "devices")
    mine = phone.locator(".devices > li")
    expect(mine).to_have_count(1)
    expect(mine).to_contain_text("This device")
    expect(mine).to_contain_text("Chrome on Linux")
    with browser.new_context() as other:
        lost = other.new_page()
        lost.goto(typed("open", "--print", "--json", state=db.home).body["url"])
        is_live(lost)
        go_to(phone, "tasks")
        go_to(phone, "devices")
        expect(mine).to_have_count(2)
        foreign = mine.filter(has_not_text="This device")
        foreign.get_by_role("button", name="Revoke").click()
        phone.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(mine).to_have_count(1)
        expect(lost.locator("#connection")).to_have_text("Signed out")
        expect(lost.get_by_role("alert")).to_contain_text("clutch open")
    is_live(phone)
    mine.get_by_role("button", name="Revoke").click()
    phone.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(phone.locator("#connection")).to_have_text("Signed out")


def test_an_installed_app_that_is_signed_out_takes_a_pasted_link(db: Served, browser: Browser) -> None:
    with browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}) as context:
        page = context.new_page()
        page.goto(f"{db.clutch.url}/")
        expect(page.locator("#connection")).to_have_text("Signed out")
        go_to(page, "devices")
        fits(page)
        violations(page)
        link = typed("open", "--print", "--json", state=db.home).body["url"]
        page.get_by_label("One-time link").fill(link)
        page.get_by_role("button", name="Sign in").click()
        is_live(page)
        expect(page.locator(".devices > li")).to_have_count(1)
        expect(page.get_by_label("One-time link")).to_be_hidden()
        assert "#" not in page.url
