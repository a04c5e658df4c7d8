"""The dashboard as an installed app: manifest, icons, service worker, and a content policy that allows no more."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from clutch.surfaces.http.browser import files
from tests.surfaces.served import Served, served
from tests.surfaces.test_dashboard import opened

REGISTERED = """async () => {
  const found = await navigator.serviceWorker.ready;
  return { scope: new URL(found.scope).pathname, script: new URL(found.active.scriptURL).pathname };
}"""
CACHED = "async () => (await caches.keys()).length"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "state") as here:
        yield here


@pytest.fixture
def page(browser: Browser, db: Served) -> Iterator[Page]:
    with opened(browser, db) as shown:
        yield shown


def test_the_manifest_names_icons_that_exist_in_their_sizes(db: Served) -> None:
    heard = db.raw("GET", "/manifest.webmanifest", authorization=None)
    assert heard.headers["content-type"].startswith("application/manifest+json")
    said = json.loads(heard.raw)
    assert (said["display"], said["start_url"], said["scope"]) == ("standalone", "/", "/")
    for icon in said["icons"]:
        content, media = files()[icon["src"]]
        assert media == icon["type"]
        assert len(content) < 10_000
        if media == "image/png":
            width, height = struct.unpack(">II", content[16:24])
            assert f"{width}x{height}" == icon["sizes"]


def test_s26_the_content_policy_is_extended_by_manifest_and_worker_only(db: Served) -> None:
    policy = db.raw("GET", "/", authorization=None).headers["content-security-policy"]
    assert policy.split("; ") == [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]


def test_the_service_worker_is_registered_and_keeps_nothing(page: Page) -> None:
    assert page.evaluate(REGISTERED) == {"scope": "/", "script": "/sw.js"}
    page.reload()
    expect(page.locator("#connection")).to_have_text("Live")
    assert page.evaluate("navigator.serviceWorker.controller !== null")
    assert page.evaluate(CACHED) == 0


def test_the_service_worker_answers_no_request() -> None:
    script = files()["/sw.js"][0].decode()
    assert '"fetch"' not in script
    assert "caches." not in script


def test_chromium_finds_nothing_that_keeps_the_page_from_being_installed(page: Page) -> None:
    page.evaluate(REGISTERED)
    channel = page.context.new_cdp_session(page)
    found = channel.send("Page.getAppManifest")
    assert found["errors"] == []
    assert found["url"].endswith("/manifest.webmanifest")
    problems = channel.send("Page.getInstallabilityErrors")["installabilityErrors"]
    assert [one["errorId"] for one in problems if one["errorId"] != "in-incognito"] == []
    colours = "all => all.map((one) => [one.media, one.content])"
    assert page.eval_on_selector_all("meta[name=theme-color]", colours) == [
        ["(prefers-color-scheme: light)", "#ffffff"],
        ["(prefers-color-scheme: dark)", "#0f1115"],
    ]
