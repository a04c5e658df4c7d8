"""`clutch open`: let a browser in. The code stands behind the `#` of the address, which no browser sends anywhere."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

from clutch.cli.asking import answering, gateway, print_object, say

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  #: without one of them a Linux has no window to open


def open_page(state: Path | None, *, only_prints: bool, as_json: bool) -> None:
    """What is printed opens the page as well, as long as nobody else has used it."""
    with answering("open", as_json=as_json):
        client = gateway(state)
        made = client.post("/v1/browser/code")
        url, lasts_s = f"{client.address.url}/#{made['code']}", made["expiresInSeconds"]
        is_opened = not only_prints and _has_screen() and webbrowser.open(url)
        if as_json:
            return print_object("open", {"url": url, "expiresInSeconds": lasts_s, "opened": is_opened})
        if is_opened:
            return say(f"Opened {client.address.url} in your browser.")
        say(f"Open this in a browser of this machine within {lasts_s:g} s; it lets in one, once:")
        print(url)


def _has_screen() -> bool:
    return sys.platform != "linux" or any(os.environ.get(name) for name in SCREENS)
