"""Notifications in a real Chromium: the states of the switch, the service worker, and a click that opens the inbox.

Chromium without a network has no push service. Its part is played here: the page gets a subscription at a server on
loopback, and the message is handed to the service worker as the browser would."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from clutch.core.policy import Serving
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_dashboard import opened, violations
from tests.test_push import PushService, Receiver, push_service

PLAYED = """(given) => {
  let present = null;
  PushManager.prototype.getSubscription = async () => present;
  PushManager.prototype.subscribe = async ({ applicationServerKey, userVisibleOnly }) => {
    if (!userVisibleOnly || applicationServerKey.length !== 65) throw new Error("not a key");
    present = {
      unsubscribe: async () => { present = null; },
      toJSON: () => ({ endpoint: given.endpoint, keys: { p256dh: given.p256dh, auth: given.auth } }),
    };
    return present;
  };
}"""
#: A script in a page has no timeout of its own: without one, a lost event would end the whole run after five minutes.
IN_TIME = f"""const inTime = (signal) => Promise.race([signal, new Promise((_, fail) =>
  setTimeout(() => fail(new Error("no signal")), {PATIENCE_S * 1000}))]);"""
#: What is shown within two seconds.
SHOWN = f"""async () => {{
  {IN_TIME}
  const worker = await inTime(navigator.serviceWorker.ready);
  const end = performance.now() + 2000;
  for (;;) {{
    const found = await worker.getNotifications();
    if (found.length || performance.now() > end) return found.map(({{ title, body, tag }}) => ({{ title, body, tag }}));
    await new Promise(requestAnimationFrame);
  }}
}}"""
#: A worker claims the page while it is activated, and takes a message only afterwards.
#: In a function of its own: the content policy of the page refuses the evaluated text of `wait_for_function`.
CONTROLLED = f"""async () => {{
  {IN_TIME}
  const all = navigator.serviceWorker;
  const {{ active }} = await inTime(all.ready);
  const changed = (one, name, holds) => inTime(new Promise((done) => {{
    const look = () => {{ if (holds()) done(); }};
    one.addEventListener(name, look);
    look();
  }}));
  await changed(active, "statechange", () => active.state === "activated");
  await changed(all, "controllerchange", () => all.controller);
}}"""


@pytest.fixture
def service() -> Iterator[PushService]:
    with push_service() as here:
        yield here


@pytest.fixture
def db(tmp_path: Path, service: PushService) -> Iterator[Served]:
    policy = replace(FAST, serving=Serving(push_hosts=frozenset({service.host})))
    with served(tmp_path / "state", policy=policy) as here:
        yield here


def at_devices(page: Page) -> None:
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Devices").click()


def state(page: Page) -> Any:
    return expect(page.locator(".push-state"))


def test_notifications_are_turned_on_tested_and_turned_off(
    browser: Browser, db: Served, service: PushService
) -> None:
    receiver = Receiver()
    with opened(browser, db, permissions=["notifications"]) as page:
        page.evaluate(PLAYED, receiver.subscription(service.endpoint))
        at_devices(page)
        state(page).to_have_attribute("data-state", "off")
        violations(page)
        page.get_by_role("button", name="Turn on").click()
        state(page).to_have_attribute("data-state", "on")
        violations(page)
        page.get_by_role("button", name="Send a test").click()
        _, body = service.got.get(timeout=PATIENCE_S)
        assert json.loads(receiver.read(body)) == {"text": "Notifications of Clutch work", "tag": "test"}
        page.get_by_role("button", name="Turn off").click()
        state(page).to_have_attribute("data-state", "off")


def test_a_browser_that_blocks_notifications_says_so(browser: Browser, db: Served) -> None:
    with opened(browser, db) as page:
        page.evaluate("void Object.defineProperty(Notification, 'permission', { get: () => 'denied' })")
        at_devices(page)
        state(page).to_have_attribute("data-state", "blocked")
        expect(page.get_by_role("button", name="Turn on")).to_be_hidden()
        violations(page)


def test_a_browser_without_web_push_says_so(browser: Browser, db: Served) -> None:
    with opened(browser, db) as page:
        page.evaluate("delete window.PushManager")
        at_devices(page)
        state(page).to_have_attribute("data-state", "unsupported")
        expect(page.get_by_role("button", name="Turn on")).to_be_hidden()


def test_a_message_is_shown_with_its_text_only_and_a_second_one_replaces_it(
    browser: Browser, db: Served
) -> None:
    with opened(browser, db, permissions=["notifications"]) as page:
        page.evaluate(CONTROLLED)
        channel = page.context.new_cdp_session(page)
        registrations: list[str] = []
        channel.on(
            "ServiceWorker.workerRegistrationUpdated",
            lambda said: registrations.extend(one["registrationId"] for one in said["registrations"]),
        )
        channel.send("ServiceWorker.enable")
        began = time.monotonic()
        while not registrations and time.monotonic() < began + PATIENCE_S:
            page.evaluate("new Promise(requestAnimationFrame)")  # events are handed out during a call
        assert registrations
        message = {
            "origin": str(db.clutch.url),
            "registrationId": registrations[-1],
            "data": json.dumps({"text": "A task needs your decision", "tag": "attention"}),
        }
        # Chromium drops a message for a worker that it is starting or stopping, and does not say so.
        sent = time.monotonic()
        shown: list[dict[str, str]] = []
        while not shown and time.monotonic() < sent + PATIENCE_S:
            channel.send("ServiceWorker.deliverPushMessage", message)
            shown = page.evaluate(SHOWN)
        channel.send("ServiceWorker.deliverPushMessage", message)
        assert page.evaluate(SHOWN) == shown
        assert shown == [{"title": "A task needs your decision", "body": "", "tag": "attention"}]


def test_a_click_on_a_notification_opens_the_inbox_in_the_open_page(browser: Browser, db: Served) -> None:
    with opened(browser, db, permissions=["notifications"]) as page:
        page.evaluate(CONTROLLED)
        worker = page.context.service_workers[0]
        worker.evaluate("openInbox().catch(() => null)")  # focus needs a real click, which no test can make
        page.wait_for_url("**/?view=inbox")
