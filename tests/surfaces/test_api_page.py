"""The page behind /v1/docs, in a real Chromium: it lists the operations, sends requests and shows answers as text."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from clutch.surfaces.http.app import ENTRIES
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_page import HOSTILE, spawned
from tests.surfaces.typed import typed


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("api") / "state", policy=FAST) as here:
        yield here


@pytest.fixture(scope="module")
def page(browser: Browser, db: Served) -> Iterator[Page]:
    """Signed in by `clutch open`, then on the page of the API, for all tests here. Requests elsewhere are a failure."""
    with browser.new_context() as context:
        shown = context.new_page()
        asked: list[str] = []
        shown.on("request", lambda request: asked.append(request.url))
        url = typed("open", "--print", "--json", state=db.home).body["url"]
        shown.goto(url)
        expect(shown.locator("#connection")).to_have_text("Live")
        shown.get_by_role("link", name="HTTP API").click()
        expect(shown.locator("#line")).to_contain_text(f"{len(ENTRIES)} operations")
        yield shown
        assert {urlsplit(one).netloc for one in asked} == {urlsplit(url).netloc}


def choose(page: Page, method: str, path: str) -> None:
    page.get_by_role("navigation").get_by_role("button", name=f"{method} {path}", exact=True).click()
    expect(page.locator("#operation-title")).to_have_text(f"{method} {path}")


def test_every_operation_is_listed_and_a_get_is_answered(db: Served, page: Page) -> None:
    assert page.get_by_role("navigation").get_by_role("button").count() == len(ENTRIES)
    task = spawned(db, "quick work", "quick one")
    choose(page, "GET", "/v1/tasks")
    page.get_by_label("limit").fill("1")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#status")).to_contain_text("GET /v1/tasks?limit=1 · 200 OK")
    expect(page.locator("#answer")).to_contain_text(f'"taskId": "{task}"')


def test_a_post_is_sent_with_its_body_and_its_key_once(db: Served, page: Page) -> None:
    choose(page, "POST", "/v1/tasks")
    assert page.get_by_label("Body (JSON)").input_value() == '{\n  "task": ""\n}'
    page.get_by_label("Body (JSON)").fill('{"task": "quick work", "label": "from the page"}')
    page.get_by_label("Idempotency-Key").fill("page-1")
    for _ in range(2):
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.locator("#status")).to_contain_text("201 Created")
        expect(page.locator("#answer")).to_contain_text('"status": "accepted"')
    made = [task["label"] for task in db.client.get("/v1/tasks")["tasks"]]
    assert made.count("from the page") == 1


def test_an_error_is_shown_with_its_body(page: Page) -> None:
    choose(page, "GET", "/v1/tasks/{target}")
    page.get_by_role("textbox", name="target").fill("no/such?task")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#status")).to_contain_text("/v1/tasks/no%2Fsuch%3Ftask · 404")
    expect(page.locator("#answer")).to_contain_text('"code": "not_found"')
    page.get_by_role("textbox", name="target").fill("..")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#notice")).to_have_text('target: ".." cannot be a part of a path.')


def test_a_body_that_is_no_json_is_not_sent(db: Served, page: Page) -> None:
    before = db.client.get("/v1/tasks")["tasks"]
    choose(page, "POST", "/v1/tasks")
    page.get_by_label("Body (JSON)").fill("{task: 1")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#notice")).to_contain_text("The body is not JSON")
    assert len(db.client.get("/v1/tasks")["tasks"]) == len(before)


def test_a_stream_is_shown_as_it_comes_and_can_be_stopped(db: Served, page: Page) -> None:
    choose(page, "GET", "/v1/events")
    page.get_by_role("button", name="Send", exact=True).click()
    spawned(db, "quick work", "streamed one")
    expect(page.locator("#answer")).to_contain_text("lifecycle:end")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled()


def test_s26_hostile_strings_are_text_here_too(db: Served, page: Page) -> None:
    for number in range(0, 40, 10):
        spawned(db, " ".join(HOSTILE[number : number + 10]), HOSTILE[number][:64])
    choose(page, "GET", "/v1/tasks")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#answer")).to_contain_text("<script>")
    expect(page.locator("#answer *")).to_have_count(0)
    assert page.evaluate("window.ran") is None


def test_a_browser_that_is_not_signed_in_reads_how_to(browser: Browser, db: Served) -> None:
    with browser.new_context() as context:
        shown = context.new_page()
        shown.goto(f"{db.client.address.url}/v1/docs")
        expect(shown.locator("#line")).to_contain_text("Run `clutch open`")
        expect(shown.get_by_role("navigation").get_by_role("button")).to_have_count(0)
