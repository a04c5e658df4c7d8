"""The Health view in a real Chromium: invariants, workers, provider limits, queues, the config; and accessibility."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from clutch.api import health
from clutch.core.ids import parse_task_id
from clutch.core.messages import Answer
from clutch.core.rate_limit import Bounds
from clutch.core.workers import NO_LEASE_S
from clutch.errors import ConfigInvalid
from clutch.models.rate_limiter import Throttled
from clutch.ports import ModelError, ModelRequest, OnDelta, Trouble
from clutch.tools.import_guard import GUARD
from clutch.wiring.engine import SystemClock
from tests.surfaces.served import FAST, Served, Slow, served
from tests.surfaces.test_dashboard import DESKTOP, WIDTHS, opened, violations, visit
from tests.surfaces.test_http_tasks import ended
from tests.surfaces.test_page import HOSTILE, MARKS, spawned
from tests.transactions.world import write

EVIL = HOSTILE[1]
KEY = "sk-ant-api03-" + "k" * 40


class Failing(Slow):
    """`fail …` is refused by the provider, with a text that a page must not run and a key it must not show."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        if "fail" in str(request.transcript[-1]):
            raise ModelError(Trouble.NETWORK, f"{EVIL} Authorization: Bearer {KEY}")
        return await super().ask(request, on_delta)


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    # The guard belongs to the process, and knows the workspaces of tests that ran in it before.
    monkeypatch.setattr(GUARD, "_roots", ())
    with served(tmp_path / "state", policy=FAST) as here:
        yield here


@pytest.fixture
def page(browser: Browser, db: Served) -> Iterator[Page]:
    with opened(browser, db, viewport={"width": 1280, "height": 900}) as shown:
        yield shown


def show(page: Page, db: Served) -> None:
    visit(page, "view=health")
    expect(part(page, "Invariants").locator(".verdict")).not_to_be_empty()


def part(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def verdict(page: Page, name: str) -> Locator:
    return part(page, name).locator(".verdict")


def change(db: Served, sql: str, *values: Any) -> None:
    db.run(db.clutch.services.db.alone(write, sql, *values))


def config(db: Served, text: str) -> None:
    path = db.home / "clutch.json"
    path.write_text(text)
    path.chmod(0o600)


def test_a_sound_gateway_is_sound_in_every_part(db: Served, page: Page) -> None:
    ended(db.client, spawned(db, "quick work", "one"))
    show(page, db)
    expect(verdict(page, "Invariants")).to_have_text(re.compile(r"^(\d+) of \1 OK$"))
    expect(part(page, "Invariants").get_by_role("status")).to_contain_text("Last checked")
    part(page, "Invariants").get_by_text("All invariants").click()
    expect(
        part(page, "Invariants").get_by_role("row", name=re.compile("a generation has one outcome"))
    ).to_contain_text("OK")
    expect(verdict(page, "Workers and leases")).to_have_text("1 alive")
    expect(part(page, "Workers and leases").locator("tbody tr")).to_contain_text("Alive (this gateway)")
    expect(part(page, "Queues")).to_contain_text(re.compile(r"Lane subagent\s*0 of \d+ running, 0 queued"))
    expect(part(page, "Gateway")).to_contain_text(re.compile(r"SQLite, [\d.]+ (KiB|MiB)"))
    expect(part(page, "Gateway")).to_contain_text("Loop sweeper")
    expect(part(page, "Problems")).to_be_hidden()
    expect(part(page, "Provider limits")).to_contain_text("No provider was asked")


def test_a_violation_is_named_after_a_check_and_not_before(
    db: Served, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "SHARE", 0)  # the test clicks sooner than a person does
    task = spawned(db, "quick work", "one")
    ended(db.client, task)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    show(page, db)
    expect(verdict(page, "Invariants")).to_have_text(re.compile("OK$"))
    number = parse_task_id(task)
    change(db, "UPDATE tasks SET outcome = 'error', error = ? WHERE id = ?", "", number)
    ended(db.client, spawned(db, "quick work", "another"))
    expect(part(page, "Gateway")).to_contain_text("Loop sweeper")
    assert sum("/v1/health/invariants" in url for url in asked) == 1, "events check nothing"
    page.get_by_role("button", name="Check now").click()
    expect(verdict(page, "Invariants")).to_have_text(re.compile(r"^\d+ of \d+ violated$"))
    wrong = part(page, "Invariants").locator(".findings li").filter(has_text="N9: a failure has a cause")
    expect(wrong).to_contain_text(f"Violated by {number} error: no cause")
    expect(wrong).to_contain_text("Remedy: ")
    change(db, "UPDATE tasks SET outcome = 'ok', error = NULL WHERE id = ?", number)
    page.get_by_role("button", name="Check now").click()
    expect(verdict(page, "Invariants")).to_have_text(re.compile("OK$"))
    assert sum("/v1/health/invariants" in url for url in asked) == 3


def test_a_dead_worker_is_marked_and_hostile_names_are_text(db: Served, page: Page) -> None:
    sql = "INSERT INTO workers(id, lease_until, host, pid, version, started_at) VALUES(?, ?, ?, 4711, '0.0.9', ?)"
    change(db, sql, 999, time.time() + NO_LEASE_S, EVIL, time.time() - 3600)
    show(page, db)
    expect(verdict(page, "Workers and leases")).to_have_text("1 of 2 workers stale")
    dead = part(page, "Workers and leases").locator("tr").filter(has_text="pid 4711")
    expect(dead).to_contain_text("Stale: no longer alive")
    expect(dead).to_contain_text(EVIL)
    expect(part(page, "Workers and leases")).to_contain_text("Remedy: restart the gateway")
    assert page.evaluate("window.ran") is None
    change(db, "DELETE FROM workers WHERE id = 999")


def test_an_open_circuit_breaker_says_until_when_and_why(browser: Browser, tmp_path: Path) -> None:
    bounds = {
        "lab": Bounds(concurrency_max=4, same_failures_max=1, breaker_first_s=300.0),
        "idle": Bounds(concurrency_max=2, tokens_per_minute=60_000),
    }
    models = Throttled(Failing(), SystemClock(), bounds)
    with served(tmp_path / "state", models=models, policy=FAST) as db, opened(browser, db) as page:
        show(page, db)
        spawned(db, "fail at once", "broken", model="lab:small")
        limits = part(page, "Provider limits")
        lab = limits.locator("tbody tr").filter(has_text="lab")
        expect(lab).to_contain_text(re.compile(r"Circuit breaker open until .*network"))
        expect(lab).to_contain_text("0 of 4")
        expect(lab).not_to_contain_text(KEY)
        expect(limits.locator(".verdict")).to_have_text("lab not asked now")
        idle = limits.locator("tbody tr").filter(has_text="idle")
        expect(idle).to_contain_text("OK")
        expect(idle).to_contain_text("0 of 60k")
        assert page.evaluate("window.ran") is None
        violations(page)


def test_a_change_that_needs_a_restart_is_named_with_its_remedy(db: Served, page: Page) -> None:
    show(page, db)
    box = part(page, "Config: loaded and in the file")
    expect(box).to_contain_text("There is no config file")
    secret = "postgresql://clutch:hunter2secret@127.0.0.1/x"
    config(db, f'{{gateway: {{port: 26001}}, database: "{secret}"}}')
    db.run(db.clutch.reload())
    spawned(db, "quick work", "brings an event")
    expect(box.locator(".verdict")).to_have_text("2 changes not in force")
    port = box.locator(".findings li").filter(has_text="gateway.port: needs restart")
    expect(port).to_contain_text("In the file: 26001")
    expect(port).to_contain_text(re.compile("Remedy: .*pid"))
    hidden = box.locator(".findings li").filter(has_text="database.url: needs restart")
    expect(hidden).to_contain_text('In the file: "***"')
    expect(box).to_contain_text("The program that runs this gateway sets policy")
    expect(part(page, "Problems")).to_be_hidden()  # the config has a part of its own
    expect(page.get_by_role("link", name="Health 1")).to_be_visible()
    assert "hunter2secret" not in page.content()
    assert "hunter2secret" not in str(db.client.get("/v1/health/report"))


def test_an_invalid_file_keeps_the_previous_config_and_says_where_it_is_wrong(
    browser: Browser, tmp_path: Path
) -> None:
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    path = home / "clutch.json"
    path.write_text("{agents: {defaults: {subagents: {maxSpawnDepth: 2}}}}")
    path.chmod(0o600)
    options: Any = {"policy": None, "workspace": tmp_path / "work"}
    (tmp_path / "work").mkdir()
    with served(home, **options) as db, opened(browser, db) as page:
        show(page, db)
        box = part(page, "Config: loaded and in the file")
        expect(box.locator(".verdict")).to_have_text("All of the file is in force")
        depth = box.locator("tbody tr").filter(has_text="agents.defaults.subagents.maxSpawnDepth")
        expect(depth.locator("code")).to_have_text(["2", "1"])
        expect(depth).to_contain_text("at once")
        path.write_text(f'{{modle: "{EVIL}"}}')
        with pytest.raises(ConfigInvalid):
            db.run(db.clutch.reload())
        expect(box.locator(".verdict")).to_have_text("File not loaded; the previous config is in force")
        wrong = box.locator(".findings li")
        expect(wrong).to_contain_text("clutch.json:1:2: modle: not known")
        expect(wrong).to_contain_text("clutch config check")
        expect(depth.locator("code").first).to_have_text("2")
        assert page.evaluate("window.ran") is None
        path.write_text("{agents: {defaults: {subagents: {maxSpawnDepth: 3}}}}")
        db.run(db.clutch.reload())
        expect(box.locator(".verdict")).to_have_text("All of the file is in force")
        expect(depth.locator("code").first).to_have_text("3")


def test_axe_finds_nothing_and_nothing_is_cut_off(db: Served, browser: Browser) -> None:
    config(db, '{worker: {tick: "7s"}, modle: 1}')
    with pytest.raises(ConfigInvalid):
        db.run(db.clutch.reload())
    task = spawned(db, "quick work", "one")
    ended(db.client, task)
    change(db, "UPDATE tasks SET outcome = 'error', error = '' WHERE id = ?", parse_task_id(task))
    with opened(browser, db, viewport=DESKTOP) as page:
        show(page, db)
        expect(verdict(page, "Invariants")).to_have_text(re.compile("violated$"))
        page.get_by_text("All invariants").click()
        violations(page, *WIDTHS, within="html, main")
    change(db, "UPDATE tasks SET outcome = 'ok', error = NULL WHERE id = ?", parse_task_id(task))


def test_keys_are_enough_and_states_are_text_in_forced_colours(db: Served, browser: Browser) -> None:
    with opened(browser, db, forced_colors="active", reduced_motion="reduce") as page:
        show(page, db)
        check = page.get_by_role("button", name="Check now")
        expect(check).to_have_attribute("aria-disabled", "false")
        check.focus()
        with page.expect_response(re.compile("/v1/health/invariants")):
            page.keyboard.press("Enter")
        expect(check).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("row", name=re.compile("a failure has a cause"))).to_be_visible()
        expect(verdict(page, "Invariants")).to_have_text(re.compile(r"\d+ of \d+ OK"))
        violations(page)


def test_an_address_of_the_view_is_text(db: Served, page: Page) -> None:
    page.goto(f"{db.clutch.url}/?view=health&by=<img src=x onerror={MARKS}>&hours=<svg onload={MARKS}>")
    expect(verdict(page, "Invariants")).to_have_text(re.compile("OK$"))
    assert page.evaluate("window.ran") is None
