"""`clutch export --format html`: a page in one file, opened without a network, that can be clicked through."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from clutch import surfaces
from clutch.cli.page_export import ENTRY, bundle, embedded, module, page_file
from tests.surfaces.served import Served
from tests.surfaces.test_dashboard import violations
from tests.surfaces.test_page import HOSTILE, row, spawned
from tests.surfaces.tree_models import planted, trees_served
from tests.surfaces.typed import typed

WEB = Path(surfaces.__file__).parent / "web"
SECRET = "sk-abcdefghijklmnopqrstuvwxyz012345"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Served]:
    with trees_served(tmp_path / "state") as here:
        yield here


def ended(db: Served, task: str) -> None:
    db.client.get(f"/v1/tasks/{task}/wait", timeoutSeconds=60, until="delivered")


def over(db: Served) -> str:
    """A tree that has ended."""
    root = planted(db)
    db.let_go()
    ended(db, root)
    return root


@contextmanager
def file_opened(browser: Browser, file: Path, place: str = "", **options: Any) -> Iterator[Page]:
    """As a user opens it who got it by mail: every request fails, and is counted."""
    with browser.new_context(offline=True, **options) as context:
        page = context.new_page()
        asked: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
        page.goto(f"{file.as_uri()}{place}")
        yield page
        assert [one for one in asked if not one.startswith("file:")] == []
        assert len([one for one in asked if one.startswith("file:")]) == 1
        assert errors == []


def lane(page: Page, label: str) -> Locator:
    return page.locator(".lane").filter(has=page.get_by_text(label, exact=True))


def test_a_page_is_one_file_that_only_its_owner_reads(
    db: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = over(db)
    file = tmp_path / "report.html"
    said = typed("export", root, "--format", "html", "--output", file, "--json", state=db.home)
    assert said.code == 0
    assert said.body == {
        "schema": "clutch.export/1", "ok": True, "kind": "page", "file": str(file), "bytes": file.stat().st_size,
        "tasks": 6,
    }  # fmt: skip
    assert file.stat().st_mode & 0o777 == 0o600
    again = typed("export", root, "--format", "html", "--output", file, state=db.home)
    assert again.code == 2
    assert "name a new file" in again.err
    assert os.listdir(tmp_path) == [one for one in os.listdir(tmp_path) if not one.startswith(".")]
    monkeypatch.chdir(tmp_path)
    assert typed("export", root, "--format", "html", state=db.home).code == 0
    assert (tmp_path / f"clutch-{root}.html").exists()
    assert typed("export", "no-such-task", "--format", "html", state=db.home).code == 1
    assert [one for one in os.listdir(tmp_path) if one.endswith(".html")] != []


def test_a_page_is_clicked_through_without_a_network(db: Served, tmp_path: Path, browser: Browser) -> None:
    root = over(db)
    file = tmp_path / "report.html"
    typed("export", root, "--format", "html", "--output", file, state=db.home)
    with file_opened(browser, file, viewport={"width": 1280, "height": 800}) as page:
        expect(page.locator("#connection")).to_have_text(re.compile("^Exported on .*; read-only$"))
        expect(page.get_by_role("button", name="New task")).to_be_hidden()
        expect(row(page, "the tree")).to_have_attribute("data-status", "done")
        expect(row(page, "the tree")).to_have_attribute("data-group", "undelivered")
        row(page, "reader").get_by_role("link").click()
        expect(page.locator("#panel h2")).to_have_text("reader")
        expect(page.locator("#panel .call").first).to_contain_text("list")
        expect(page.locator("#panel").get_by_role("textbox")).to_be_hidden()
        expect(page.locator("#panel .actions button")).to_have_text(["Timeline"])
        page.get_by_role("tab", name="Result").click()
        expect(page.locator("#panel .markdown")).to_contain_text("heard")
        page.get_by_role("tab", name="Details").click()
        expect(page.locator("#panel .timeline li").first).to_be_visible()
        violations(page)
        page.locator("#panel").get_by_role("button", name="Timeline").click()
        expect(lane(page, "helper")).to_be_visible()
        expect(page.locator(f'.arrow[data-task="{root}"]')).to_have_attribute(
            "data-state", re.compile("deliver")
        )
        expect(page.locator('.arrow[data-state="delivered"]')).not_to_have_count(0)
        slider = page.get_by_role("slider", name="Moment")
        slider.focus()
        page.keyboard.press("ArrowLeft")
        expect(page).to_have_url(re.compile("#.*at="))
        link = page.url
        violations(page)
        page.get_by_role("button", name="End").click()
        page.go_back()
        page.get_by_role("searchbox").fill("helper")
        expect(row(page, "reader")).to_have_count(0)
    with file_opened(
        browser, file, "#" + link.partition("#")[2], viewport={"width": 390, "height": 844}
    ) as page:
        expect(lane(page, "the tree")).to_be_attached()  # a link into the file shows what its sender saw
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        violations(page)


def test_an_export_of_a_part_has_nothing_of_what_is_above_and_works_without_a_gateway(
    tmp_path: Path, browser: Browser
) -> None:
    with trees_served(tmp_path / "state") as db:
        root = over(db)
        known = {
            one["task"]["label"]: one["task"]["taskId"]
            for one in db.client.get(f"/v1/tasks/{root}/timeline")["lanes"]
        }
    file = tmp_path / "part.html"
    said = typed(
        "export", known["writer"], "--format", "html", "--output", file, "--json", state=tmp_path / "state"
    )
    assert said.body["tasks"] == 2
    assert "quiet one" not in file.read_text()
    with file_opened(browser, file, f"#view=timeline&task={known['writer']}") as page:
        expect(lane(page, "helper")).to_be_visible()
    whole = tmp_path / "session.html"
    said = typed("export", "main", "--format", "html", "--output", whole, "--json", state=tmp_path / "state")
    assert said.body["tasks"] == 6
    with file_opened(browser, whole) as page:
        expect(row(page, "the tree")).to_be_visible()


def test_secrets_are_redacted_unless_they_are_wanted(db: Served, tmp_path: Path) -> None:
    task = spawned(db, f"say the key is {SECRET}", f"with {SECRET}"[:60])
    ended(db, task)
    for options, is_there in (((), False), (("--with-secrets",), True)):
        file = tmp_path / f"{is_there}.html"
        assert typed("export", task, "--format", "html", "--output", file, *options, state=db.home).code == 0
        assert (SECRET in file.read_text()) is is_there
        assert ("[redacted]" in file.read_text()) is not is_there
    assert str(db.home) not in (tmp_path / "False.html").read_text()


def test_no_text_inside_a_page_is_run(db: Served, tmp_path: Path, browser: Browser) -> None:
    texts = [
        *HOSTILE,
        "</script><script>window.ran=1</script>",
        "<!--<script>",
        "\u2028window.ran=1\u2029",
        "]]>--!>",
    ]
    for start in range(0, len(texts), 34):
        some = texts[start : start + 34]
        ended(db, spawned(db, "say " + "\n\n".join(some), " ".join(some)[:60].replace("\n", " ")))
    file = tmp_path / "hostile.html"
    assert typed("export", "main", "--format", "html", "--output", file, state=db.home).code == 0
    with file_opened(browser, file) as page:
        expect(page.locator(".row")).to_have_count(6)
        for task in [one.get_attribute("data-task") for one in page.locator(".row").all()]:
            page.locator(f'.row[data-task="{task}"] a.name').click()
            expect(page.locator("#panel .activity")).to_contain_text("window.ran")
            page.get_by_role("tab", name="Result").click()
            expect(page.locator("#panel .markdown")).to_contain_text("window.ran")
            page.get_by_role("tab", name="Activity").click()
        assert page.evaluate("window.ran") is None
        assert page.locator("body :is(img, iframe, object, embed, style, link, base)").count() == 0
        assert page.locator("script").count() == 2


def test_the_policy_of_a_page_allows_its_own_script_alone(browser: Browser, tmp_path: Path) -> None:
    text = page_file(
        {"exportedAt": "2026-01-01T00:00:00.000Z", "title": "t", "timelines": {}, "tasks": {}}, "<b>"
    )
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert "<title>&lt;b&gt;</title>" in text
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', text.partition('<script type="application/json"')[0]) == [
        'href="/v1/docs"'
    ]
    file = tmp_path / "changed.html"
    file.write_text(text.replace("</body>", "<script>window.ran=1</script></body>"))
    with browser.new_context(offline=True) as context:
        page = context.new_page()
        page.goto(file.as_uri())
        assert page.evaluate("window.ran") is None


def test_data_cannot_leave_its_element() -> None:
    hostile = {"a</script>": ["<!--", "<script>", "&lt;", "\u2028\u2029", "\ud800"]}
    text = embedded(hostile)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text)["a</script>"][:4] == ["<!--", "<script>", "&lt;", "\u2028\u2029"]
    text.encode()


def test_every_name_that_a_module_imports_is_exported() -> None:
    """A module of the page that uses another form is found here, and not by the user who opens an export."""
    script = bundle(ENTRY)
    assert script.index('modules["/web/dom.js"]') < script.index('modules["/web/views/tasks.js"]')
    for names, path in re.findall(r"^const \{ ([^}]*) \} = modules\[\"([^\"]+)\"\];$", script, re.MULTILINE):
        made = script[script.index(f'modules["{path}"] = await') :]
        given = set(re.findall(r"^return \{ ([^}]*) \};$", made, re.MULTILINE)[0].split(", "))
        wanted = {one.partition(":")[0].strip() for one in names.split(",")}
        assert wanted - given <= {"data"}, path


def test_the_connection_of_an_export_has_every_member_of_the_real_one() -> None:
    """A view calls the members of the connection without asking whether the page is an export."""
    real, exported = (
        set(
            re.findall(
                r"^  (?:get )?(\w+)",
                text.partition("export const connection = {")[2].partition("\n};")[0],
                re.MULTILINE,
            )
        )
        for text in ((WEB / name).read_text() for name in ("connection.js", "offline/connection.js"))
    )
    assert len(real) > 6
    assert real - exported == set()


@pytest.mark.parametrize(
    "text", ["export default 1;", 'import x from "/web/x.js";', "export let a = 1;", "export { a };"]
)
def test_a_module_in_another_form_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"/web/x\.js"):
        module("/web/x.js", text)
