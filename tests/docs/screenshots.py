"""`make screenshots`: the pictures of the dashboard in README and docs, taken from a real run.

A gateway runs a small team of agents whose model is scripted, so that each recording shows the same work. Everything
else is real: tools read files, tasks wait for each other and for the user, results are delivered, calls are priced.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from clutch.core.messages import Answer, Call, Input, Usage
from clutch.core.policy import Limits
from clutch.ports import Delta, DeltaKind, ModelRequest, OnDelta
from clutch.tools.registry import ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from tests.conftest import CHROMIUM, NO_REQUESTS
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.typed import typed

PICTURES: Final = Path(__file__).parents[2] / "docs" / "pictures"
PATIENCE_MS: Final = 60_000
MODEL: Final = "anthropic:claude-sonnet-4-5"  #: names the price list; no request leaves this machine
ROOM: Final = replace(FAST, limits=Limits(children_max=20, retained_max=100, depth_max=3))

FILES: Final = {
    "docs/auth.md": "# Auth endpoints\n\nPOST /token\nTODO: document refresh tokens\nPOST /revoke\n",
    "docs/billing.md": "# Billing endpoints\n\nGET /invoices\nTODO: say how credits expire\n",
    "docs/errors.md": "# Error codes\n\n400 bad request\n429 rate limited\n",
    "docs/webhooks.md": "# Webhooks\n\nThree retries, then the endpoint is disabled.\n",
    "quotes.csv": "vendor,price\nNorth,1200\nSouth,1150\n",
}
REQUEST: Final = "Read the API docs, run the tests, compare the quotes, and draft the release notes."
REPORT: Final = """## Webhook endpoints

| finding | where |
|---|---|
| Retries are documented | `docs/webhooks.md` |
| The signature header is **not** named | `docs/webhooks.md` |

1. Name the header `X-Signature`.
2. Say after which time a retry is made.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One answer of the model, after so many seconds. `holds`: it is still thinking when the pictures are taken."""

    after_s: float
    text: str
    calls: tuple[Call, ...] = ()
    holds: bool = False


def spawn(label: str, task: str) -> Call:
    return Call("sessions_spawn", {"task": task, "label": label})


WAIT: Final = Call("sessions_yield", {})
HELD: Final = Step(0.2, "", holds=True)
STORY: Final[Mapping[str, Sequence[Step]]] = {
    REQUEST: (
        Step(
            1.0,
            "I divide this into four parts and work on them at the same time.",
            (
                spawn("Read the API docs", "read the docs"),
                spawn("Run the tests", "run the tests"),
                spawn("Compare vendor quotes", "compare the quotes"),
                spawn("Draft the release notes", "draft the notes"),
            ),
        ),
        Step(0.5, "Four subagents are working. I report when they are done."),
        Step(0.5, "One of them asks you which vendor to choose: please decide in the inbox."),
    ),
    "read the docs": (
        Step(
            0.8,
            "Two areas, two subagents.",
            (spawn("Endpoints", "read the endpoints"), spawn("Error codes", "errors")),
        ),
        Step(0.3, "", (WAIT,)),
        HELD,
    ),
    "read the endpoints": (
        Step(
            0.6,
            "One subagent for each file.",
            (
                spawn("Auth endpoints", "auth"),
                spawn("Billing endpoints", "billing"),
                spawn("Webhooks", "hooks"),
            ),
        ),
        Step(0.3, "", (WAIT,)),
        HELD,
    ),
    "auth": (
        Step(1.2, "Let me look at what is there.", (Call("list", {"path": "docs"}),)),
        Step(
            1.5, "I search for the relevant places.", (Call("search", {"pattern": "TODO", "path": "docs"}),)
        ),
        Step(1.0, "Reading the most promising file.", (Call("read", {"path": "docs/auth.md"}),)),
        HELD,
    ),
    "billing": (Step(1.6, "", (Call("read", {"path": "docs/billing.md"}),)), HELD),
    "hooks": (Step(1.0, "", (Call("read", {"path": "docs/webhooks.md"}),)), Step(1.5, REPORT)),
    "errors": (
        Step(1.4, "", (Call("read", {"path": "docs/errors.md"}),)),
        Step(1.2, "Two codes are documented, **429** without its `Retry-After`."),
    ),
    "run the tests": (
        Step(1.0, "", (Call("shell", {"command": "rm -rf build && make test"}),)),
        HELD,
    ),
    "compare the quotes": (
        Step(0.7, "", (Call("read", {"path": "quotes.csv"}),)),
        Step(
            0.9,
            "",
            (
                Call(
                    "ask_human",
                    {
                        "question": "South is cheaper and delivers a week later. Which one?",
                        "choices": ["North", "South"],
                    },
                ),
            ),
        ),
    ),
    "draft the notes": (Step(1.5, "", (Call("list", {"path": "."}),)), HELD),
    "summarise the PDF": (Step(0.5, "The summary has four lines.\n\nSUMMARY: done"),),
}


class Team:
    """A model that answers by the story, with the time and the tokens that a real one might take."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        first = next(one.text for one in request.transcript if isinstance(one, Input)).rpartition("\n")[2]
        steps = STORY.get(first, (Step(0.2, "Noted."),))
        done = sum(isinstance(one, Answer) for one in request.transcript)
        step = steps[min(done, len(steps) - 1)]
        await asyncio.sleep(step.after_s)
        if step.holds:
            await self._think_aloud(on_delta)
        used = Usage(input=2400 + 900 * done, output=120 + 40 * len(step.calls), cache_read=800 * done)
        return Answer(step.text, step.calls, model=MODEL, usage=used)

    async def _think_aloud(self, on_delta: OnDelta) -> None:
        """Write for as long as the pictures are taken, so that a page that is opened meanwhile shows some of it."""
        while not self.go.is_set():
            on_delta(Delta(DeltaKind.TEXT, "Two endpoints have open points. "))
            with suppress(TimeoutError):
                await asyncio.wait_for(self.go.wait(), 5.0)


@contextmanager
def gateway(folder: Path) -> Iterator[Served]:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    settings = ToolSettings(sandbox=Sandbox.OFF, shell_needs_approval=True)
    with served(folder / "state", models=Team(), policy=ROOM, settings=settings, model=MODEL) as db:
        yield db
        db.let_go()


@contextmanager
def page_of(browser: Browser, db: Served, **options: Any) -> Iterator[Page]:
    with browser.new_context(**options) as context:
        page = context.new_page()
        page.goto(typed("open", "--print", "--json", state=db.home).body["url"])
        expect(page.locator("#connection")).to_have_text("Live")
        yield page


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, chromium_sandbox=os.geteuid() != 0, args=list(NO_REQUESTS)
        )
        yield browser
        browser.close()


def shoot(page: Page, name: str) -> None:
    PICTURES.mkdir(exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", animations="disabled")


def begin(db: Served, page: Page) -> str:
    """Start the team, and return the task whose panel the pictures show when all of them have reached their place."""
    db.client.post("/v1/sessions/agent:main:main/messages", {"text": REQUEST})
    for label in ("Webhooks", "Error codes"):
        expect(row(page, label)).to_have_attribute("data-status", "done", timeout=PATIENCE_MS)
    row(page, "Auth endpoints").get_by_role("link").click()
    expect(page.locator("#panel .live")).to_contain_text("open points", timeout=PATIENCE_MS)
    return str(row(page, "Read the API docs").get_attribute("data-task"))


def row(page: Page, label: str) -> Locator:
    return page.locator(".row").filter(has=page.get_by_role("link", name=label, exact=True)).first


#: Name of a picture -> the address, where `TREE` is the top of the tree, and what must be there before it is taken.
VIEWS: Final[Mapping[str, tuple[str, str]]] = {
    "inbox": ("view=inbox", ".cards li"),
    "chat": ("view=chat&session=agent:main:main", ".entry-agent"),
    "costs": ("view=costs", "table"),
    "health": ("view=health", "text=Workers and leases"),
    "timeline": ("view=timeline&task=TREE", "#view svg"),
}
TERMINAL: Final = (120, 32)  #: columns, lines
WIDE: Final[dict[str, Any]] = {"viewport": {"width": 1280, "height": 800}}
PHONE: Final[dict[str, Any]] = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
    "device_scale_factor": 2,
}


async def draw_top(db: Served) -> str:
    """Return the terminal dashboard as an SVG that loads no font from elsewhere."""
    from clutch.cli.top.connection import LiveConnection
    from clutch.cli.top.dashboard import Dashboard

    app = Dashboard(LiveConnection(db.home, db.client))
    async with app.run_test(size=TERMINAL) as pilot:
        async with asyncio.timeout(PATIENCE_MS / 1000):
            while not any(one["label"] == "Auth endpoints" for one in app.known.tasks.values()):
                await pilot.pause(0.1)
        app.task_list.select(
            next(id for id, one in app.known.tasks.items() if one["label"] == "Auth endpoints")
        )
        await pilot.pause(2.0)
        drawn = app.export_screenshot(title="clutch top")
    plain = re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", drawn, flags=re.DOTALL)
    return plain.replace("Fira Code", "ui-monospace, Menlo, Consolas")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, gateway(Path(folder)) as db:
        with chromium() as browser:
            take(browser, db)
        (PICTURES / "top.svg").write_text(asyncio.run(draw_top(db)))


def take(browser: Browser, db: Served) -> None:
    with page_of(browser, db, **WIDE) as page:
        tree = begin(db, page)
        shoot(page, "tasks-light")
        for name in VIEWS:
            show(page, db, name, tree)
            shoot(page, name)
    with page_of(browser, db, color_scheme="dark", **WIDE) as page:
        row(page, "Auth endpoints").get_by_role("link").click()
        expect(page.locator("#panel .call").first).to_be_visible(timeout=PATIENCE_MS)
        shoot(page, "tasks-dark")
    with page_of(browser, db, **PHONE) as page:
        expect(row(page, "Auth endpoints")).to_be_visible(timeout=PATIENCE_MS)
        shoot(page, "phone-tasks")
        for name in ("inbox", "chat"):
            show(page, db, name, tree)
            shoot(page, f"phone-{name}")


def show(page: Page, db: Served, name: str, tree: str) -> None:
    query, mark = VIEWS[name]
    page.goto(f"http://127.0.0.1:{db.port}/?{query.replace('TREE', tree)}")
    expect(page.locator("#connection")).to_have_text("Live", timeout=PATIENCE_MS)
    expect(page.locator(mark).first).to_be_visible(timeout=PATIENCE_MS)


if __name__ == "__main__":
    main()
