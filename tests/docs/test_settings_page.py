"""The page of every setting is the one the table makes."""

from __future__ import annotations

from pathlib import Path

from clutch.config.explain import reason_of
from clutch.config.keys import catalogue
from clutch.config.reference import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def test_the_page_is_current() -> None:
    remedy = "python -m clutch.config.reference > docs/reference/settings.md"
    assert PAGE.read_text(encoding="utf-8") == page(), remedy


def test_every_setting_says_what_it_is() -> None:
    assert [entry.key for entry in catalogue() if not reason_of(entry.owner, entry.field)] == []
