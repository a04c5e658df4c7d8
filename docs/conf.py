"""Settings of Sphinx: `make docs` builds the pages of this folder into build/site, without the network."""

from __future__ import annotations

import re

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

project = "Clutch"
html_title = "Clutch"
author = copyright = "Clutch contributors"
extensions = ["myst_parser"]
myst_heading_anchors = 3  # page.md#heading is a link; a heading that is not there fails the build
myst_enable_extensions = ["colon_fence"]
html_theme = "furo"
smartquotes = False  # settings and commands are copied as they are shown
html_copy_source = False
html_show_sphinx = False
html_use_index = False
templates_path: list[str] = []
exclude_patterns = ["conf.py"]

_SECTION = re.compile(r"(?ms)^## ([^\n]+)\n(.*?)(?=^## |\Z)")
_PAGE = re.compile(r"\]\(([\w/-]+)\.md\)")


def add_navigation(_: Sphinx, name: str, source: list[str]) -> None:
    """Make the navigation from the lists of index.md, which people read on the page itself."""
    if name != "index":
        return
    for title, body in _SECTION.findall(source[0]):
        pages = "\n".join(dict.fromkeys(_PAGE.findall(body)))
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{pages}\n```\n"


def setup(app: Sphinx) -> None:
    app.add_lexer("mermaid", TextLexer)  # a diagram stays a text: drawing it would load a script from elsewhere
    app.connect("source-read", add_navigation)
