"""The timeline of a tree in a real Chromium: arrows, critical path, the slider, zoom, keys, accessibility."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from clutch.api import report_objects
from tests.surfaces.served import Served
from tests.surfaces.test_dashboard import DESKTOP, PHONE, WIDTHS, opened, outline, violations, visit
from tests.surfaces.test_page import HOSTILE, row, spawned
from tests.surfaces.tree_models import planted, trees_served

PATIENT = 20_000


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Served]:
    with trees_served(tmp_path / "state") as here:
        yield here


@pytest.fixture
def page(browser: Browser, db: Served) -> Iterator[Page]:
    with opened(browser, db, viewport={"width": 1280, "height": 800}) as shown:
        yield shown


def lane(page: Page, label: str) -> Locator:
    return page.locator(".lane").filter(has=page.get_by_text(label, exact=True))


def arrow(page: Page, task: str) -> Locator:
    return page.locator(f'.arrow[data-task="{task}"]')


def read(db: Served, root: str) -> Any:
    return db.client.get(f"/v1/tasks/{root}/timeline")


def ids_of(db: Served, root: str) -> dict[str, str]:
    return {one["task"]["label"]: one["task"]["taskId"] for one in read(db, root)["lanes"]}


def show(page: Page, db: Served, root: str, **more: str) -> None:
    extra = "".join(f"&{name}={value}" for name, value in more.items())
    visit(page, f"view=timeline&task={root}{extra}")
    expect(lane(page, "the tree")).to_be_visible()


class Over(NamedTuple):
    """A tree that has ended, shown."""

    db: Served
    page: Page
    root: str


def ended(db: Served, page: Page) -> str:
    root = planted(db)
    show(page, db, root)
    expect(lane(page, "helper")).to_have_attribute("data-status", "done", timeout=PATIENT)
    db.let_go()
    expect(arrow(page, root)).to_have_attribute("data-state", "undelivered", timeout=PATIENT)
    return root


@pytest.fixture(scope="module")
def only_read(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Over]:
    """One gateway and one page for all tests that change nothing."""
    with (
        trees_served(tmp_path_factory.mktemp("trees") / "state") as db,
        opened(browser, db, viewport={"width": 1280, "height": 800}) as page,
    ):
        yield Over(db, page, ended(db, page))


@pytest.fixture
def over(only_read: Over) -> Over:
    """The view is made anew."""
    db, page, root = only_read
    visit(page, "")
    show(page, db, root)
    expect(arrow(page, root)).to_have_attribute("data-state", "undelivered")
    return only_read


# ---- lanes, arrows and the critical path -----------------------------------------------------------------


def test_a_running_tree_has_lanes_bars_and_a_deferred_result(db: Served, page: Page) -> None:
    root = planted(db)
    row(page, "the tree").get_by_role("button", name="Timeline of the tree").click()
    expect(lane(page, "helper")).to_have_attribute("aria-level", "3")
    assert {"view=timeline", f"task={root}"} <= set(page.url.partition("?")[2].split("&"))
    known = ids_of(db, root)
    late = arrow(page, known["helper"])
    expect(late).to_have_attribute("data-state", "deferred")
    expect(late.locator("title")).to_have_text("Result: deferred (the parent agent is busy)")
    assert late.locator(".line").evaluate("(one) => getComputedStyle(one).strokeDasharray") == "5px, 4px"
    expect(arrow(page, known["quiet one"])).to_have_attribute("data-state", "skipped")
    expect(arrow(page, known["quiet one"]).locator("title")).to_have_text(
        re.compile("the subagent asked for none")
    )
    expect(arrow(page, known["last one"])).to_have_count(0)  # it has not ended
    bar = lane(page, "last one").locator(".lane-bar")
    expect(bar).to_have_attribute("style", re.compile("--bar-thinking"))
    before = bar.get_attribute("style")
    expect(bar).not_to_have_attribute("style", str(before))  # it grows
    db.let_go()
    expect(late).to_have_attribute("data-state", "delivered", timeout=PATIENT)
    assert late.locator(".line").evaluate("(one) => getComputedStyle(one).strokeDasharray") == "none"


def test_each_result_leads_to_the_message_that_delivered_it(over: Over) -> None:
    db, page, root = over
    found = read(db, root)
    arrows = {one["taskId"]: one for one in found["deliveries"]}
    known = ids_of(db, root)
    reader = arrows[known["reader"]]
    expect(arrow(page, known["reader"])).to_have_attribute("data-state", "delivered")
    title = arrow(page, known["reader"]).locator("title")
    expect(title).to_contain_text(f"delivered to the tree in message {reader['message']}")
    transcript = db.client.get(f"/v1/tasks/{root}/transcript")["messages"]
    (message,) = [one for one in transcript if one["seq"] == reader["message"]]
    assert "reader" in str(message["body"])
    assert message["at"] == reader["readAt"]
    # A result that was given up is red, and has a cross.
    given_up = arrow(page, root)
    expect(given_up.locator(".cross")).to_have_count(1)
    expect(given_up.locator("title")).to_have_text(re.compile(r"undelivered \(retry limit reached\)"))
    expect(page.locator(".lane.session")).to_contain_text("agent:main:main")


def test_the_critical_path_is_marked_below_its_lanes(over: Over) -> None:
    db, page, root = over
    path = {stage["taskId"] for stage in read(db, root)["criticalPath"]}
    known = ids_of(db, root)
    assert root in path
    assert len(path) > 1
    for label, number in known.items():
        drawn = (
            lane(page, label).locator(".critical").evaluate("(one) => getComputedStyle(one).backgroundImage")
        )
        assert (drawn != "none") is (number in path)
        said = lane(page, label).locator(".track").get_attribute("aria-label") or ""
        assert ("on the critical path for" in said) is (number in path)
    assert page.locator(".critical-link").count() > 0


def test_attempts_are_marked_and_a_lane_opens_its_task(db: Served, page: Page) -> None:
    over = ended(db, page)
    known = ids_of(db, over)
    db.client.post(f"/v1/tasks/{known['reader']}/retry", {})
    expect(lane(page, "reader").locator(".attempt")).to_have_text("2", timeout=PATIENT)
    lane(page, "reader").locator(".lane-bar").click()
    expect(page.locator("#panel h2")).to_have_text("reader")
    assert f"lane={known['reader']}" in page.url
    assert f"task={over}" in page.url
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()
    expect(lane(page, "reader")).to_be_visible()
    page.locator(".timeline-head").get_by_role("link").click()
    expect(page.locator("#panel h2")).to_have_text("the tree")
    page.locator("#panel").get_by_role("button", name="Timeline").click()
    expect(lane(page, "the tree")).to_be_visible()


def test_lanes_fold_and_only_lanes_in_sight_exist(db: Served, page: Page) -> None:
    root = spawned(
        db, "family " + "; ".join(f"child {number}=quick" for number in range(80)), "many", notifyParent=False
    )
    expect(row(page, "many")).to_have_attribute("data-status", "done", timeout=60_000)
    visit(page, f"view=timeline&task={root}")
    expect(lane(page, "many")).to_be_visible()
    expect(page.locator(".timeline-grid")).to_have_attribute("aria-rowcount", "83")
    assert page.locator(".lane").count() < 45
    last = page.locator('.lane[aria-rowindex="83"]')
    expect(last).to_have_count(0)
    lane(page, "many").focus()
    page.keyboard.press("End")
    expect(last).to_be_focused()
    page.keyboard.press("Home")
    lane(page, "many").get_by_role("button", name="Show or hide subagents").click()
    expect(page.locator(".lane:not(.session)")).to_have_count(1)


def test_beyond_its_limit_a_tree_says_what_is_left_out(over: Over, monkeypatch: pytest.MonkeyPatch) -> None:
    page = over.page
    from clutch.transactions.read import trees

    monkeypatch.setattr(trees, "TASKS_MAX", 3)
    page.reload()
    expect(page.locator(".view-timeline .warning")).to_have_text("Showing the first 3 of 6 tasks.")


# ---- the slider ------------------------------------------------------------------------------------------


def test_the_slider_shows_the_tree_as_it_was(over: Over) -> None:
    db, page, root = over
    found = read(db, root)
    lanes = {one["task"]["label"]: one for one in found["lanes"]}
    expect(page.locator(".lane:not(.session)")).to_have_count(6)
    at = next(one["at"] for one in lanes["helper"]["states"] if one["deliveryStatus"] == "deferred")
    show(page, db, root, at=at)
    expect(lane(page, "last one")).to_have_attribute("data-status", "running")
    expect(lane(page, "the tree")).to_have_attribute("data-status", "waiting")
    expect(arrow(page, lanes["helper"]["task"]["taskId"])).to_have_attribute("data-state", "deferred")
    expect(arrow(page, root)).to_have_count(0)
    slider = page.get_by_role("slider", name="Moment")
    expect(slider).to_have_attribute("aria-valuetext", re.compile(r"^\+"))
    lane(page, "last one").get_by_role("link").click()
    expect(page.locator("#panel .now-line")).to_contain_text("running")
    expect(page.locator("#panel").get_by_role("button", name="Kill…")).to_have_count(0)
    page.get_by_role("tab", name="Result").click()
    expect(page.locator("#tab-content")).to_contain_text("when the task has ended")
    page.get_by_role("button", name="Live").click()
    expect(lane(page, "last one")).to_have_attribute("data-status", "done")
    expect(page.locator("#tab-content .markdown")).to_be_visible()
    assert "at=" not in page.url


def test_before_its_spawn_a_task_is_absent_and_arrows_step_through_events(over: Over) -> None:
    db, page, root = over
    found = read(db, root)
    moments = sorted({state["at"] for one in found["lanes"] for state in one["states"]})
    show(page, db, root, at=moments[0])
    expect(page.locator(".lane:not(.session)")).to_have_count(1)
    slider = page.get_by_role("slider", name="Moment")
    slider.focus()
    for place in range(1, 4):
        page.keyboard.press("ArrowRight")
        expect(page).to_have_url(re.compile(re.escape(moments[place].replace(":", "%3A"))))
    page.keyboard.press("ArrowLeft")
    expect(page).to_have_url(re.compile(re.escape(moments[2].replace(":", "%3A"))))
    for one in found["lanes"]:  # every lane shows what the gateway computed for this moment
        states = [state for state in one["states"] if state["at"] <= moments[2]]
        shown = lane(page, one["task"]["label"])
        expect(shown).to_have_count(1 if states else 0)
        if states:
            expect(shown).to_have_attribute("data-status", states[-1]["status"])


def test_a_replay_plays_and_pauses_and_ends_live(over: Over) -> None:
    page = over.page
    page.get_by_role("combobox", name="Speed").select_option("1")
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.locator(".now-mark")).to_have_attribute("data-replay", "true")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    expect(page).to_have_url(re.compile("at="))
    page.get_by_role("combobox", name="Speed").select_option("60")
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "true", timeout=PATIENT)
    expect(lane(page, "the tree")).to_have_attribute("data-status", "done")


# ---- zoom and keys ---------------------------------------------------------------------------------------

SPAN = "() => [...document.querySelectorAll('.time-axis .mark')].map((one) => one.textContent).join()"


def test_zoom_by_buttons_keys_and_wheel_pan_and_fit(over: Over) -> None:
    page = over.page
    whole = page.evaluate(SPAN)
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_function(f"(before) => ({SPAN})() !== before", arg=whole)
    closer = page.evaluate(SPAN)
    lane(page, "reader").focus()
    page.keyboard.press("Shift+ArrowRight")
    page.wait_for_function(f"(before) => ({SPAN})() !== before", arg=closer)
    page.keyboard.press("0")
    page.wait_for_function(f"(before) => ({SPAN})() === before", arg=whole)
    page.keyboard.press("+")
    page.wait_for_function(f"(before) => ({SPAN})() !== before", arg=whole)
    page.keyboard.press("-")
    page.wait_for_function(f"(before) => ({SPAN})() === before", arg=whole)
    lane(page, "reader").locator(".track").hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_function(f"(before) => ({SPAN})() !== before", arg=whole)
    page.get_by_role("button", name="Fit").click()
    page.wait_for_function(f"(before) => ({SPAN})() === before", arg=whole)
    page.get_by_role("button", name="Clock").click()
    expect(page.locator(".time-axis .mark").first).to_have_text(re.compile(r"^\d\d:\d\d:\d\d"))
    page.get_by_role("button", name="Relative").click()
    page.wait_for_function(f"(before) => ({SPAN})() === before", arg=whole)


def test_everything_is_reached_with_the_keyboard(over: Over) -> None:
    page = over.page
    page.keyboard.press("Tab")  # after a click, which another test made, focus is not outlined
    lane(page, "the tree").focus()
    assert outline(lane(page, "the tree")) == "solid"
    readout = page.locator(".readout")
    expect(readout).to_contain_text(
        re.compile(r"the tree · done .* spawned \+.* ended \+.* Result: undelivered")
    )
    page.keyboard.press("ArrowLeft")
    expect(lane(page, "reader")).to_have_count(0)
    page.keyboard.press("ArrowRight")
    expect(lane(page, "reader")).to_have_count(1)
    page.keyboard.press("ArrowDown")
    expect(lane(page, "reader")).to_be_focused()
    page.keyboard.press(".")
    expect(readout).to_contain_text(re.compile(r'1 of 2: 2 calls: list; list "\." · .* · message \d'))
    expect(lane(page, "reader").locator(".tool-tick[data-current]")).to_have_count(1)
    page.keyboard.press(".")
    expect(readout).to_contain_text("2 of 2")
    page.keyboard.press(",")
    expect(readout).to_contain_text("1 of 2")
    page.keyboard.press("[")
    expect(page).to_have_url(re.compile("at="))
    page.keyboard.press("]")
    expect(page).not_to_have_url(re.compile("at="))
    page.keyboard.press("Enter")
    expect(page.locator("#panel h2")).to_have_text("reader")
    expect(page.locator("#panel h2")).to_be_focused()
    page.keyboard.press("Escape")
    expect(lane(page, "reader")).to_be_focused()


# ---- accessibility ---------------------------------------------------------------------------------------


def test_axe_finds_nothing(db: Served, browser: Browser) -> None:
    root = planted(db)
    with opened(browser, db, viewport=DESKTOP, has_touch=True) as page:
        show(page, db, root)
        expect(arrow(page, ids_of(db, root).get("helper", ""))).to_have_attribute(
            "data-state", "deferred", timeout=PATIENT
        )
        violations(page, *WIDTHS)
        db.let_go()
        expect(arrow(page, root)).to_have_attribute("data-state", "undelivered", timeout=PATIENT)
        page.get_by_role("button", name="Previous event").click()
        expect(page).to_have_url(re.compile("at="))
        violations(page, *WIDTHS)
        page.set_viewport_size(PHONE)
        small = """() => [...document.querySelectorAll("#view button, #view select, #view input, .lane")]
          .filter((one) => one.checkVisibility() && one.getBoundingClientRect().height < 44)
          .map((one) => one.outerHTML.slice(0, 80))"""
        assert page.evaluate(small) == []


def test_motion_is_reduced_and_forced_colours_keep_bars_and_arrows(db: Served, browser: Browser) -> None:
    root = planted(db)
    with opened(browser, db, reduced_motion="reduce", forced_colors="active") as page:
        show(page, db, root)
        expect(lane(page, "helper")).to_have_attribute("data-status", "done", timeout=PATIENT)
        bar = lane(page, "last one").locator(".lane-bar")
        assert bar.evaluate("(one) => getComputedStyle(one).forcedColorAdjust") == "none"
        frames = """async () => {
          let frames = 0;
          const real = window.requestAnimationFrame;
          window.requestAnimationFrame = (act) => { frames += 1; return real(act); };
          await new Promise((done) => setTimeout(done, 1500));
          window.requestAnimationFrame = real;
          return frames;
        }"""
        assert page.evaluate(frames) < 20  # 90 frames would pass meanwhile
        db.let_go()
        expect(arrow(page, root).locator(".cross")).to_have_count(1, timeout=PATIENT)


def test_no_text_of_a_task_is_run(db: Served, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    parts = "; ".join(f"{text[:60].replace(';', ',').replace('=', ':')}=look" for text in HOSTILE[:24])
    root = spawned(db, f"family {parts}", HOSTILE[1][:60])
    expect(row(page, "img").first).to_have_attribute("data-status", "done", timeout=60_000)
    page.goto(
        f"{db.clutch.url}/?view=timeline&task={root}&at=<script>window.ran=1</script>&lane={HOSTILE[0]}"
    )
    expect(page.locator(".lane").first).to_be_visible()
    page.locator(".lane").nth(3).focus()
    expect(page.locator(".readout")).to_contain_text("spawned")
    assert page.evaluate("window.ran") is None
    assert page.locator("main :is(script, img, iframe, object, embed, style, link, base)").count() == 0
    assert all(one.startswith(str(db.clutch.url)) for one in asked)


def test_every_field_of_the_timeline_is_declared(over: Over) -> None:
    db, _, root = over
    found = read(db, root)
    assert set(found) == set(report_objects.TreeTimeline.__annotations__)
    assert set(found["lanes"][0]["states"][0]) == set(report_objects.LaneState.__annotations__)
    assert set(found["deliveries"][0]) == set(report_objects.DeliveryArrow.__annotations__)
