"""The Costs view in a real Chromium: figures of a known ledger, budgets, burn rate, address, live, accessibility."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from clutch.core.ids import parse_task_id
from clutch.core.policy import Budgets, OnBudget
from clutch.core.text.format import tokens
from clutch.surfaces.http_client import session_path, task_path
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_dashboard import DESKTOP, WIDTHS, opened, outline, violations, visit
from tests.surfaces.test_http_tasks import seen
from tests.surfaces.test_page import HOSTILE, MARKS, spawned
from tests.transactions.test_costs import booked
from tests.transactions.world import write

LIMITED = replace(FAST, budgets=Budgets(day_tokens=20_000_000, on_budget=OnBudget.END))
EVIL = HOSTILE[1]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "state", policy=LIMITED) as here:
        yield here


@pytest.fixture
def page(browser: Browser, db: Served) -> Iterator[Page]:
    with opened(browser, db, viewport={"width": 1280, "height": 800}) as shown:
        yield shown


def book(db: Served, session_id: int, number: int, ago_s: float, model: str, usd: str | None) -> None:
    """The number is negative: calls that the session makes itself count upwards from 1."""
    store = db.clutch.services.db
    db.run(store.alone(booked, session_id, -number, time.time() - ago_s, model, usd))


def ledger(db: Served) -> dict[str, str]:
    """$1.24 in known prices, two calls of a model without a price, and an older call. Nothing runs."""
    tasks = {name: spawned(db, "slow work", name) for name in ("first tree", EVIL[:60])}
    first, second = (parse_task_id(task) or 0 for task in tasks.values())
    book(db, first, 900, 60, "dear:model", "1.00")
    book(db, first, 901, 5400, "dear:model", "0.20")
    book(db, second, 900, 90, "cheap:model", "0.04")
    book(db, second, 901, 100, EVIL, None)
    book(db, second, 902, 110, EVIL, None)
    book(db, first, 902, 3 * 86_400, "old:model", "7.00")
    return tasks


def figure(page: Page, name: str) -> Locator:
    return page.locator(f'[data-figure="{name}"] .value-text')


def show(page: Page, db: Served, query: str = "") -> None:
    visit(page, f"view=costs{query}")
    expect(page.locator(".costs:not(.loading)")).to_have_count(1)


def rows(page: Page) -> Locator:
    return page.locator(".costs table:visible tbody tr")


def test_the_figures_are_those_of_the_ledger_and_unpriced_calls_are_named(db: Served, page: Page) -> None:
    ledger(db)
    show(page, db)
    expect(figure(page, "Cost")).to_have_text("at least $1.24")
    expect(figure(page, "Input tokens")).to_have_text("5k")
    expect(figure(page, "Output tokens")).to_have_text("1k")
    expect(figure(page, "Cached tokens")).to_have_text("1.5k")
    expect(figure(page, "Calls")).to_have_text("5")
    unknown = page.get_by_role("region", name="Calls of unknown cost")
    expect(unknown.locator("li")).to_have_text(f"{EVIL}: 2 calls, 2.4k tokens")
    chart = page.get_by_role("img", name=re.compile("^Cost per hour"))
    expect(chart).to_have_attribute("aria-label", re.compile(r"25 bars\. Highest: \$1\.\d\d"))
    expect(chart.locator(".column")).to_have_count(25)
    expect(page.locator(".as-of")).to_contain_text(re.compile("UTC[+\u2212]\\d\\d:\\d\\d"))
    assert page.evaluate("window.ran") is None
    db.let_go()


def test_groupings_and_period_stand_in_the_address_and_go_back(db: Served, page: Page) -> None:
    tasks = ledger(db)
    show(page, db)
    page.get_by_role("link", name="By model").click()
    expect(rows(page).locator("th")).to_have_text(["dear:model", "cheap:model", EVIL])
    expect(rows(page).locator(".c-cost-text")).to_have_text(["$1.20", "$0.04", "unknown"])
    assert page.url.endswith("/?view=costs&by=model")
    page.get_by_label("Period").select_option("168")
    expect(rows(page).locator("th").first).to_have_text("old:model")
    assert page.url.endswith("hours=168&by=model")
    expect(page.get_by_role("img", name=re.compile("^Cost per day"))).to_be_visible()
    page.get_by_role("link", name="By tree").click()
    expect(rows(page)).to_have_count(2)
    page.go_back()
    page.go_back()
    expect(rows(page).locator("th").first).to_have_text("dear:model")
    expect(page.get_by_label("Period")).to_have_value("24")
    page.get_by_role("link", name="By agent").click()
    expect(rows(page).get_by_role("link")).to_have_text("main")
    page.get_by_role("link", name="By tree").click()
    rows(page).get_by_role("link", name="first tree").click()
    expect(page.get_by_role("heading", name="first tree")).to_be_visible()
    assert f"task={tasks['first tree']}" in page.url
    assert "view=costs" not in page.url
    page.go_back()
    expect(rows(page)).to_have_count(2)
    db.let_go()


def test_a_table_has_what_the_chart_shows(db: Served, page: Page) -> None:
    ledger(db)
    show(page, db, "&by=model")
    page.get_by_role("link", name="Show as a table").click()
    costs = rows(page).locator(".c-cost-text")
    expect(costs.last).to_have_text("$0.20")
    shown = [float(re.sub(r"[^\d.]", "", text) or 0) for text in costs.all_text_contents()]
    assert sum(shown) == pytest.approx(1.24)
    db.let_go()


def test_budgets_show_what_is_used_reserved_and_when_they_end(db: Served, page: Page) -> None:
    task = spawned(db, "slow work", "limited", budget={"tokens": 20_000})
    number = parse_task_id(task) or 0
    seen(db.client, task, lambda one: one["doingNow"].startswith("thinking"))  # its call has reserved

    def spend(spent: int) -> None:
        sql = "UPDATE purses SET tokens_spent = ? WHERE name = ?"
        db.run(db.clutch.services.db.alone(write, sql, spent, f"task:{number}"))

    spend(17_000)
    reserved = int(db.client.get(task_path(task))["budget"]["reserved"]["tokens"])
    assert reserved > 8000
    book(db, number, 900, 60, "dear:model", "0.10")
    show(page, db)
    budget = page.locator(".budgets > li").filter(has_text="Task limited")
    expect(budget).to_have_attribute("data-state", "warning")
    expect(budget).to_contain_text("Nearly exhausted")
    expect(budget.get_by_role("meter")).to_have_attribute(
        "aria-valuetext", f"17k used, {tokens(reserved)} reserved, of 20k tokens (85%)"
    )
    # 3000 tokens are left, and 1200 went in 15 minutes.
    expect(budget).to_contain_text(re.compile(r"At this rate the budget is exhausted at \d"))
    expect(budget).to_contain_text("the run ends with the text it has")
    expect(page.locator(".budgets > li").filter(has_text="(UTC)")).to_contain_text("of 20M tokens (0%)")
    expect(figure(page, "Burn rate")).to_have_text("$0.40 an hour")
    expect(page.locator('[data-figure="Burn rate"]')).to_contain_text(
        "4.8k tokens an hour · 1 call in 15 min"
    )
    spend(20_000)
    spawned(db, "quick work", "another")  # brings an event
    expect(budget).to_have_attribute("data-state", "exhausted")
    expect(budget).to_contain_text("Exhausted: no new call is made.")
    db.let_go()


def test_a_budget_shows_where_it_is_heading_and_a_new_task_what_it_costs(db: Served, page: Page) -> None:
    for number in range(5):
        task = spawned(db, "quick work", f"past {number}")
        seen(db.client, task, lambda one: one["status"] == "done")
    db.run(db.clutch.services.db.alone(write, "UPDATE usage SET input = 1000, output = 200"))
    spawned(db, "slow work", "limited", budget={"tokens": 20_000})
    show(page, db)
    budget = page.locator(".budgets > li").filter(has_text="Task limited")
    expect(budget.locator(".heading")).to_have_text(
        "Heading for 1.2k tokens (p90 1.2k tokens) of 20k tokens when 1 open task has ended."
    )
    page.get_by_role("button", name="New task").click()
    page.get_by_placeholder("What to do, in full").fill("look around")
    page.get_by_label("Label").focus()
    expect(page.get_by_role("status", name="Expected cost")).to_contain_text(
        "Tasks like this (same agent and model, last 5): median 1.2k tokens, price unknown"
    )
    db.let_go()


def test_figures_follow_tasks_and_main_agents_without_being_asked(db: Served, page: Page) -> None:
    show(page, db, "&by=agent")
    expect(figure(page, "Calls")).to_have_text("0")
    spawned(db, "quick work", "one")
    expect(figure(page, "Calls")).to_have_text("1")
    expect(rows(page)).to_have_count(1)
    rows(page).get_by_role("link").focus()
    db.client.post(session_path("agent:main:main", "messages"), {"text": "hello"})
    expect(figure(page, "Calls")).to_have_text("2")
    expect(rows(page).get_by_role("link")).to_be_focused()


def test_an_idle_view_asks_for_nothing(db: Served, page: Page) -> None:
    asked: list[str] = []
    answered: list[str] = []
    page.on("response", lambda one: answered.append(one.url) if "/v1/usage" in one.url else None)
    show(page, db)
    expect(page.get_by_role("heading", name="No model calls in this period")).to_be_visible()
    if len(answered) < 2:
        # The overview at the beginning of the stream: what happened between the first read and it is not lost.
        with page.expect_response(re.compile("/v1/usage")):
            pass
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(3000)  # nothing happens, so there is nothing to wait for
    assert [url for url in asked if "/v1/usage" in url] == []
    violations(page)


def test_an_unknown_cost_is_never_zero(db: Served, page: Page) -> None:
    book(db, 999_999, 1, 5, "nameless", None)
    show(page, db, "&by=model")
    expect(figure(page, "Cost")).to_have_text("unknown")
    expect(figure(page, "Burn rate")).to_have_text("unknown an hour")
    expect(rows(page).locator(".c-cost-text")).to_have_text("unknown")
    expect(page.get_by_role("img", name=re.compile("^Tokens per hour"))).to_be_visible()


def test_axe_finds_nothing_and_nothing_is_cut_off(db: Served, browser: Browser) -> None:
    ledger(db)
    spawned(db, "slow work", "limited", budget={"tokens": 10_000})
    with opened(browser, db, viewport=DESKTOP) as page:
        for by in ("day", "model", "agent", "tree"):
            show(page, db, f"&by={by}")
            violations(page, *WIDTHS, within="html, main")
    db.let_go()


def test_keys_and_forced_colours_are_enough(db: Served, browser: Browser) -> None:
    ledger(db)
    with opened(browser, db, forced_colors="active", reduced_motion="reduce") as page:
        show(page, db, "&by=tree")
        page.get_by_label("Period").focus()
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.dataset.by") == "model":
                break
        assert outline(page.locator("[data-by=model]")) != "none"
        page.keyboard.press("Enter")
        expect(rows(page).locator("th").first).to_have_text("dear:model")
        for part in (".fill", ".meter"):
            expect(page.locator(part).first).to_have_css("forced-color-adjust", "none")
        expect(page.locator("[data-by=model]")).to_have_attribute("aria-current", "true")
    db.let_go()


def test_hostile_names_in_the_address_are_text(db: Served, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for number, name in enumerate(HOSTILE[:60]):
        book(db, 999_000 + number, 1, 30, name, "0.01")
    show(page, db, f"&by=model&hours=<script>{MARKS}</script>")
    expect(rows(page)).to_have_count(60)
    show(page, db, f"&by=<img src=x onerror={MARKS}>")
    expect(rows(page).first).to_be_visible()
    assert page.evaluate("window.ran") is None
    assert all(one.startswith(str(db.clutch.url)) for one in asked)
