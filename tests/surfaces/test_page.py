"""The dashboard behind `clutch open`, in a real Chromium: signing in, decisions, the connection, hostile texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, expect

from clutch.errors import ConfigInvalid
from clutch.surfaces.http.browser import files
from clutch.tools.mcp.definitions import McpServer
from clutch.tools.registry import ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.typed import typed

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


@pytest.fixture
def page(browser: Browser, db: Served) -> Iterator[Page]:
    """Signed in as a user is."""
    opened = typed("open", "--print", "--json", state=db.home)
    assert opened.code == 0
    assert not opened.body["opened"]
    with browser.new_context() as context:
        shown = context.new_page()
        shown.goto(opened.body["url"])
        yield shown


def spawned(db: Served, task: str, label: str, **options: Any) -> str:
    return str(db.client.post("/v1/tasks", {"task": task, "label": label, **options})["taskId"])


def row(page: Page, label: str) -> Locator:
    # By its name: what a parent does now names its subagents, too.
    return page.locator(".row").filter(has=page.locator(".name", has_text=label))


def is_live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_text("Live")


def test_the_list_is_live_and_a_task_shows_its_activity_result_and_reason(db: Served, page: Page) -> None:
    is_live(page)
    spawned(db, "slow work", "a slow one")
    line = row(page, "a slow one")
    expect(line).to_contain_text("thinking · step 1")
    expect(line).to_have_attribute("data-group", "active")
    db.let_go()
    expect(line).to_have_attribute("data-status", "done")
    expect(page.get_by_role("link", name="Finished 1")).to_be_visible()
    line.get_by_role("link").click()
    panel = page.locator("#panel")
    expect(panel.get_by_role("heading", name="a slow one")).to_be_visible()
    expect(panel.locator(".activity")).to_contain_text("heard: ")
    page.get_by_role("tab", name="Result").click()
    expect(panel.locator(".markdown")).to_contain_text("heard: ")
    page.get_by_role("tab", name="Details").click()
    expect(panel.locator(".timeline li").first).to_be_visible()
    page.get_by_role("button", name="Close the task").click()
    expect(panel).to_be_hidden()


def test_a_task_is_shown_in_full_on_a_narrow_screen(db: Served, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for number in range(20):
        spawned(db, "quick work", f"quick one {number}")
    expect(page.locator(".row[data-status=done]")).to_have_count(20, timeout=30_000)
    page.get_by_role("link", name="quick one 1", exact=True).click()
    expect(page.get_by_role("heading", name="quick one 1")).to_be_in_viewport()
    expect(page.get_by_role("textbox", name="Message")).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="Close the task").click()
    expect(page.get_by_role("link", name="quick one 1", exact=True)).to_be_visible()


def test_the_page_warns_of_what_the_gateway_knows_to_be_wrong(browser: Browser, tmp_path: Path) -> None:
    """A config that is not loaded, and an MCP server that does not start; the warning goes with its cause."""
    settings = ToolSettings(mcp_servers=(McpServer(name="search", command="no-such-server"),))
    with served(tmp_path / "state", policy=FAST, settings=settings) as here, browser.new_context() as context:
        page = context.new_page()
        page.goto(typed("open", "--print", "--json", state=here.home).body["url"])
        is_live(page)
        notice = page.locator("#notice")
        expect(notice).to_be_hidden()
        config = here.home / "clutch.json"
        config.write_text("{modle: 1}")
        config.chmod(0o600)
        with pytest.raises(ConfigInvalid):
            here.run(here.clutch.reload())
        expect(notice).to_contain_text("Config not loaded", timeout=20_000)
        expect(notice).to_contain_text("restart to apply: end the program that serves it")
        spawned(here, "quick work", "one that would use the server")
        expect(notice).to_contain_text("command 'no-such-server' is not found", timeout=20_000)
        config.write_text("{}")
        here.run(here.clutch.reload())
        expect(notice).not_to_contain_text("Config not loaded", timeout=20_000)
        expect(notice).to_contain_text('MCP server "search" did not start')


# ---- decisions -------------------------------------------------------------------------------------------

CARD = ".cards > li"
STEADY_MS = re.compile(r"const (SETTLED|KEPT)_MS = (\d+);")


@contextmanager
def hastened(times: int) -> Iterator[None]:
    """Divide the times for which a new card takes no press and a decided one stays. `test_a_user_decides_on_the_page`
    waits for the true ones.

    The gateway of this process serves another text: a route of the browser would stop every request of the page."""
    text, kind = files()["/web/steady.js"]
    shorter, count = STEADY_MS.subn(lambda one: f"const {one[1]}_MS = {int(one[2]) // times};", text.decode())
    assert count == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(files(), "/web/steady.js", (shorter.encode(), kind))
        yield


KEPT_MS = 20_000  #: a decided card stays for five seconds


def test_a_user_decides_on_the_page(db: Served, page: Page) -> None:
    spawned(db, "ask me", "curious")
    card = page.locator(CARD)
    expect(card).to_contain_text("Which one?")
    expect(card.get_by_role("list", name="Choices")).to_contain_text("b")
    expect(page).to_have_title("(1) Clutch")
    card.get_by_role("textbox").fill("c")
    card.get_by_role("button", name="Answer").click()
    expect(card.get_by_role("alert")).to_contain_text("must be one of")
    spawned(db, "x", "another")  # a later event does not remove the message
    expect(row(page, "another")).to_have_attribute("data-status", "done")
    expect(card.get_by_role("alert")).to_contain_text("must be one of")
    card.get_by_role(
        "button", name="b", exact=True
    ).click()  # a choice is written into the field, and not sent
    expect(card.get_by_role("textbox")).to_have_value("b")
    card.get_by_role("button", name="Answer").click()
    expect(card).to_contain_text("Answered")
    page.mouse.move(1, 1)
    expect(page.locator(CARD)).to_have_count(0, timeout=KEPT_MS)
    expect(row(page, "curious")).to_have_attribute("data-status", "done")
    expect(page).to_have_title("Clutch")


@pytest.fixture
def guarded(browser: Browser, tmp_path: Path) -> Iterator[tuple[Served, Page]]:
    """A page whose gateway asks before every shell command."""
    settings = ToolSettings(sandbox=Sandbox.OFF, shell_needs_approval=True)
    with (
        served(tmp_path / "state", policy=FAST, settings=settings) as here,
        hastened(4),
        browser.new_context() as context,
    ):
        shown = context.new_page()
        shown.goto(typed("open", "--print", "--json", state=here.home).body["url"])
        yield here, shown


def test_a_second_click_at_the_same_spot_decides_nothing_else(guarded: tuple[Served, Page]) -> None:
    db, page = guarded
    spawned(db, "ask openly", "curious")
    expect(page.locator(CARD)).to_have_count(1)
    spawned(db, "run it", "dangerous")
    expect(page.locator(CARD)).to_have_count(2)
    first = page.locator(CARD).filter(has_text="curious")
    first.get_by_role("textbox").fill("Ada")
    # A button takes no press before it has stood in its place for a second.
    expect(first.get_by_role("button", name="Answer")).to_be_enabled()
    button = first.get_by_role("button", name="Answer").bounding_box()
    assert button is not None
    spot = (button["x"] + button["width"] / 2, button["y"] + button["height"] / 2)
    with page.expect_response("**/v1/inbox/*") as answered, page.expect_response("**/v1/inbox"):
        page.mouse.click(*spot)
    assert answered.value.ok
    for _ in range(5):  # whatever stands there now
        page.mouse.click(*spot)
    expect(row(page, "curious")).to_have_attribute("data-status", "done")
    page.mouse.move(1, 1)
    expect(page.locator(CARD)).to_have_count(1, timeout=KEPT_MS)
    (left,) = db.client.get("/v1/inbox")["items"]
    assert left["label"] == "dangerous"
    assert not (db.home.parent / "ran").exists()


def test_an_item_stays_where_it_is_under_the_pointer(guarded: tuple[Served, Page]) -> None:
    db, page = guarded
    for name in ("one", "two", "three"):
        spawned(db, "ask openly", name)
        expect(page.locator(CARD).filter(has_text=name)).to_be_visible()
    third = page.locator(CARD).filter(has_text="three").get_by_role("button", name="Answer")
    third.hover()
    before = third.bounding_box()
    first = next(one for one in db.client.get("/v1/inbox")["items"] if one["label"] == "one")
    with page.expect_response("**/v1/inbox"):
        answer = {"decision": "answer", "text": "elsewhere", "hash": first["hash"]}
        db.client.post(f"/v1/inbox/{first['id']}", answer)
    gone = page.locator(CARD).filter(has_text="one").first
    expect(gone).to_contain_text("Decided elsewhere")
    expect(gone.get_by_role("button", name="Answer")).to_be_disabled()
    assert third.bounding_box() == before
    page.mouse.move(1, 1)
    expect(page.locator(CARD)).to_have_count(2, timeout=KEPT_MS)


def test_an_item_that_has_just_moved_takes_no_press(guarded: tuple[Served, Page]) -> None:
    db, page = guarded
    spawned(db, "run it", "dangerous")
    item = page.locator(CARD)
    expect(item.get_by_role("button", name="Approve")).to_be_enabled()
    page.evaluate(
        """() => {
          document.querySelector(".filters").style.paddingBottom = "50px";
          const approve = [...document.querySelectorAll(".cards button")].find((one) => one.textContent === "Approve");
          approve.dispatchEvent(new MouseEvent("click", { detail: 1 }));
        }"""
    )
    expect(item.get_by_role("button", name="Run it")).to_be_hidden()
    item.get_by_role("button", name="Approve").click()  # waits until it takes presses again
    expect(item.get_by_role("button", name="Run it")).to_be_visible()


def test_a_shell_command_is_approved_with_two_different_buttons(guarded: tuple[Served, Page]) -> None:
    db, page = guarded
    spawned(db, "run it", "dangerous")
    item = page.locator(CARD)
    expect(item).to_contain_text("touch ran")
    item.get_by_role("button", name="Approve").dblclick()
    assert [one["label"] for one in db.client.get("/v1/inbox")["items"]] == ["dangerous"]
    expect(item.get_by_role("button", name="Approve")).to_be_enabled()
    box = item.get_by_role("button", name="Reject").bounding_box()
    assert box is not None
    item.get_by_role("button", name="Approve").click()
    expect(item.get_by_role("button", name="Run it")).to_be_visible()
    middle = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    there = page.evaluate("({x, y}) => document.elementFromPoint(x, y).textContent", middle)
    assert there == "Reject"  # a user who takes the approval back must not start the call
    item.get_by_role("button", name="Run it").click()
    expect(row(page, "dangerous")).to_have_attribute("data-status", "done")
    assert (db.home.parent / "ran").exists()


def test_an_empty_answer_is_refused_on_the_page_before_it_is_sent(
    guarded: tuple[Served, Page],
) -> None:
    db, page = guarded
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    spawned(db, "ask openly", "curious")
    item = page.locator(CARD)
    item.get_by_role("textbox").fill("  ")
    item.get_by_role("button", name="Answer").click()
    expect(item.get_by_role("alert")).to_contain_text("must not be blank")
    assert "POST" not in sent
    item.get_by_role("textbox").fill("Ada")
    item.get_by_role("button", name="Answer").click()
    expect(row(page, "curious")).to_have_attribute("data-status", "done")


# ---- signing in and the connection -----------------------------------------------------------------------


def test_s5_a_code_leaves_the_address_and_lets_in_one_browser_once(browser: Browser, db: Served) -> None:
    url = typed("open", "--print", state=db.home).out.strip()
    assert url.startswith(f"{db.clutch.url}/#")
    with browser.new_context() as first, browser.new_context() as second:
        inside, outside = first.new_page(), second.new_page()
        inside.goto(url)
        is_live(inside)
        assert inside.url == f"{db.clutch.url}/"
        inside.reload()
        is_live(inside)
        outside.goto(url)
        expect(outside.get_by_role("alert")).to_contain_text("clutch open")
        assert "clutch_" not in str(inside.evaluate("document.cookie"))
        inside.reload()
        expect(inside.get_by_role("alert")).to_contain_text("clutch open")  # one of the two was not meant


def test_a_signed_out_page_asks_no_more_and_says_how_to_sign_in(browser: Browser, db: Served) -> None:
    refused: list[int] = []
    with browser.new_context() as context:
        shown = context.new_page()
        shown.on("response", lambda one: refused.append(one.status) if "/v1/" in one.url else None)
        shown.clock.install()
        shown.goto(f"{db.clutch.url}/")
        remedy = expect(shown.get_by_role("alert"))
        remedy.to_contain_text("clutch open")
        for _ in range(12):
            shown.clock.run_for(5_000)
        remedy.to_contain_text("clutch open")
        expect(shown.locator("#connection")).to_have_text("Signed out")
        assert refused == []  # it has no key, and each request would count as a wrong token
        shown.goto(typed("open", "--print", "--json", state=db.home).body["url"])
        is_live(shown)


def test_the_page_of_a_gateway_that_is_gone_stops_its_clocks_and_says_so(
    browser: Browser, tmp_path: Path
) -> None:
    with browser.new_context() as context:
        shown = context.new_page()
        with served(tmp_path / "state", policy=FAST) as db:
            shown.clock.install()
            shown.goto(typed("open", "--print", "--json", state=db.home).body["url"])
            spawned(db, "slow work", "a slow one")
            line = row(shown, "a slow one")
            expect(line).to_have_attribute("data-status", "running")
            shown.clock.run_for(3_000)
        expect(shown.locator("#connection")).to_contain_text("Reconnecting, data from")
        before = line.inner_text()
        shown.clock.run_for(60_000)
        assert line.inner_text() == before
        expect(shown.get_by_role("alert")).to_contain_text("The gateway does not answer")
        expect(shown.locator("html")).to_have_attribute("data-connection", "lost")
        assert shown.evaluate("getComputedStyle(document.getElementById('view')).filter") == "grayscale(1)"


# ---- hostile texts ---------------------------------------------------------------------------------------


def test_s27_what_cannot_be_seen_is_shown_as_an_escape(db: Served, page: Page) -> None:
    spawned(db, "tidy up \u202egro.live\u202c and\u200b wait", "plain")
    row(page, "plain").get_by_role("link").click()
    page.get_by_role("tab", name="Result").click()
    shown = expect(page.locator("#panel .markdown"))
    shown.to_contain_text("tidy up \\u{202e}gro.live\\u{202c} and\\u{200b} wait")


OPEN_MARKS = ("[", "![", "[a](", "*a ", "_a ", "~~a", "`a``", "**a", "# a")


def test_a_text_of_open_marks_does_not_freeze_the_page(page: Page) -> None:
    """Four times the text takes about four times as long; going back over it takes sixteen times, whatever else the
    machine does: the least of many measurements is compared."""
    script = """async (piece) => {
        const { renderMarkdown } = await import("/web/markdown.js");
        const took = (size) => {
            const text = Array(10).fill(piece.repeat(size / piece.length)).join("\\n\\n");
            const spaces = " ".repeat(5 * size);
            const begun = performance.now();
            const { length } = renderMarkdown(`${text}\\n# a${spaces}b\\n|\\n-${spaces}-`).textContent;
            return length > 0 ? performance.now() - begun : Infinity;
        };
        const [coarse, rounds] = [5, 20]; // milliseconds of a timer
        let [small, large] = [Infinity, Infinity];
        for (let round = 0; round < rounds; round += 1) {
            [small, large] = [Math.min(small, took(4975)), Math.min(large, took(19900))];
            if (round >= 2 && large < 10 * Math.max(small, coarse)) return 0;
        }
        return large / small;
    }"""
    assert {piece: times for piece in OPEN_MARKS if (times := page.evaluate(script, piece))} == {}


def test_s26_no_word_of_a_child_is_ever_run_or_fetched(db: Served, page: Page) -> None:
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(urlsplit(request.url).netloc)

    assert len(HOSTILE) == 200
    page.on("request", note)
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
    for start in range(0, len(HOSTILE), 10):  # what one child says back holds ten of them
        spawned(db, "\n\n".join(HOSTILE[start : start + 10]), " ".join(HOSTILE[start : start + 2])[:64])
    spawned(db, "ask me", HOSTILE[0][:64])
    expect(page.locator(".row[data-status=done]")).to_have_count(20, timeout=30_000)
    expect(page.locator(".row")).to_have_count(21)
    expect(page.locator(CARD)).to_have_count(1)
    for task in [one.get_attribute("data-task") for one in page.locator(".row[data-status=done]").all()]:
        page.locator(f'.row[data-task="{task}"] a.name').click()
        expect(page.locator("#panel .path")).to_contain_text(str(task))
        expect(page.locator("#panel .activity")).to_contain_text("heard")
        page.get_by_role("tab", name="Result").click()
        expect(page.locator("#panel .markdown")).to_contain_text("heard")
        foreign = "#panel :is(script, img, iframe, svg, object, embed, style, link, base, form:not(.message))"
        assert page.locator(foreign).count() == 0
        links = page.locator("#panel .markdown a").evaluate_all("(all) => all.map((one) => one.protocol)")
        assert set(links) <= {"http:", "https:", "mailto:"}
    assert page.evaluate("window.ran") is None
    assert page.locator("main :is(script, img, iframe, svg, object, embed, style, link, base)").count() == 0
    assert set(asked) == {urlsplit(page.url).netloc}


def test_s26_the_files_of_the_page_hold_nothing_and_run_nothing_foreign(db: Served) -> None:
    assert {"/", "/v1/docs", "/web/main.js", "/web/views/tasks.js"} <= files().keys()
    for path in files():
        heard = db.raw("GET", path, authorization=None)
        assert heard.status == 200
        assert "default-src 'none'" in heard.headers["content-security-policy"]
        assert "unsafe" not in heard.headers["content-security-policy"]
        assert heard.headers["cache-control"] == "no-store"
        assert db.raw("POST", path, b"{}", authorization=None).status in (401, 429)
        assert db.raw("GET", path, authorization=None, host="evil.example").status == 421
        assert db.raw("GET", path, authorization=None, sec_fetch_site="cross-site").status == 403
