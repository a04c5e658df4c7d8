"""The chat of the dashboard in a real Chromium: streaming, subagents, queued messages, files, commands, restarts."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from clutch.core.agents import Agent
from clutch.core.messages import Answer, Call, Input, Results
from clutch.ports import Delta, DeltaKind, ModelError, ModelRequest, OnDelta, Trouble
from clutch.surfaces.http_client import session_path
from clutch.tools.registry import ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from tests.patience import PATIENCE_S
from tests.surfaces.served import Served, Slow, served
from tests.surfaces.test_dashboard import DEEP, DESKTOP, WIDTHS, free_port, gateway, opened, violations, visit
from tests.surfaces.test_page import HOSTILE, is_live
from tests.surfaces.typed import typed

MAIN = "agent:main:main"


class Talker(Slow):
    """`pieces` writes what the test puts into `pieces`, until None; `delegate NAME=TASK; …` starts these subagents;
    `use NAME` calls that tool; `fail` fails. A result of a subagent is answered with `Read.`"""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: asyncio.Queue[str | None] = asyncio.Queue()

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        place = max(n for n, one in enumerate(request.transcript) if isinstance(one, Input))
        last = request.transcript[place]
        assert isinstance(last, Input)
        is_first = not any(isinstance(one, Results) for one in request.transcript[place:])
        word, _, rest = last.text.rpartition("\n")[2].partition(" ")  # the text of a task stands last
        if last.source == "announce":
            return Answer("Read.", model="talker")
        if last.text == "pieces":
            return Answer(await self._written(on_delta), model="talker")
        if last.text == "fail":
            raise ModelError(Trouble.AUTH, "no such key")
        if word == "delegate" and is_first:
            pairs = (part.partition("=") for part in rest.split("; "))
            spawns = (Call("sessions_spawn", {"task": task, "label": name}) for name, _, task in pairs)
            return Answer("I divide the work.", tuple(spawns), model="talker")
        if word == "delegate" and last.source != "user":
            return Answer("", (Call("sessions_yield", {}),), model="talker")
        if word == "delegate":
            return Answer("Started.", model="talker")
        if word == "use" and is_first:
            return Answer("", (Call(rest, {"path": "."}),), model="talker")
        return await super().ask(request, on_delta)

    async def _written(self, on_delta: OnDelta) -> str:
        written = ""
        while (piece := await self.pieces.get()) is not None:
            written += piece
            on_delta(Delta(DeltaKind.TEXT, piece))
        return written


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """A busy machine makes no test fail: only a state that never comes does."""
    expect.set_options(timeout=1000 * PATIENCE_S)
    yield
    expect.set_options(timeout=5000)  # that of Playwright


def put(db: Served, *pieces: str | None) -> None:
    for piece in pieces:
        db.loop.call_soon_threadsafe(db.models.pieces.put_nowait, piece)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Served]:
    settings = ToolSettings(sandbox=Sandbox.OFF, shell_needs_approval=True)
    with served(tmp_path / "state", models=Talker(), policy=DEEP, settings=settings) as here:
        yield here


@pytest.fixture
def page(browser: Browser, db: Served) -> Iterator[Page]:
    with opened(browser, db, viewport={"width": 1280, "height": 800}) as shown:
        show(shown, db)
        yield shown


def show(page: Page, db: Served, session: str = MAIN) -> None:
    db.client.post(f"/v1/sessions/{session}")  # its text is followed from the first piece
    visit(page, f"view=chat&session={session}")
    expect(composer(page)).to_be_editable()


def composer(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message to the agent")


def say(page: Page, text: str) -> None:
    composer(page).fill(text)
    composer(page).press("Enter")


def bubbles(page: Page) -> Locator:
    return page.locator(".entry-person .bubble")


def sent(db: Served, text: str, session: str = MAIN) -> None:
    db.client.post(session_path(session, "messages"), {"text": text})


def settled(db: Served, session: str = MAIN) -> None:
    assert db.client.get(session_path(session, "settled"), timeoutSeconds=30)["settled"]


def answered(page: Page, text: str) -> Locator:
    return page.locator(".log .entry-agent").filter(has_text=text)


# ---- a turn ----------------------------------------------------------------------------------------------


def test_an_answer_streams_as_markdown_and_finished_blocks_are_not_rendered_again(
    db: Served, page: Page
) -> None:
    say(page, "pieces")
    expect(composer(page)).to_have_value("")
    expect(page.locator(".turn-state")).to_contain_text(re.compile(r"thinking… \d+ s"))
    expect(page.locator(".message-state").last).to_contain_text("seen")
    put(db, "The **first**", " block.\n\n- one\n")
    streamed = page.locator(".streamed")
    expect(streamed.locator("strong")).to_have_text("first")
    streamed.locator("strong").evaluate("(one) => { window.firstBlock = one; }")
    put(db, "- two\n\n```\ncode\n\nmore", "\n```\n\nThe *end")
    expect(streamed.locator("li")).to_have_count(2)
    expect(streamed.locator("pre")).to_contain_text("code")
    assert streamed.locator("strong").evaluate("(one) => one === window.firstBlock")
    expect(page.locator(".log .entry-agent")).to_have_count(0)
    put(db, "*.", None)
    whole = answered(page, "The end.")
    expect(whole).to_have_count(1)
    expect(whole.locator("em")).to_have_text("end")
    expect(whole.locator("pre")).to_have_text("code\n\nmore")
    expect(streamed).to_have_count(0)
    expect(page.locator(".turn-state")).to_be_hidden()


def test_a_message_during_a_turn_is_queued_and_read_after_it(db: Served, page: Page) -> None:
    say(page, "slow one")
    expect(page.locator(".turn-state")).to_contain_text("thinking…")
    say(page, "and then this")
    waiting = page.locator(".unread-messages .entry-person")
    expect(waiting).to_contain_text("and then this")
    expect(waiting).to_contain_text("queued until this turn ends")
    page.reload()
    expect(waiting).to_contain_text("and then this")
    db.let_go()
    expect(answered(page, "heard: and then this")).to_have_count(1)
    expect(waiting).to_have_count(0)
    expect(bubbles(page)).to_have_text(["slow one", "and then this"])


def test_stop_ends_the_turn_and_keeps_what_was_written(db: Served, page: Page) -> None:
    say(page, "pieces")
    put(db, "Half of a sentence")
    expect(page.locator(".streamed")).to_contain_text("Half of a sentence")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".entry-system")).to_have_text("Stopped.")
    expect(page.locator(".partial")).to_contain_text("Half of a sentence")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    say(page, "quick")
    expect(answered(page, "heard: quick")).to_have_count(1)


def test_stop_asks_before_it_stops_subagents(db: Served, page: Page) -> None:
    say(page, "delegate helper=slow work")
    expect(answered(page, "Started.")).to_have_count(1)
    say(page, "pieces")
    put(db, "words")
    expect(page.locator(".streamed")).to_contain_text("words")
    page.get_by_role("button", name="Stop").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 subagent of this conversation is running")
    dialog.get_by_role("button", name="Stop").click()
    expect(dialog).to_have_count(0)
    expect(page.locator(".entry-system")).to_have_text("Stopped.")
    expect(page.locator(".spawn")).to_have_attribute("data-status", "running")
    say(page, "/stop all")
    expect(dialog.get_by_role("checkbox")).to_be_checked()
    dialog.get_by_role("button", name="Stop").click()
    expect(page.locator(".spawn")).to_have_attribute("data-status", "killed")
    expect(composer(page)).to_have_value("")


def test_stop_as_a_command_ends_the_turn_only_and_stop_all_counts_the_whole_tree(
    db: Served, page: Page
) -> None:
    say(page, "delegate helper=delegate below=slow work")
    expect(answered(page, "Started.")).to_have_count(1)
    say(page, "pieces")
    put(db, "words")
    expect(page.locator(".streamed")).to_contain_text("words")
    expect(page.locator(".spawn")).to_contain_text("waiting for 1 of 1 subagent")
    is_active = f"/v1/tasks?root={MAIN}&state=active"
    before = {one["taskId"] for one in db.client.get(is_active)["tasks"]}
    assert len(before) == 2
    say(page, "/stop")
    expect(page.locator(".entry-system")).to_have_text("Stopped.")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(composer(page)).to_have_value("")
    assert {one["taskId"] for one in db.client.get(is_active)["tasks"]} == before
    say(page, "/stop")
    expect(page.locator(".entry-system").last).to_have_text("No turn is running here.")
    say(page, "/stop all")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 subagents of this conversation are running")
    dialog.get_by_role("button", name="Cancel").click()
    assert {one["taskId"] for one in db.client.get(is_active)["tasks"]} == before
    say(page, "/stop all")
    dialog.get_by_role("button", name="Stop").click()
    expect(page.locator(".entry-system").last).to_contain_text("stopped 2 subagents")
    assert db.client.get(is_active)["tasks"] == []


def test_a_turn_that_fails_says_so_and_stays_there(db: Served, page: Page) -> None:
    say(page, "fail")
    failed = page.locator(".entry-system.error")
    expect(failed).to_contain_text("This turn failed: ")
    expect(failed).to_contain_text("no such key")
    say(page, "quick")
    expect(answered(page, "heard: quick")).to_have_count(1)
    page.reload()
    expect(page.locator(".log > article")).to_have_text(
        [re.compile("fail"), re.compile("no such key"), re.compile("quick"), re.compile("heard: quick")]
    )


def test_a_call_of_an_unknown_tool_is_a_failed_block(db: Served, page: Page) -> None:
    say(page, "use no-such-tool")
    expect(page.locator(".call")).to_have_attribute("data-state", "failed")
    page.locator(".call summary").click()
    expect(page.locator(".call")).to_contain_text("no-such-tool")


def test_a_stream_that_is_joined_late_ends_as_the_whole_answer(db: Served, page: Page) -> None:
    say(page, "pieces")
    put(db, "The beginning, ")
    expect(page.locator(".streamed")).to_contain_text("The beginning")
    page.get_by_role("link", name=re.compile("^Tasks")).click()
    put(db, "the middle, ")
    page.get_by_role("link", name="Chat", exact=True).click()
    expect(bubbles(page)).to_have_count(1)
    put(db, "the end.")
    expect(page.locator(".streamed")).to_contain_text("the end.")
    put(db, None)
    expect(answered(page, "The beginning, the middle, the end.")).to_have_count(1)
    expect(page.locator(".streamed")).to_have_count(0)


def test_text_is_neither_lost_nor_doubled_when_the_page_shows_something_else_beside_it(
    db: Served, page: Page
) -> None:
    say(page, "delegate helper=slow work")
    expect(answered(page, "Started.")).to_have_count(1)
    say(page, "pieces")
    put(db, "begin ")
    expect(page.locator(".streamed")).to_contain_text("begin")
    words = [f"w{number} " for number in range(400)]
    for start in range(0, 400, 100):
        put(db, *words[start : start + 50])
        page.locator(".spawn").get_by_role("link").click()  # the stream brings the text of the task, too
        put(db, *words[start + 50 : start + 100])
        expect(page.locator("#panel h2")).to_have_text("helper")
        page.get_by_role("button", name="Close the task").click()
    put(db, "end")
    expect(page.locator(".streamed")).to_have_text(f"begin {''.join(words)}end")
    db.let_go()
    put(db, None)


# ---- subagents -------------------------------------------------------------------------------------------


def test_a_spawn_card_lives_until_its_result_is_delivered(db: Served, page: Page) -> None:
    say(page, "delegate quick one=quick; slow one=slow work; asker=run it")
    cards = page.locator(".spawn")
    expect(cards).to_have_count(3)
    slow = cards.filter(has_text="slow one")
    expect(slow).to_have_attribute("data-status", "running")
    expect(slow).to_contain_text(re.compile(r"thinking · step 1 · \d+ s"))
    expect(cards.filter(has_text="asker")).to_have_attribute("data-status", "needs approval")
    ask = page.locator(".ask")
    expect(ask).to_contain_text("touch ran")
    expect(ask.get_by_role("link")).to_have_attribute("href", "/?view=inbox")
    db.let_go()
    expect(slow).to_have_attribute("data-status", "done")
    (item,) = db.client.get("/v1/inbox")["items"]
    db.client.post(f"/v1/inbox/{item['id']}", {"decision": "reject", "text": "no", "hash": item["hash"]})
    expect(ask).to_have_count(0)
    expect(cards.filter(has_text="result delivered")).to_have_count(3)
    delivered = page.locator(".entry-delivered li")
    expect(delivered.filter(has_text="slow one")).to_have_text("Result of slow one delivered · done")
    expect(answered(page, "Read.").first).to_be_visible()
    delivered.filter(has_text="slow one").get_by_role("link").click()
    expect(page.locator("#panel h2")).to_have_text("slow one")
    expect(page.get_by_role("tab", name="Result")).to_have_attribute("aria-selected", "true")
    page.get_by_role("button", name="Close the task").click()
    slow.get_by_role("link").click()
    expect(page.locator("#panel .activity")).to_contain_text("slow work")
    page.go_back()
    expect(page.locator("#panel")).to_be_hidden()


def test_tool_calls_fold_with_their_input_and_output(db: Served, page: Page, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("x")
    say(page, "look around")
    call = page.locator(".log .call")
    expect(call).to_have_attribute("data-state", "done")
    call.locator("summary").click()
    expect(call).to_contain_text("notes.md")


# ---- the composer ----------------------------------------------------------------------------------------


def test_a_file_is_completed_added_and_protected_files_are_refused(
    db: Served, page: Page, tmp_path: Path
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "plan.md").write_text("the plan of it all")
    (tmp_path / "outside").symlink_to("/etc")
    composer(page).press_sequentially("@")
    expect(page.get_by_role("option")).to_have_text(["@docs/"])  # neither the state directory nor a symlink
    composer(page).fill("")
    composer(page).press_sequentially("read @pl")
    options = page.get_by_role("option")
    expect(options).to_have_text(["@docs/plan.md"])
    expect(composer(page)).to_have_attribute("aria-activedescendant", re.compile("composer-list-0"))
    page.keyboard.press("Tab")
    expect(composer(page)).to_have_value("read @docs/plan.md ")
    composer(page).press_sequentially("and @d")
    options.first.click()
    expect(composer(page)).to_have_value("read @docs/plan.md and @docs/")
    expect(options).to_have_text(["@docs/plan.md"])
    page.keyboard.press("Escape")
    expect(options).to_have_count(0)
    composer(page).fill("read @docs/plan.md")
    page.keyboard.press("Escape")
    composer(page).press("Enter")
    expect(answered(page, "the plan of it all")).to_have_count(1)
    said = page.locator(".composer .said")
    for name, why in (
        ("state/token", "state directory of Clutch"),
        ("outside/passwd", "symlinks are not followed"),
    ):
        composer(page).fill(f"read @{name}")
        page.keyboard.press("Escape")
        composer(page).press("Enter")
        expect(said).to_contain_text(why)
        expect(composer(page)).to_have_value(f"read @{name}")
    expect(bubbles(page)).to_have_count(1)
    composer(page).fill("why does @/components/x import @../x?")  # no paths of the workspace: plain text
    page.keyboard.press("Escape")
    composer(page).press("Enter")
    expect(bubbles(page)).to_have_count(2)
    expect(bubbles(page).last).to_have_text("why does @/components/x import @../x?")
    token = (db.home / "token").read_text()
    assert token not in json.dumps(db.client.get(session_path(MAIN, "transcript")))


def test_commands_are_completed_and_answered_on_a_line_of_their_own(db: Served, page: Page) -> None:
    composer(page).press_sequentially("/st")
    expect(page.get_by_role("option")).to_have_text([re.compile("/steer"), re.compile("/stop"), "/status"])
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(composer(page)).to_have_value("/status ")
    page.keyboard.press("Enter")
    expect(page.locator(".entry-system")).to_contain_text("State: idle, 0 messages waiting")
    say(page, "/nonsense")
    expect(page.locator(".entry-system").last).to_contain_text("There is no command /nonsense.")
    say(page, "/help")
    expect(page.locator(".entry-system").last).to_contain_text("/queue")
    expect(bubbles(page)).to_have_count(0)


def test_a_draft_survives_a_reload_and_belongs_to_its_session(db: Served, page: Page) -> None:
    sent(db, "hello", "agent:main:chat:other")
    composer(page).fill("half a thought")
    composer(page).press("Shift+Enter")
    page.keyboard.type("second line")
    page.reload()
    expect(composer(page)).to_have_value("half a thought\nsecond line")
    page.get_by_role("link", name=re.compile("other")).click()
    expect(composer(page)).to_have_value("")
    page.go_back()
    expect(composer(page)).to_have_value("half a thought\nsecond line")
    expect(bubbles(page)).to_have_count(0)


LOSE = """() => {
  const real = window.fetch;
  window.fetch = async (to, options) => {
    const answer = await real(to, options);
    if (to.endsWith("/messages")) throw new TypeError("the answer was lost");
    return answer;
  };
}"""


def test_an_unconfirmed_draft_that_is_changed_is_another_message(db: Served, page: Page) -> None:
    page.evaluate(LOSE)
    say(page, "first text")
    expect(page.locator(".composer .said")).to_contain_text("Not confirmed yet")
    page.route("**/v1/chats", lambda route: route.abort())
    page.reload()
    expect(composer(page)).to_have_value("first text")
    composer(page).fill("second text")
    page.unroute("**/v1/chats")
    is_live(page)
    composer(page).press("Enter")
    expect(bubbles(page)).to_have_text(["first text", "second text"])
    expect(composer(page)).to_have_value("")


# ---- conversations ---------------------------------------------------------------------------------------


def test_conversations_are_listed_with_marks_and_have_addresses(db: Served, page: Page) -> None:
    sent(db, "first words", "agent:main:chat:letters")
    line = page.locator(".chats li").filter(has_text="letters")
    expect(line).to_contain_text("heard: first words")
    expect(line).to_have_attribute("data-mark", "unread")
    sent(db, "slow words", "agent:main:chat:letters")
    expect(line).to_have_attribute("data-mark", "working")
    expect(page.locator(".chats li").first).to_contain_text("letters")
    line.get_by_role("link").click()
    assert "session=agent%3Amain%3Achat%3Aletters" in page.url
    expect(bubbles(page)).to_have_text(["first words", "slow words"])
    db.let_go()
    expect(line).to_have_attribute("data-mark", "")
    page.go_back()
    expect(page.locator(".chat-head")).to_contain_text("main session")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".chat-head")).to_contain_text(re.compile(r"\d{4}-\d\d-\d\d"))
    expect(page.get_by_text("No messages yet. Write the first one below.")).to_be_visible()
    say(page, "a new start")
    expect(answered(page, "heard: a new start")).to_have_count(1)
    expect(page.locator(".chats li").first).to_contain_text("heard: a new start")


def test_a_new_chat_asks_for_the_agent_if_there_are_several(browser: Browser, tmp_path: Path) -> None:
    policy = replace(DEEP, agents={"writer": Agent("writer")})
    with served(tmp_path / "state", models=Talker(), policy=policy) as db, opened(browser, db) as page:
        show(page, db)
        page.get_by_role("button", name="New chat").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Agent").select_option("writer")
        violations(page)
        dialog.get_by_role("button", name="Open").click()
        expect(page.locator(".chat-head")).to_contain_text("writer")
        say(page, "quick")
        expect(answered(page, "heard: quick")).to_have_count(1)
        chat = db.client.get("/v1/chats")["chats"][0]
        assert chat["agentId"] == "writer"


def test_earlier_messages_load_by_the_cursor_and_the_place_is_kept(db: Served, page: Page) -> None:
    for number in range(60):
        sent(db, f"message number {number}")
        settled(db)
    page.reload()
    expect(bubbles(page)).to_have_count(25)
    expect(bubbles(page).last).to_be_in_viewport()
    first = bubbles(page).first
    first.scroll_into_view_if_needed()
    text = first.inner_text()
    before = bubbles(page).filter(has_text=re.compile(f"^{text}$"))
    top = before.bounding_box()
    assert top is not None
    page.get_by_role("button", name="Load earlier").click()
    expect(bubbles(page)).to_have_count(50)
    now = before.bounding_box()
    assert now is not None
    assert abs(now["y"] - top["y"]) < 2
    page.get_by_role("button", name="Load earlier").click()
    expect(bubbles(page)).to_have_count(60)
    expect(page.get_by_role("button", name="Load earlier")).to_be_hidden()
    sent(db, "news")
    expect(answered(page, "heard: news")).to_have_count(1)
    expect(bubbles(page).last).not_to_be_in_viewport()
    page.get_by_role("button", name="Jump to newest").click()
    expect(bubbles(page).last).to_be_in_viewport()
    sent(db, "more news")
    expect(answered(page, "heard: more news")).to_be_in_viewport()
    expect(page.get_by_role("button", name="Jump to newest")).to_be_hidden()


# ---- restarts --------------------------------------------------------------------------------------------


def test_a_conversation_survives_kill_9_with_no_lost_and_no_doubled_message(
    browser: Browser, tmp_path: Path
) -> None:
    home, port = tmp_path / "state", free_port()
    for number in range(4):
        (tmp_path / f"notes{number}.md").write_text("TODO: write it")
    with browser.new_context() as context:
        page = context.new_page()
        with gateway(home, port) as running:
            page.goto(typed("open", "--print", "--json", state=home).body["url"])
            is_live(page)
            page.goto(f"http://127.0.0.1:{port}/?view=chat&session={MAIN}")
            is_live(page)
            say(page, "Survey the folder")
            cards = page.locator(".spawn[data-task]")
            expect(cards).not_to_have_count(0)
            page.evaluate("window.isSamePage = true")
            os.kill(running.pid, signal.SIGKILL)
            expect(page.locator("html")).to_have_attribute("data-connection", "lost")
            say(page, "are you back?")
            expect(page.locator(".composer .said")).to_contain_text("Not confirmed yet")
            expect(composer(page)).to_have_value("are you back?")
        with gateway(home, port):
            expect(page.locator("#connection")).to_have_text("Live")
            expect(composer(page)).to_have_value("")
            expect(bubbles(page)).to_have_text(["Survey the folder", "are you back?"])
            finished = page.locator(".spawn[data-status=done]").filter(has_text="result delivered")
            expect(finished).to_have_count(cards.count())
            expect(page.locator(".turn-state")).to_be_hidden(timeout=20_000)
            assert page.evaluate("window.isSamePage")
            seqs = "(all) => all.map((one) => one.dataset.seq).filter(Boolean)"
            shown = page.locator(".log > article").evaluate_all(seqs)
            assert shown == sorted(set(shown), key=int)
            page.reload()
            expect(bubbles(page)).to_have_text(["Survey the folder", "are you back?"])
            assert page.locator(".log > article").evaluate_all(seqs) == shown


# ---- hostile texts, keys, narrow screens -----------------------------------------------------------------


def test_hostile_texts_stay_texts(db: Served, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    sent(db, "\n".join(HOSTILE))
    settled(db)
    sent(db, f"use {HOSTILE[1]}")
    settled(db)
    sent(db, f"delegate {HOSTILE[9][:60].replace('=', '-')}=quick; {HOSTILE[2][:30].replace('=', '-')}=quick")
    expect(page.locator(".spawn")).to_have_count(2)
    expect(page.locator(".call code")).to_have_text(HOSTILE[1])
    expect(page.locator(".spawn").filter(has_text="result delivered")).to_have_count(2)
    composer(page).fill("pieces")
    composer(page).press("Enter")
    put(db, *(f"{one}\n\n" for one in HOSTILE), None)
    expect(page.locator(".streamed")).to_have_count(0)
    say(page, f"/{'<img src=x onerror=window.ran=1>'}")
    page.goto(f"{db.clutch.url}/?view=chat&session=<img src=x onerror=window.ran=1>")
    expect(page.locator(".chat-head")).to_contain_text("<img")
    assert page.evaluate("window.ran") is None
    assert page.locator("#view :is(script, img, iframe, svg, object, embed, base, link, style)").count() == 0
    assert all(one.startswith(str(db.clutch.url)) for one in asked)


def test_a_conversation_needs_no_pointer(db: Served, page: Page, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("x")
    sent(db, "hello", "agent:main:chat:other")
    expect(page.locator(".chats li")).to_have_count(2)
    page.get_by_role("button", name="New chat").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name=re.compile("other"))).to_be_focused()
    page.keyboard.press("Enter")
    expect(composer(page)).to_be_focused()
    page.keyboard.type("look around")
    page.keyboard.press("Enter")
    expect(page.locator(".log .call")).to_have_attribute("data-state", "done")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.locator(".log .call summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".log .call pre").last).to_contain_text("notes.md")
    composer(page).focus()
    page.keyboard.type("pieces")
    page.keyboard.press("Enter")
    put(db, "going on")
    expect(page.locator(".streamed")).to_contain_text("going on")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Stop")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".entry-system")).to_have_text("Stopped.")


SMALL = """() => [...document.querySelectorAll("button, select, nav a, .spawn a, .ask a, .back, textarea, input")]
  .filter((one) => one.checkVisibility({ visibilityProperty: true }) && one.getBoundingClientRect().height < 44)
  .map((one) => one.outerHTML.slice(0, 80))"""


def test_a_phone_shows_the_list_or_the_conversation(db: Served, browser: Browser) -> None:
    sent(db, "delegate asker=run it; helper=slow work")
    sent(db, "hello", "agent:main:chat:other")
    with opened(browser, db, viewport={"width": 390, "height": 844}, has_touch=True) as page:
        page.get_by_role("link", name="Chat", exact=True).click()
        expect(page.locator(".chats li")).to_have_count(2)
        expect(page.locator(".chat-pane")).to_be_hidden()
        assert page.evaluate(SMALL) == []
        page.get_by_role("link", name=re.compile("main session")).click()
        expect(page.locator(".chat-list")).to_be_hidden()
        expect(page.locator(".ask")).to_be_visible()
        expect(composer(page)).to_be_in_viewport()
        assert page.evaluate(SMALL) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.get_by_role("link", name="All conversations").click()
        expect(page.locator(".chats li")).to_have_count(2)
    db.let_go()


def test_axe_finds_nothing(db: Served, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("x")
    sent(db, "look around")
    settled(db)
    sent(db, "delegate asker=run it; helper=slow work; quick one=quick")
    with opened(browser, db, viewport=DESKTOP) as page:
        show(page, db)
        expect(page.locator(".ask")).to_have_count(1)
        expect(page.locator(".entry-delivered")).to_have_count(1)
        violations(page, *WIDTHS)
        page.locator(".log .call summary").first.click()
        say(page, "pieces")
        put(db, "# A title\n\nSome *text*\n\n```\ncode\n```\n")
        expect(page.locator(".streamed pre")).to_be_visible()
        say(page, "queued words")
        expect(page.locator(".unread-messages .bubble")).to_be_visible()
        violations(page, *WIDTHS)
        composer(page).press_sequentially("@no")
        expect(page.get_by_role("option").first).to_be_visible()
        violations(page, *WIDTHS)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Stop").click()
        violations(page, *WIDTHS)
        page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.locator(".entry-system")).to_be_visible()
        violations(page, *WIDTHS)
        visit(page, "view=chat")
        violations(page, *WIDTHS)
    db.let_go()


def test_motion_is_reduced_and_forced_colours_keep_the_marks(db: Served, browser: Browser) -> None:
    sent(db, "slow words")
    with opened(browser, db, reduced_motion="reduce", forced_colors="active") as page:
        show(page, db)
        mark = page.locator(".chats [data-mark=working] .dot")
        expect(mark).to_be_visible()
        assert mark.evaluate("(one) => getComputedStyle(one).forcedColorAdjust") == "none"
        moving = "() => document.getAnimations().filter((one) => one.playState === 'running').length"
        assert page.evaluate(moving) == 0
    db.let_go()
