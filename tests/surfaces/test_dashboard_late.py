"""Answers that reach the dashboard after events that are newer, in a real Chromium: what happened last is shown."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from clutch.surfaces.http_client import task_path
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_dashboard import opened
from tests.surfaces.test_page import is_live, row, spawned

LIST = r"/v1/tasks\?"
#: In the page, since only the page itself can send its requests.
HOLD = """(path) => {
  const real = window.fetch;
  const released = new Promise((release) => { window.release = () => { window.fetch = real; release(); }; });
  window.held = 0;
  window.fetch = async (to, options) => {
    const answer = await real(to, options);
    if (!new RegExp(path).test(to) || options.method !== "GET") return answer;
    const text = await answer.text();
    window.held += 1;
    await released;
    return new Response(text, answer);
  };
}"""
STATUS = """async ([id, status]) => (await import("/web/store.js")).task(id)?.status === status"""


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "state", policy=FAST) as here:
        yield here


@pytest.fixture
def page(browser: Browser, db: Served) -> Iterator[Page]:
    with opened(browser, db, viewport={"width": 1280, "height": 800}) as shown:
        yield shown


def until(page: Page, condition: str, given: object = None) -> None:
    """Wait as `wait_for_function` does, which the content policy of the page refuses."""
    deadline = time.monotonic() + PATIENCE_S
    while not page.evaluate(condition, given):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


@contextmanager
def late(page: Page, path: str, ask: Callable[[], None]) -> Iterator[None]:
    """Hold the answers of a path that `ask` asks for, as the gateway has given them, until the block has ended."""
    page.evaluate(HOLD, path)
    ask()
    until(page, "() => window.held > 0")
    yield
    page.evaluate("window.release()")


def until_received(page: Page, task: str, status: str) -> None:
    until(page, STATUS, [task, status])


def kill(db: Served, page: Page, task: str) -> None:
    """Return when the page has received all events of it: those of a later task come after them."""
    db.client.post(task_path(task, "kill"))
    until_received(page, task, "killed")
    until_received(page, spawned(db, "slow too", "the new one"), "running")


def test_a_list_that_comes_late_overwrites_no_event(db: Served, page: Page) -> None:
    task = spawned(db, "slow work", "the old one")
    expect(row(page, "the old one")).to_have_attribute("data-status", "running")
    page.get_by_role("link", name="Inbox").click()
    with late(page, LIST, page.get_by_role("link", name=re.compile("^Tasks")).click):
        kill(db, page, task)
    expect(row(page, "the old one")).to_have_attribute("data-status", "killed")
    expect(row(page, "the old one")).to_have_attribute("data-group", "finished")
    expect(row(page, "the new one")).to_have_attribute("data-status", "running")
    is_live(page)
    db.let_go()


def test_a_filtered_list_that_comes_late_leaves_out_what_has_ended(db: Served, page: Page) -> None:
    task = spawned(db, "slow work", "the old one")
    expect(row(page, "the old one")).to_be_visible()
    active = page.get_by_role("main").get_by_role("link", name=re.compile("^Active"))
    with late(page, LIST, active.click):
        kill(db, page, task)
    expect(row(page, "the new one")).to_be_visible()
    expect(row(page, "the old one")).to_have_count(0)
    db.let_go()


def test_the_answer_of_an_action_that_comes_late_overwrites_no_event(db: Served, page: Page) -> None:
    task = spawned(db, "slow work", "the old one")
    row(page, "the old one").get_by_role("link").click()
    with late(page, f"/v1/tasks/{task}$", page.get_by_role("button", name="Pause").click):
        kill(db, page, task)
    expect(page.get_by_role("button", name="Retry")).to_be_enabled()
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#panel")).to_have_attribute("data-status", "killed")
    expect(row(page, "the old one")).to_have_attribute("data-status", "killed")
    db.let_go()
