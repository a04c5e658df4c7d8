"""The pages are true: their Python runs as it stands, the reference is the code's, nothing is unlisted or misnamed."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import clutch
from clutch import Clutch
from clutch.cli.app import app
from clutch.config.keys import catalogue
from clutch.core.diagnosis import Gate
from clutch.core.model import DeliveryStatus, TaskStatus
from clutch.core.policy import Announcing, Policy
from tests.docs.reference import FOLDER, PAGES

ROOT = Path(__file__).parents[2]
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
#: Run where their servers and libraries are: see the tests of those pages.
ELSEWHERE = (
    "README.md",
    "docs/how-to/acp-agents.md",
    "docs/how-to/frameworks.md",
    "docs/how-to/mcp-server.md",
    "docs/how-to/openai-clients.md",
    "docs/how-to/embed.md",
    "docs/start/tutorial.md",
)
#: Files and attributes that look like one.
NO_SETTINGS = {"gateway.json", "gateway.log", "context.files"}


def fenced() -> Iterator[tuple[str, str]]:
    for name, text in TEXTS.items():
        for block in re.findall(r"(?s)```python\n(.*?)```", text):
            if name not in ELSEWHERE:
                yield name, block


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.parametrize(("name", "block"), list(fenced()), ids=[name for name, _ in fenced()])
async def test_every_example_runs_as_it_stands(
    name: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole programs alone; pieces in a program that has entered a `Clutch` as `c`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("# Notes\n\nTODO: water the plants\n")
    code = compile(block, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if "asyncio.run(" in block:
        await asyncio.to_thread(exec, code, {"__name__": "__main__"})
    else:
        told_at_once = Policy(announcing=Announcing(debounce_s=0.0))
        async with Clutch(state=tmp_path / "state", policy=told_at_once, serve=False) as c:
            done = eval(code, {"c": c})  # noqa: S307 (our own words)
            if inspect.iscoroutine(done):
                await done
    if "print(" in block:
        assert capsys.readouterr().out.strip()


def test_every_name_the_pages_import_is_public() -> None:
    for page, text in TEXTS.items():
        for names in re.findall(r"(?m)^\s*from clutch import (.+)$", text):
            assert {name.strip() for name in names.split(",")} <= set(clutch.__all__), page


def test_every_class_of_the_policy_the_pages_name_is_public() -> None:
    """A reader writes `Announcing(...)` and expects to find it where everything else is."""
    from clutch.core import policy

    made = {name for text in TEXTS.values() for name in re.findall(r"`[^`]*?\b([A-Z]\w+)\([^`]*`", text)}
    assert {name for name in made & set(vars(policy)) if name not in clutch.__all__} <= {"Work"}


def test_indented_python_can_be_read() -> None:
    for page, text in TEXTS.items():
        prose = re.sub(r"(?s)```.*?```", "", text)
        for block in re.findall(r"(?m)(?:^    .*\n|^\n)+", prose):
            if re.match(r"\s*(?:from \w+ import|async |await |@c\.)", block):
                compile(textwrap.dedent(block).strip(), page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("file", PAGES)
def test_the_reference_is_what_the_code_says(file: str) -> None:
    path = FOLDER / file
    stale = f"docs/reference/{file} is stale; write it anew with: python -m tests.docs.reference"
    assert path.exists() and path.read_text(encoding="utf-8") == PAGES[file](), stale  # noqa: PT018 (one remedy)


#: A link to a page or file of the repository, with its anchor.
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(#[^)\s]*)?\)")


def test_the_index_lists_every_page_once() -> None:
    listed = [f"docs/{path}" for path, _ in LINK.findall(TEXTS["docs/index.md"].partition("\n## ")[2])]
    assert sorted(listed) == sorted(name for name in TEXTS if name not in ("README.md", "docs/index.md"))


@pytest.mark.parametrize("page", TEXTS)
def test_every_link_leads_to_a_file(page: str) -> None:
    for path, _ in LINK.findall(re.sub(r"(?s)```.*?```", "", TEXTS[page])):
        assert not path or (ROOT / page).parent.joinpath(path).exists(), path
    assert not re.findall(r"`(?:docs|\.\.)/[\w/-]+\.md`", TEXTS[page]), "a page is named without a link"


@pytest.mark.parametrize("page", [name for name in TEXTS if not name.startswith("docs/reference")])
def test_every_page_links_onward(page: str) -> None:
    assert LINK.search(TEXTS[page].rstrip().rpartition("\n\n")[2] if page != "README.md" else TEXTS[page])


def test_the_concepts_list_every_status_that_people_see() -> None:
    page = TEXTS["docs/concepts/index.md"].partition("## What you see")[2]
    listed = {
        word for row in re.findall(r"(?m)^\| (`.*?) \|", page) for word in re.findall(r"`([^`]+)`", row)
    }
    assert listed == {str(one) for one in (*TaskStatus, *DeliveryStatus)}


def spelled(text: str) -> Iterator[str]:
    """Every `clutch …` that a page shows, in a sentence or as a line of its own."""
    yield from re.findall(r"`clutch ([^`\n]+)`", re.sub(r"(?s)```.*?```", "", text))
    for line in re.findall(r"(?m)^(?:    |ExecStart=.*/)?(?:.*\| )?clutch ([a-z].*)$", text):
        yield line.partition(" #")[0].partition("|")[0]


@pytest.mark.parametrize("page", TEXTS)
def test_every_command_and_option_it_shows_exists(page: str) -> None:
    for line in spelled(TEXTS[page]):
        command: Any = typer.main.get_command(app)
        known = {"--help"}
        words = re.sub(r"[\[\]…,]", " ", line).split()
        while True:
            known |= {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
            if not hasattr(command, "commands") or not words or words[0].startswith("-"):
                break
            assert words[0] in command.commands, f"{page}: clutch {line}"
            command = command.commands[words.pop(0)]
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, f"{page}: {line}"


def test_every_setting_the_pages_name_exists() -> None:
    known = {entry.key for entry in catalogue()}
    sections = {key.partition(".")[0] for key in known}
    for page, text in TEXTS.items():
        for key in re.findall(r"`([a-z]+(?:\.[a-zA-Z_]+)+)(?:: [^`]*)?`", text):
            if key.partition(".")[0] not in sections or key in NO_SETTINGS:
                continue
            is_known = any(one == key or one.startswith(f"{key}.") for one in known)
            assert is_known or page == "docs/how-to/openclaw.md", f"{page}: {key}"


def test_every_gate_has_its_line_of_help() -> None:
    table = TEXTS["docs/operate/troubleshooting.md"].partition("| Blocked on |")[2].partition("\n\n")[0]
    assert re.findall(r"(?m)^\| `([\w-]+)`", table) == [gate.value for gate in Gate]
