"""The views Inbox and Undelivered in a real Chromium: every kind of decision, keys, deep links, hostile texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from clutch.tools.registry import ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from tests.surfaces.asking import asking, asks, calls, exhausts, loses, offers_tool, plans, runs
from tests.surfaces.served import Served
from tests.surfaces.test_dashboard import (
    DESKTOP,
    MARKDOWN,
    PHONE,
    WIDTHS,
    family,
    opened,
    outline,
    violations,
    visit,
)
from tests.surfaces.test_page import CARD, HOSTILE, KEPT_MS, is_live, spawned
from tests.surfaces.typed import typed

WIDE: Any = {"viewport": {"width": 1280, "height": 900}}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Served]:
    with asking(tmp_path / "state") as here:
        yield here


@pytest.fixture
def page(browser: Browser, db: Served) -> Iterator[Page]:
    with opened(browser, db, **WIDE) as shown:
        yield shown


def load(page: Page, db: Served, query: str) -> None:
    page.goto(f"{db.clutch.url}/?{query}")
    is_live(page)


def card(page: Page, label: str) -> Locator:
    return page.locator(CARD).filter(has_text=label)


def press(within: Locator, name: str) -> None:
    """A new card takes no press for a second: wait until it does."""
    button = within.get_by_role("button", name=name, exact=True)
    expect(button).to_be_enabled()
    button.click()


# ---- what a card shows -----------------------------------------------------------------------------------


def test_a_command_shows_who_asks_where_it_runs_and_what_each_decision_does(db: Served, page: Page) -> None:
    made = 'call [{"tool": "shell", "args": {"command": "touch ran", "timeout_seconds": 9}}]'
    spawned(db, f"family the child={made}", "the parent")
    visit(page, "view=inbox")
    shown = card(page, "the child")
    expect(shown.locator(".path a")).to_have_text(["agent:main:main", "the parent", "the child"])
    expect(shown.locator("pre.command")).to_have_text("touch ran")
    home = str(db.home.parent)
    expect(shown.locator(".card-where")).to_have_text(f"in {home} · without a sandbox")
    expect(shown.locator(".consequences li")).to_have_text([
        f"Approving runs this command once, in {home}, without a sandbox.",
        "Rejecting lets the subagent continue without it. It reads your comment.",
    ])  # fmt: skip
    expect(shown).to_contain_text(re.compile(r"waiting \d+ s"))
    shown.get_by_text("The whole call").click()
    expect(shown.locator("details pre")).to_contain_text('"timeout_seconds": 9')
    shown.get_by_role("link", name="the parent").click()
    expect(page.locator("#panel h2")).to_have_text("the parent")
    assert "view=inbox" in page.url


def test_a_sandboxed_command_says_so_and_calls_of_one_run_wait_for_each_other(
    browser: Browser, tmp_path: Path
) -> None:
    settings = ToolSettings(sandbox=Sandbox.ON, shell_needs_approval=True)
    with asking(tmp_path / "state", settings=settings) as db, opened(browser, db, **WIDE) as page:
        two = [{"tool": "shell", "args": {"command": name, "cwd": "sub"}} for name in ("one", "two")]
        calls(db, "twice", *two)
        visit(page, "view=inbox")
        expect(page.locator(CARD)).to_have_count(2)
        says = page.locator(CARD).first.locator(".consequences li").first
        where = f"in {db.home.parent}/sub, in the sandbox"
        expect(says).to_have_text(
            f"Approving runs this command once, {where}, after 1 other item of the same run is decided."
        )


def test_approving_a_command_takes_a_confirmation_and_runs_it_once(db: Served, page: Page) -> None:
    runs(db, "dangerous", "echo . >> ran")
    visit(page, "view=inbox")
    shown = card(page, "dangerous")
    approve = shown.get_by_role("button", name="Approve", exact=True)
    expect(approve).to_be_enabled()
    approve.dblclick()
    expect(approve).to_be_visible()  # the second press was a `Cancel` in the same place
    assert len(db.client.get("/v1/inbox")["items"]) == 1
    before = shown.get_by_role("button", name="Reject").bounding_box()
    approve.click()
    expect(shown).to_contain_text("Run this call? It starts at once.")
    assert shown.get_by_role("button", name="Reject").bounding_box() == before
    shown.get_by_role("button", name="Run it").click()
    expect(shown.get_by_role("status")).to_have_text("Approved")
    for button in shown.get_by_role("button").all():
        expect(button).to_be_disabled()
    page.mouse.move(1, 1)
    expect(page.locator(CARD)).to_have_count(0, timeout=KEPT_MS)
    expect(page.get_by_text("Nothing needs a decision.")).to_be_visible()
    assert (db.home.parent / "ran").read_text() == ".\n"


def test_a_rejected_command_does_not_run_and_its_comment_is_read(db: Served, page: Page) -> None:
    task = runs(db, "dangerous", "touch ran")
    visit(page, "view=inbox")
    shown = card(page, "dangerous")
    shown.get_by_role("textbox").fill("not here")
    press(shown, "Reject")
    expect(shown.get_by_role("status")).to_have_text("Rejected: not here")
    visit(page, f"view=inbox&task={task}")
    page.locator("#panel .call summary").click()
    expect(page.locator("#panel .call")).to_contain_text("not approved: not here")
    assert not (db.home.parent / "ran").exists()


def test_a_question_is_answered_with_a_choice_or_a_text_and_never_blank(db: Served, page: Page) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    task = asks(db, "curious", "Which one?", "left", "right")
    visit(page, "view=inbox")
    shown = card(page, "curious")
    expect(shown).to_contain_text("Answering lets the subagent continue with your text.")
    press(shown, "Answer")
    expect(shown.get_by_role("alert")).to_have_text("The answer must not be blank.")
    assert "POST" not in sent
    shown.get_by_role("button", name="right").click()
    expect(shown.get_by_role("button", name="right")).to_have_attribute("aria-pressed", "true")
    expect(shown.get_by_role("textbox")).to_have_value("right")
    press(shown, "Answer")
    expect(shown.get_by_role("status")).to_have_text("Answered: right")
    open_ended = asks(db, "open", "What is it called?")
    press(card(page, "What is it called?"), "Reject")
    expect(card(page, "What is it called?").get_by_role("status")).to_have_text("Rejected")
    assert {item["taskId"] for item in db.client.get("/v1/inbox")["items"]}.isdisjoint({task, open_ended})


def test_a_plan_is_markdown_and_its_rejection_needs_a_reason(db: Served, page: Page) -> None:
    plans(db, "tidy", MARKDOWN)
    visit(page, "view=inbox")
    shown = card(page, "tidy")
    expect(shown.locator(".markdown h3")).to_have_text("Title")
    expect(shown.locator(".markdown strong").first).to_have_text("bold")
    expect(shown).to_contain_text("the subagent writes a new plan (rejection 1 of 3)")
    press(shown, "Reject")
    expect(shown.get_by_role("alert")).to_have_text("Write a reason: the subagent reads it.")
    shown.get_by_role("textbox").fill("keep the archive")
    press(shown, "Reject")
    # The next plan has the same label, and may be there before the first card has left.
    over = page.locator(f"{CARD}[data-closed]")
    expect(over.get_by_role("status")).to_have_text("Rejected: keep the archive")
    again = page.locator(f"{CARD}:not([data-closed])")
    expect(again).to_contain_text("rejection 2 of 3")
    press(again, "Approve")
    expect(again).to_have_count(0)
    assert db.client.get("/v1/inbox")["items"] == []


def test_an_answer_that_waits_for_a_plan_says_so_in_chat_and_why(db: Served, page: Page) -> None:
    task = plans(db, "tidy", MARKDOWN)
    visit(page, "view=chat&session=agent:main:main")
    expect(page.locator(".turn-state")).to_have_text(
        "waiting for 1 subagent · the answer waits for your decision about the plan of “tidy”"
    )
    said = typed("why", "agent:main:main", state=db.home)
    first, *rest = said.out.splitlines()
    assert (said.code, first) == (0, "agent:main:main · waiting · 1 active subagent")
    assert f"Plan of tidy ({task}) needs a decision. No result of a subagent is read here before it." in rest
    assert any(line.startswith(f"  -> clutch approve {task} --hash ") for line in rest)
    (item,) = db.client.get("/v1/inbox")["items"]
    decide(db, item, "approve")
    expect(page.locator(".turn-state")).to_be_hidden()
    assert "needs a decision" not in typed("why", "agent:main:main", state=db.home).out


def test_a_budget_shows_its_figures_and_an_approval_raises_it(db: Served, page: Page) -> None:
    task = exhausts(db, "thirsty")
    visit(page, "view=inbox")
    shown = card(page, "thirsty")
    expect(shown).to_contain_text("100 of 50 used")
    expect(shown).to_contain_text("Approving raises the limit from 50 tokens to 150 tokens")
    expect(shown).to_contain_text("Rejecting ends the task as failed: the budget is exhausted.")
    press(shown, "Approve")
    expect(shown.get_by_role("status")).to_have_text("Approved")
    budget = db.client.get(f"/v1/tasks/{task}")["budget"]
    assert budget["tokens"] == 150


def test_a_changed_mcp_tool_shows_both_definitions(db: Served, page: Page) -> None:
    offers_tool(db, "find and send")
    visit(page, "view=inbox")
    shown = card(page, "MCP tool changed")
    expect(shown).to_contain_text("Server search, tool find")
    shown.get_by_text("The tool as it was approved").click()
    expect(shown.locator("details").first).to_contain_text("search the web")
    expect(shown).to_contain_text("offers the tool, as shown here, to all agents from their next turn on")
    press(shown, "Approve")
    expect(shown.get_by_role("status")).to_have_text("Approved")
    assert db.client.get("/v1/inbox")["items"] == []


def test_another_tool_shows_its_arguments_whole(db: Served, page: Page) -> None:
    @db.clutch.tool(needs_approval=True)
    def mail(to: str, words: str) -> str:
        """Send a mail."""
        return f"sent to {to}: {words}"

    calls(db, "mailer", {"tool": "mail", "args": {"to": "ada", "words": "hello"}})
    visit(page, "view=inbox")
    shown = card(page, "mailer")
    expect(shown).to_contain_text("Tool mail")
    expect(shown.locator(".card-text pre")).to_contain_text('"to": "ada"')
    expect(shown).to_contain_text("Approving makes this call once.")


# ---- where cards are -------------------------------------------------------------------------------------


def test_a_link_to_one_item_selects_it_and_says_when_it_is_gone(db: Served, page: Page) -> None:
    for name in ("one", "two", "three", "four"):
        asks(db, name, "What is it called?")
    expect(page.locator("a[data-view=inbox] .count")).to_have_text("4")
    items = db.client.get("/v1/inbox")["items"]
    load(page, db, f"view=inbox&item={items[-1]['id']}")
    expect(card(page, items[-1]["label"])).to_be_focused()
    expect(card(page, items[-1]["label"])).to_be_in_viewport()
    assert outline(card(page, items[-1]["label"])) == "solid"
    load(page, db, "view=inbox&item=q_000001")
    expect(page.get_by_text("q_000001 is not in the inbox: it was decided or withdrawn.")).to_be_visible()


def test_the_navigation_counts_and_the_inbox_filters_by_session(db: Served, page: Page) -> None:
    asks(db, "mine", "What is it called?")
    asks(db, "other", "What is it called?", requester="agent:main:chat:lab")
    expect(page.locator("a[data-view=inbox] .count")).to_have_text("2")
    page.get_by_role("link", name="Inbox 2").click()
    expect(page.locator(CARD)).to_have_count(2)
    page.get_by_label("Session").select_option("agent:main:chat:lab")
    expect(page.locator(CARD)).to_have_count(1)
    expect(card(page, "other")).to_be_visible()
    assert "session=agent" in page.url
    page.go_back()
    expect(page.locator(CARD)).to_have_count(2)


def test_a_line_above_the_tasks_decides_only_what_it_shows_whole(db: Served, page: Page) -> None:
    runs(db, "short", "touch ran")
    runs(db, "long", "true " * 60)
    plans(db, "tidy", MARKDOWN)
    expect(page.locator(".compact > li")).to_have_count(3)
    expect(card(page, "short").get_by_role("button", name="Approve")).to_be_visible()
    for name in ("long", "tidy"):
        expect(card(page, name).get_by_role("button")).to_have_count(0)
    exhausts(db, "fourth")
    expect(page.get_by_role("link", name="1 more decision in the Inbox")).to_be_visible()
    card(page, "long").get_by_role("link", name="Review").click()
    expect(page.locator(CARD)).to_have_count(4)
    expect(card(page, "long")).to_be_focused()


def test_a_decided_card_stays_until_its_place_is_not_below_the_pointer(db: Served, page: Page) -> None:
    page.clock.install()
    for name in ("one", "two", "three"):
        asks(db, name, "What is it called?")
    visit(page, "view=inbox")
    expect(page.locator(CARD)).to_have_count(3)
    first, last = (page.locator(CARD).nth(place) for place in (0, 2))
    last.get_by_role("button", name="Answer").hover()
    before = last.bounding_box()
    items = db.client.get("/v1/inbox")["items"]
    with page.expect_response("**/v1/inbox"):
        decide(db, items[0])
    expect(first).to_contain_text("Decided elsewhere, or withdrawn")
    # Twice as long as a decided card stays here (`hasten`), and too short for the page to miss the stream's `alive`.
    page.clock.run_for(2_500)
    assert last.bounding_box() == before
    page.mouse.move(400, 60)  # above the cards: nothing below the pointer moves
    page.clock.run_for(1_000)
    expect(page.locator(CARD)).to_have_count(2)


def decide(db: Served, item: dict[str, Any], decision: str = "answer") -> None:
    body = {"decision": decision, "text": "elsewhere", "hash": item["hash"]}
    db.client.post(f"/v1/inbox/{item['id']}", body)


# ---- keys ------------------------------------------------------------------------------------------------


def test_the_inbox_is_decided_with_the_keyboard_only(db: Served, page: Page) -> None:
    asks(db, "curious", "What is it called?")
    expect(page.locator(CARD)).to_have_count(1)
    runs(db, "dangerous", "touch ran")
    expect(page.locator(CARD)).to_have_count(2)
    asks(db, "unwanted", "What now?")
    expect(page.locator(CARD)).to_have_count(3)
    page.get_by_role("link", name="Inbox 3").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("approve or answer")).to_be_visible()
    expect(page.locator(CARD)).to_have_count(3)
    page.keyboard.press("a")  # no card is selected
    page.keyboard.press("r")
    page.keyboard.press("j")
    expect(card(page, "curious")).to_be_focused()
    page.keyboard.press("a")
    expect(card(page, "curious").get_by_role("textbox")).to_be_focused()
    page.keyboard.type("jkar")  # keys are text here
    page.keyboard.press("Control+Enter")
    expect(card(page, "curious").get_by_role("status")).to_have_text("Answered: jkar")
    page.keyboard.press("a")  # the card is decided: it takes no further key
    page.keyboard.press("j")
    expect(card(page, "dangerous")).to_be_focused()
    page.keyboard.press("a")
    expect(card(page, "dangerous").get_by_role("button", name="Run it")).to_be_visible()
    page.keyboard.press("Escape")
    expect(card(page, "dangerous").get_by_role("button", name="Run it")).to_be_hidden()
    page.keyboard.press("a")
    page.keyboard.press("a")  # too soon: a bouncing key confirms nothing
    expect(card(page, "dangerous").get_by_role("button", name="Run it")).to_be_visible()
    page.wait_for_function(
        "(since) => performance.now() - since > 600", arg=page.evaluate("performance.now()")
    )
    page.keyboard.press("a")
    expect(card(page, "dangerous").get_by_role("status")).to_have_text("Approved")
    page.keyboard.press("j")
    expect(card(page, "unwanted")).to_be_focused()
    page.keyboard.press("k")  # decided cards are passed over, and there is no open one above
    expect(card(page, "unwanted")).to_be_focused()
    page.keyboard.press("r")
    expect(card(page, "unwanted").get_by_role("status")).to_have_text("Rejected")
    expect(page.locator(CARD)).to_have_count(0, timeout=KEPT_MS)
    assert db.client.get("/v1/inbox")["items"] == []


def test_the_selection_does_not_jump_to_another_card_when_one_leaves(db: Served, page: Page) -> None:
    asks(db, "first", "What is it called?")
    expect(page.locator(CARD)).to_have_count(1)
    runs(db, "second", "touch ran")
    visit(page, "view=inbox")
    expect(page.locator(CARD)).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("r")
    expect(page.locator(CARD)).to_have_count(1, timeout=KEPT_MS)
    page.keyboard.press("r")  # meant for the one that has left
    page.keyboard.press("j")
    expect(card(page, "second")).to_be_focused()
    assert [item["label"] for item in db.client.get("/v1/inbox")["items"]] == ["second"]


# ---- undelivered -----------------------------------------------------------------------------------------


def test_an_undelivered_result_is_read_in_place_redelivered_and_discarded(db: Served, page: Page) -> None:
    audit = loses(db, "audit", "## Findings\n\nthe **token** is logged")
    loses(db, "second")
    load(page, db, "state=undelivered")  # the filter of the list that was here before
    assert page.url.endswith("/?view=undelivered")
    expect(page.locator(CARD)).to_have_count(2)
    shown = card(page, "audit")
    expect(shown.locator(".error")).to_have_text("undelivered (retry limit reached)")
    expect(shown).to_contain_text(re.compile(r"after 1 attempt"))
    expect(shown.get_by_role("link", name="agent:main:main")).to_be_visible()
    shown.get_by_text("Result", exact=True).click()
    expect(shown.locator(".markdown h3")).to_have_text("Findings")
    expect(shown.locator(".markdown strong")).to_have_text("token")
    shown.get_by_text("Delivery attempts").click()
    expect(shown.locator(".timeline")).to_contain_text("no such key")
    press(card(page, "second"), "Discard…")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The result stays readable in its task.")
    dialog.get_by_role("button", name="Cancel").click()
    expect(card(page, "second").get_by_role("button", name="Redeliver")).to_be_enabled()
    press(card(page, "second"), "Discard…")
    page.get_by_role("dialog").get_by_role("button", name="Discard").click()
    expect(card(page, "second").get_by_role("status")).to_have_text("Result skipped (discarded)")
    db.models.is_broken = False
    press(shown, "Redeliver")
    expect(shown.get_by_role("status")).to_have_text(re.compile("^Result deliver"))
    page.mouse.move(1, 1)
    expect(page.locator(CARD)).to_have_count(0, timeout=KEPT_MS)
    expect(page.get_by_text("Nothing is undelivered.")).to_be_visible()
    delivered(db, page, audit)
    assert db.client.get("/v1/tasks?state=undelivered")["tasks"] == []


def delivered(db: Served, page: Page, task: str) -> None:
    visit(page, f"task={task}")
    expect(page.locator("#panel .figures")).to_contain_text("result delivered", timeout=20_000)


def test_an_action_on_all_undelivered_shows_what_it_hits_and_acts_on_exactly_that(
    db: Served, page: Page
) -> None:
    hit = [loses(db, name) for name in ("one", "two", "three")]
    page.get_by_role("link", name="Undelivered 3").click()
    expect(page.locator(CARD)).to_have_count(3)
    page.get_by_role("button", name="Discard all 3…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".hit li")).to_have_count(3)
    later = loses(db, "came later")
    expect(card(page, "came later")).to_have_count(1)
    dialog.get_by_role("button", name="Discard 3").click()
    expect(dialog).to_have_count(0)
    expect(page.locator(f"{CARD}:not([data-closed])")).to_have_count(1)
    assert [one["taskId"] for one in db.client.get("/v1/tasks?state=undelivered")["tasks"]] == [later]
    for task in hit:
        assert "the finding" in db.client.get(f"/v1/tasks/{task}/result")["text"]
    loses(db, "a second one")
    expect(page.locator(f"{CARD}:not([data-closed])")).to_have_count(2)
    db.models.is_broken = False
    page.get_by_role("button", name="Redeliver all 2…").click()
    page.get_by_role("dialog").get_by_role("button", name="Redeliver 2").click()
    expect(page.locator(f"{CARD}:not([data-closed])")).to_have_count(0)
    delivered(db, page, later)


def test_undelivered_is_used_with_the_keyboard_only(db: Served, page: Page) -> None:
    loses(db, "audit")
    expect(page.locator("a[data-view=undelivered] .count")).to_have_text("1")
    page.locator("a[data-view=undelivered]").focus()
    page.keyboard.press("Enter")
    shown = card(page, "audit")
    shown.locator("summary").first.focus()
    page.keyboard.press("Enter")
    expect(shown.locator(".markdown")).to_contain_text("the finding")
    shown.get_by_role("button", name="Discard…").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("dialog").get_by_role("button", name="Discard")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Discard").focus()
    page.keyboard.press("Enter")
    expect(shown.get_by_role("status")).to_have_text("Result skipped (discarded)")


# ---- accessibility ---------------------------------------------------------------------------------------


def everything(db: Served) -> None:
    """One item of each kind, and a result that was not delivered."""
    family(db)
    runs(db, "dangerous", "touch ran\ntouch again", timeout_seconds=3)
    asks(db, "curious", "Which one?", "left", "right")
    plans(db, "tidy", MARKDOWN)
    exhausts(db, "thirsty")
    offers_tool(db)
    loses(db, "audit", MARKDOWN)


SMALL = """() => [...document.querySelectorAll("button, select, nav a, textarea, input, summary, main a")]
  .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.closest(".markdown"))
  .filter((one) => one.getBoundingClientRect().height < 44)
  .map((one) => one.outerHTML.slice(0, 80))"""


def test_axe_finds_nothing_in_filled_views(db: Served, browser: Browser) -> None:
    everything(db)
    with opened(browser, db, viewport=DESKTOP) as page:
        visit(page, "view=inbox")
        expect(page.locator(CARD)).to_have_count(5)
        expect(card(page, "thirsty").get_by_role("button", name="Approve")).to_be_enabled()
        violations(page, *WIDTHS)
        page.set_viewport_size(PHONE)
        assert page.evaluate(SMALL) == []
        page.set_viewport_size(DESKTOP)
        card(page, "dangerous").get_by_role("button", name="Approve", exact=True).click()
        expect(card(page, "dangerous").get_by_role("button", name="Run it")).to_be_visible()
        press(card(page, "thirsty"), "Reject")
        expect(card(page, "thirsty").get_by_role("status")).to_have_text("Rejected")
        violations(page, *WIDTHS)
        visit(page, "view=undelivered")
        shown = card(page, "audit")
        expect(shown.locator("summary")).to_have_count(2)
        for summary in shown.locator("summary").all():
            summary.click()
        expect(shown.locator(".markdown h3")).to_be_visible()
        expect(shown.get_by_role("button", name="Redeliver")).to_be_enabled()
        violations(page, *WIDTHS)
        page.set_viewport_size(PHONE)
        assert page.evaluate(SMALL) == []
        page.set_viewport_size(DESKTOP)
    db.let_go()


def test_axe_finds_nothing_in_empty_views(db: Served, browser: Browser) -> None:
    with opened(browser, db, viewport=DESKTOP) as page:
        for view, says in (
            ("inbox", "Nothing needs a decision."),
            ("undelivered", "Nothing is undelivered."),
        ):
            visit(page, f"view={view}")
            expect(page.get_by_text(says)).to_be_visible()
            violations(page, *WIDTHS)


def test_forced_colours_show_the_selection_and_motion_is_reduced(db: Served, browser: Browser) -> None:
    asks(db, "curious", "Which one?", "left", "right")
    with opened(browser, db, reduced_motion="reduce", forced_colors="active", **WIDE) as page:
        visit(page, "view=inbox")
        expect(page.locator(CARD)).to_have_count(1)
        page.keyboard.press("j")
        shown = card(page, "curious")
        assert shown.evaluate("(one) => getComputedStyle(one).outlineWidth") == "3px"
        shown.get_by_role("button", name="left").click()
        chosen = shown.get_by_role("button", name="left")
        assert chosen.evaluate("(one) => getComputedStyle(one).borderTopWidth") == "3px"
        moving = "() => document.getAnimations().filter((one) => one.playState === 'running').length"
        assert page.evaluate(moving) == 0
        violations(page)


# ---- hostile texts ---------------------------------------------------------------------------------------


def test_s26_no_word_of_an_item_is_ever_run_or_fetched(browser: Browser, tmp_path: Path) -> None:
    """200 strings through questions, choices, commands, plans, labels, results and tools of MCP servers."""
    with asking(tmp_path / "state") as db, opened(browser, db, **WIDE) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
        for start in range(0, len(HOSTILE), 20):
            some = HOSTILE[start : start + 20]
            name, text = some[0][:64], "\n\n".join(some)
            asks(db, name, text, *some[:4])
            runs(db, name, text, timeout_seconds=3)
            plans(db, name, text)
            loses(db, name, text)
        offers_tool(db, "\n".join(HOSTILE[:50]))
        visit(page, "view=inbox")
        expect(page.locator(CARD)).to_have_count(31, timeout=20_000)
        is_clean(page)
        for button in page.locator(".choices button").all():
            expect(button).to_have_attribute("aria-disabled", "false")
            button.click()
        load(page, db, f"view=inbox&item={HOSTILE[0]}&session={HOSTILE[1]}")
        expect(page.get_by_text("Nothing of this session needs a decision.")).to_be_visible()
        is_clean(page)
        visit(page, "view=undelivered")
        expect(page.locator(CARD)).to_have_count(10)
        for summary in page.locator("summary").all():
            summary.click()
        expect(page.locator(".markdown")).to_have_count(10)
        is_clean(page)
        load(page, db, f"view=undelivered&agent={HOSTILE[2]}")
        expect(page.get_by_text("No undelivered result matches these filters.")).to_be_visible()
        is_clean(page)
        assert all(one.startswith(str(db.clutch.url)) for one in asked)


def is_clean(page: Page) -> None:
    assert page.evaluate("window.ran") is None
    foreign = "main :is(script, img, iframe, svg, object, embed, style, link, base, form)"
    assert page.locator(foreign).count() == 0
    links = page.locator(".markdown a").evaluate_all("(all) => all.map((one) => one.protocol)")
    assert set(links) <= {"http:", "https:", "mailto:"}
