"""The name of a device: from listed words, whatever a browser sends."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.devices import device_name

ANDROID = "Mozilla/5.0 (Linux; Android 15) AppleWebKit/537.36 Chrome/130.0 Mobile Safari/537.36"
IPHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) AppleWebKit/605.1 Mobile/15E148 Safari/604.1"
EDGE = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/130.0 Safari/537.36 Edg/130.0"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:132.0) Gecko/20100101 Firefox/132.0"


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        (ANDROID, "Chrome on Android"),
        (IPHONE, "Safari on iPhone"),
        (EDGE, "Edge on Windows"),
        (FIREFOX, "Firefox on Linux"),
        ("curl/8.5", "Browser"),
        ("", "Browser"),
    ],
)
def test_a_device_is_named_by_its_browser_and_system(sent: str, name: str) -> None:
    assert device_name(sent) == name


@given(st.text() | st.text().map(lambda text: f"{text}Chrome/1 Android{text}"))
def test_no_text_of_a_browser_reaches_the_name(sent: str) -> None:
    assert re.fullmatch(r"[A-Z][A-Za-z ]{2,30}", device_name(sent))
