"""Random double clicks on an inbox that changes: each decision is about the item that stood below the pointer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from playwright.sync_api import Browser, Page, Response, expect

from clutch.core.ids import question_id, task_id
from clutch.core.model import Reason
from clutch.store.transaction import Tx
from clutch.surfaces.http_client import Declined
from tests.surfaces.asking import asking, asks, plans, runs
from tests.surfaces.served import Served
from tests.surfaces.test_dashboard import opened, visit
from tests.surfaces.test_page import CARD

CLICKS = 200
SCREEN: Any = {"width": 1280, "height": 2000}  #: high enough for all cards
OPEN_MAX = 9
HASTENED = 2
#: What stands below the pointer for a shorter time, no user has seen there.
SEEN_MS = 300 // HASTENED
#: Record in the page what each press hits, and whether the same item stood at that point before.
RECORD = """(seenMs) => {
  window.presses = [];
  const frames = [];
  const note = () => {
    const cards = [...document.querySelectorAll(".cards > li")].map((one) => {
      const { top, bottom } = one.getBoundingClientRect();
      return [one.dataset.item, top, bottom];
    });
    frames.push([performance.now(), cards]);
    if (frames.length > 1000) frames.shift();
    requestAnimationFrame(note);
  };
  note();
  addEventListener("pointerdown", ({ clientX, clientY }) => {
    const hit = document.elementFromPoint(clientX, clientY);
    const item = hit?.closest(".cards > li")?.dataset.item ?? null;
    const before = frames.findLast(([at]) => at <= performance.now() - seenMs)?.[1] ?? [];
    const stood = before.some(([id, top, bottom]) => id === item && top <= clientY && clientY <= bottom);
    window.presses.push({ item, stood, text: hit?.closest("button")?.textContent ?? "" });
  }, true);
  // Links lead to other views; this user stays here.
  addEventListener("click", (event) => { if (event.target.closest("a")) event.preventDefault(); }, true);
}"""
#: Where the buttons are that a user could aim at: all, or those that take presses.
TARGETS = """(selector) => [...document.querySelectorAll(selector)]
  .filter((one) => !one.disabled && one.checkVisibility({ visibilityProperty: true }))
  .map((one) => one.getBoundingClientRect())
  .map(({ x, y, width, height }) => [x + width / 2, y + height / 2])
  .filter(([, y]) => y > 60 && y < innerHeight - 10)"""
DECIDING = {"Reject", "Run it", "Approve", "Answer"}


class Storm:
    """A user who clicks anywhere, and another one who decides elsewhere."""

    def __init__(self, db: Served, page: Page, seed: int) -> None:
        self.db, self.page, self.random = db, page, random.Random(seed)
        self.clicks, self.made, self.elsewhere = 0, 0, set[str]()
        self.sent: dict[str, bool] = {}  #: of the page: by item, whether it was accepted
        page.on("response", self._note)

    def _note(self, answer: Response) -> None:
        head, _, item = answer.url.rpartition("/v1/inbox/")
        if head and answer.request.method == "POST":
            self.sent[unquote(item)] = answer.ok

    def items(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.db.client.get("/v1/inbox")["items"]
        return found

    def change(self) -> None:
        items, dice = self.items(), self.random.random()
        if len(items) < OPEN_MAX and dice < 0.5:
            self.add()
        elif items and dice > 0.85:
            one = self.random.choice(items)
            body = {"decision": "reject", "text": "elsewhere", "hash": one["hash"]}
            try:
                self.db.client.post(f"/v1/inbox/{one['id']}", body)
            except Declined:
                return  # the page was faster
            self.elsewhere.add(one["id"])

    def add(self) -> None:
        self.made += 1
        name = f"item {self.made}"
        match self.random.randrange(3):
            case 0:
                asks(self.db, name, "Which one?", "left", "right")
            case 1:
                runs(self.db, name, f"touch ran-{self.made}")
            case _:
                plans(self.db, name, "a plan\n" * self.random.randrange(1, 12))

    def click(self) -> None:
        """A double click: at a button that the user saw a moment ago, or anywhere. Or the pointer leaves."""
        dice = self.random.random()
        aimed = ".cards button" if dice < 0.4 else '.cards button[aria-disabled="false"]'
        targets = self.page.evaluate(TARGETS, aimed)
        self.change()  # between the aim and the press
        if dice < 0.15:
            self.page.mouse.move(5, self.random.randrange(100, 700))
            return
        x, y = self.random.randrange(200, 1260), self.random.randrange(60, 1990)
        if dice < 0.85 and targets:
            x, y = self.random.choice(targets)
        self.page.mouse.dblclick(x, y)
        self.clicks += 1


def decided(now: float) -> Tx[set[str]]:
    """What the gateway has recorded: questions that a user has answered, and plans that were approved or rejected."""
    del now
    answered = yield "SELECT id FROM questions WHERE answered_at IS NOT NULL AND decision <> 'void'", ()
    reasons = (Reason.PLAN_APPROVED, Reason.PLAN_SENT_BACK, Reason.PLAN_REJECTED)
    rows = yield "SELECT task_id FROM events WHERE reason IN (?, ?, ?)", tuple(one.value for one in reasons)
    return {question_id(row[0]) for row in answered} | {task_id(row[0]) for row in rows}


def test_no_press_decides_about_an_item_that_was_not_below_the_pointer(
    browser: Browser, tmp_path: Path
) -> None:
    with asking(tmp_path / "state") as db, opened(browser, db, HASTENED, viewport=SCREEN) as page:
        storm = Storm(db, page, seed=15)
        visit(page, "view=inbox")
        for _ in range(4):
            storm.add()
        expect(page.locator(CARD)).to_have_count(4)
        page.evaluate(RECORD, SEEN_MS)
        while storm.clicks < CLICKS:
            storm.click()
            # Between two clicks some cards stand long enough to be pressed.
            page.wait_for_timeout(storm.random.randrange(250 // HASTENED))
        page.mouse.move(5, 5)
        page.wait_for_function(
            "() => ![...document.querySelectorAll('.said')].some((one) => one.textContent === 'Sending')"
        )
        presses = page.evaluate("window.presses")
        recorded = db.run(db.clutch.services.db.read(decided))
        accepted = {item for item, is_ok in storm.sent.items() if is_ok}
        print(f"{len(presses)} presses, {len(accepted)} decisions, {len(storm.elsewhere)} elsewhere")
        assert len(presses) == 2 * CLICKS
        assert len(accepted) >= 5
        assert len(storm.elsewhere) >= 5
        assert recorded == accepted | storm.elsewhere
        meant = {one["item"] for one in presses if one["text"] in DECIDING and one["stood"]}
        assert set(storm.sent) <= meant
