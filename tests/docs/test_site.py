"""The site that `make docs` builds: complete, without requests to other hosts, and with a search that finds answers."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

#: An address that a page loads by itself. A link (`<a href>`) is not loaded.
LOADED = re.compile(
    r"""(?ix) <(?:script|img|iframe|source|video|audio|embed|object|link)\b[^>]*?\b(?:src|href|data)=["']?(?:https?:)?//
    | @import\s+(?:url\()?["']?(?:https?:)?// | url\(["']?(?:https?:)?//
    | \b(?:fetch|importScripts)\(["'](?:https?:)?//"""
)
#: What people type, and a page that answers it.
QUESTIONS = {
    "retry": "how-to/manage-tasks",
    "dead letter": "how-to/results",
    "rate limit": "how-to/models",
    "resume": "how-to/manage-tasks",
    "delivered twice": "concepts/",
    "systemd": "how-to/systemd",
    "sandbox": "how-to/sandbox",
}


def command(folder: Path) -> list[str]:
    """Return the command of `make docs` for another folder, so that the test and the target cannot differ."""
    target = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndocs: ")[2].partition("\n\t@")[2]
    line = (
        target.partition("\n")[0]
        .replace("$(BIN)/python", sys.executable)
        .replace("$(SITE)", str(folder / "site"))
    )
    return shlex.split(line.replace("build/pages", str(folder / "pages")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    built = subprocess.run(
        command(folder), cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    return folder / "site"


def test_every_page_is_built(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    """The settings of the site, and three pages: what a build says about a link depends on no other page."""
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(ROOT / "docs" / "conf.py", docs)
    gone = {"page": "[gone](gone.md)", "heading": "[gone](index.md#gone)", "picture": "![gone](gone.png)"}
    pages = "\n".join(f"- [{name}]({name}.md)" for name in gone)
    (docs / "index.md").write_text(f"# Pages\n\n## Start\n\n{pages}\n", encoding="utf-8")
    for name, text in gone.items():
        (docs / f"{name}.md").write_text(f"# Title\n\n{text}\n", encoding="utf-8")
    built = subprocess.run(
        command(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert built.returncode != 0
    assert set(re.findall(r"([\w-]+)\.md:\d+: WARNING", built.stderr)) == gone.keys(), built.stderr


def test_no_file_loads_something_from_another_host(site: Path) -> None:
    for path in [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".js", ".svg")]:
        assert LOADED.findall(path.read_text(encoding="utf-8")) == [], path.relative_to(site)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """A page whose requests to other hosts are refused and fail the test."""
    with browser.new_context() as context:
        outside: list[str] = []

        def refuse(route: Route) -> None:
            outside.append(route.request.url)
            route.abort()

        context.route(lambda url: urlsplit(url).hostname not in ("127.0.0.1", None), refuse)
        shown = context.new_page()
        yield shown
        assert outside == []


def test_no_page_asks_another_host_in_a_browser(site: Path, address: str, page: Page) -> None:
    """Two pages of each folder: all have the same frame and scripts, and the text of all files is read above."""
    for folder in (site, *sorted(path for path in site.iterdir() if path.is_dir())):
        for path in sorted(folder.glob("*.html"))[:2]:
            page.goto(f"{address}/{path.relative_to(site)}")


@pytest.mark.parametrize(("question", "answer"), QUESTIONS.items())
def test_the_search_finds_a_page_that_answers(question: str, answer: str, address: str, page: Page) -> None:
    page.goto(f"{address}/index.html")
    box = page.get_by_role("textbox", name="Search")
    box.fill(question)
    box.press("Enter")
    links = page.locator("#search-results li > a")
    expect(page.locator(".search-summary")).to_contain_text("found", timeout=20_000)
    found = [urlsplit(str(link.get_attribute("href"))).path for link in links.all()][:5]
    assert any(answer in path for path in found), found
    links.nth(next(place for place, path in enumerate(found) if answer in path)).click()
    text = page.locator("article").inner_text().lower()
    assert all(word[:6] in text for word in question.split())
