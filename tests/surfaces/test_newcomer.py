"""What stopped a new user: messages that name the thing and the fix, and questions before something is lost."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clutch.core.messages import Answer
from clutch.core.text.tasks import Contract, info_text
from clutch.errors import StoreUnreadable
from clutch.models.provider import Provider
from clutch.models.router import Router
from clutch.ports import ModelError, ModelRequest, OnDelta, Trouble
from clutch.tools import files
from clutch.tools.registry import ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from tests.core.test_status import RUNNING
from tests.surfaces.pseudo import terminal
from tests.surfaces.served import FAST, Served, Slow, served
from tests.surfaces.test_http_tasks import seen, spawned
from tests.surfaces.typed import typed


class Refusing:
    """A provider that knows no key."""

    async def prepare(self, model: str) -> None:
        del model

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        raise ModelError(Trouble.AUTH, "invalid x-api-key (status 401)")

    async def aclose(self) -> None:
        pass


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    settings = ToolSettings(sandbox=Sandbox.OFF, shell_needs_approval=True)
    with served(tmp_path / "state", Slow(), FAST, settings=settings) as one:
        yield one


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ((), "ANTHROPIC_API_KEY"),
        ((Provider("anthropic", api_key="sk-x"),), "models.providers.anthropic.apiKey"),
    ],
)
def test_a_refused_key_names_its_provider_and_the_place_of_the_key(
    given: tuple[Provider, ...], place: str
) -> None:
    environment = {"ANTHROPIC_API_KEY": "sk-wrong"}
    router = Router(given, offline=Slow(), library=lambda *_: Refusing(), environment=environment)
    request = ModelRequest(model="anthropic:claude", system="", transcript=(), tools=(), key="k")
    with pytest.raises(ModelError) as caught:
        asyncio.run(router.ask(request, lambda _: None))
    said = str(caught.value)
    assert said.startswith("auth: provider 'anthropic' refused the API key: invalid x-api-key (status 401)")
    assert f"correct {place}, restart the gateway (`clutch stop`), then retry" in said
    assert "sk-" not in said


@pytest.mark.slow
def test_deleting_a_main_session_is_asked_and_a_script_is_not(here: Served) -> None:
    for name in ("one", "two", "three"):
        here.client.post(f"/v1/sessions/agent:main:chat:{name}/messages", {"text": "hello"})
        here.client.get(f"/v1/sessions/agent:main:chat:{name}/settled")
    with terminal("delete", "agent:main:chat:one", state=here.home) as person:
        person.until("Delete the main session agent:main:chat:one and its transcript for good?")
        person.type("n\r")
        assert person.ended() == 1
    assert here.client.get("/v1/sessions/agent:main:chat:one/transcript")["messages"]
    with terminal("delete", "agent:main:chat:one", "--yes", state=here.home) as person:
        person.until("deleted: agent:main:chat:one")
        assert person.ended() == 0
    with terminal("delete", "agent:main:chat:two", state=here.home) as person:
        person.until("for good?")
        person.type("y\r")
        person.until("deleted: agent:main:chat:two")
        assert person.ended() == 0
    assert typed("delete", "agent:main:chat:three", state=here.home).code == 0


@pytest.mark.slow
def test_a_tool_call_is_approved_by_its_name(here: Served) -> None:
    task = spawned(here.client, "run it", label="builder")
    seen(here.client, task, lambda one: one["status"] == "needs approval")
    with terminal("approve", "builder", state=here.home) as person:
        person.until("Approve this tool call?")
        person.type("n\r")
        assert person.ended() == 1


def test_git_does_not_take_the_state_directory(here: Served, tmp_path: Path) -> None:
    def git(*words: str) -> str:
        command = [str(shutil.which("git")), *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout

    git("init", "-q")
    (tmp_path / "mine.txt").write_text("x")
    git("add", "-A")
    assert git("ls-files").splitlines() == ["mine.txt"]
    assert (here.home / ".gitignore").stat().st_mode & 0o777 == 0o600
    (here.home / ".gitignore").write_text("!clutch.json\n")


def test_an_ignore_file_of_the_user_is_kept(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as one:
        (one.home / ".gitignore").write_text("!clutch.json\n")
    with served(tmp_path / "state", policy=FAST) as one:
        assert (one.home / ".gitignore").read_text() == "!clutch.json\n"


@pytest.mark.slow
def test_init_proposes_what_the_demo_model_can_do(tmp_path: Path) -> None:
    made = typed("init", "--no-test", "--model", "offline", state=tmp_path / "state")
    assert "Next: `clutch run --wait 'question: sizes' --state" in made.out
    real = typed("init", "--no-test", "--force", "--model", "openai:x", state=tmp_path / "state")
    assert "Next: `clutch run --wait 'Say hello' --state" in real.out


def test_one_thing_is_not_counted_as_several(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    root = str(tmp_path)
    assert files.run("search", {"pattern": "x"}, root).endswith("(1 matching line in 1 file)")
    assert files.run("list", {}, root).endswith("(1 entry)")
    assert files.run("read", {"path": "a.txt"}, root).endswith("1 byte)")
    assert "1 calls" not in info_text(RUNNING, Contract("survey", "agent:main:main"))


def test_a_file_that_is_no_database_is_called_so() -> None:
    said = str(StoreUnreadable("why"))
    assert said.startswith(
        "The database file is damaged, or not a Clutch database. Nothing was changed or deleted"
    )
