"""`make words` finds each word that the product does not use, in every kind of text, and only there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clutch.core.model import DeliveryStatus, TaskStatus
from tests.words import strings
from tests.words.__main__ import measure
from tests.words.banned import KEPT, WORDS, banned
from tests.words.strings import Text


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The parent was told.", "told"),
        ("Nobody waits.", "Nobody"),
        ("its purse is empty", "purse"),
        ("What waits for you", "What waits for you"),
        ("a boxed command", "boxed"),
        ("the run goes on", "goes on"),
    ],
)
def test_a_word_that_is_not_used_is_found(text: str, word: str) -> None:
    assert [found for found, _ in banned(text)] == [word]


@pytest.mark.parametrize(
    "text",
    [
        "there is no room for more",
        "toolbox",
        "a retold story",
        "house.md",
        "knockout",
        "asyncio.sleep(1)",
        "room-mate",
    ],
)
def test_what_only_looks_like_one_is_not_found(text: str) -> None:
    assert list(banned(text)) == []


def test_every_word_has_a_replacement_and_every_exception_a_reason() -> None:
    assert all(one.instead for one in WORDS)
    assert all(one.reason for one in KEPT)


def test_literals_docstrings_and_comments_are_read_and_sql_is_not(tmp_path: Path) -> None:
    source = (
        '"""A docstring."""\nA = "an error text"  # a comment\nB = "SELECT told FROM t"\n'
        'C = f"{A} or so"\nD = "x"\n'
    )
    folder = tmp_path / strings.PRODUCT
    folder.mkdir(parents=True)
    (folder / "a.py").write_text(source, encoding="utf-8")
    found = {text.text.strip(" #") for text in strings.product(tmp_path)}
    assert found == {"A docstring.", "an error text", "a comment", "or so"}


def test_the_page_is_read(tmp_path: Path) -> None:
    folder = tmp_path / strings.WEB
    folder.mkdir(parents=True)
    (folder / "a.js").write_text('show("one"); // not "two"\nshow(`three`);\n', encoding="utf-8")
    (folder / "a.html").write_text("<p class='four'>five</p>", encoding="utf-8")
    found = [text.text.strip() for text in strings.web(tmp_path)]
    assert found == ["five", '"one"', "`three`"]


def test_prose_of_pages_is_read_without_their_code(tmp_path: Path) -> None:
    page = "One `two` three.\n\n```\nfour\n```\n\n    five\n\nsix\n"
    (tmp_path / "README.md").write_text(page, encoding="utf-8")
    found = {text.place: text.text for text in strings.pages(tmp_path) if text.text}
    assert found == {"README.md:1": "One  three.", "README.md:9": "six"}


def test_the_line_of_figures() -> None:
    line = measure(
        [Text("a.py:1", "the parent was told")], [Text("docs/a.md:1", "x"), Text("docs/a.md:2", "x")]
    )
    assert line == {
        "schema": "clutch.words/1",
        "ok": False,
        "strings": 1,
        "pages": 1,
        "banned": ["a.py:1: 'told' (write: delivered, pending delivery)"],
        "states": [*TaskStatus, *DeliveryStatus],
    }


@pytest.mark.slow(5)
def test_the_product_speaks_plainly() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.words"],
        capture_output=True,
        text=True,
        check=False,
        cwd=strings.ROOT,
    )
    line = json.loads(ended.stdout.splitlines()[-1])
    assert line["banned"] == []
    assert ended.returncode == 0
    assert line["strings"] > 5000
    assert line["pages"] > 30
