"""Every setting on its page has a description; `test_pages` compares the page with the code."""

from __future__ import annotations

from clutch.config.explain import reason_of
from clutch.config.keys import catalogue


def test_every_setting_says_what_it_is() -> None:
    assert [entry.key for entry in catalogue() if not reason_of(entry.owner, entry.field)] == []
