"""The page for a browser: a few files that hold nothing of anybody's and are therefore shown without a token.

What stands in them comes from the API, which lets the page in by its cookie. Its policy runs our own script and loads
nothing from elsewhere, whatever a model may have written into a label.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from starlette.responses import Response

from clutch.surfaces.http.routes import PRIVATE

FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    **PRIVATE,
    "connection": "close",  # as for every stranger
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


def page(method: str, path: str) -> Response | None:
    """None: this is none of them."""
    if method != "GET" or path not in FILES:
        return None
    name, media = FILES[path]
    return Response(_content(name), media_type=media, headers=HEADERS)


@cache
def _content(name: str) -> bytes:
    return resources.files("clutch.surfaces.web").joinpath(name).read_bytes()
