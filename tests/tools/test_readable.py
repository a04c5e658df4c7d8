"""A web page as text: what a person would read, in the order it stands there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.tools.html_text import readable

BASE = "http://site.example/dir/page.html"


def test_a_page_keeps_its_shape() -> None:
    html = """<!doctype html><html><head><title> The
      title </title><style>p {color: red}</style><script>alert("<p>no</p>")</script></head><body>
      <nav><ul><li><a href="/">Home</a><li><a href="#top">Top</a></ul></nav>
      <h1>Head &amp; shoulders</h1>
      <p>One   paragraph
      with <b>bold</b> and <a href="next.html">a <i>link</i></a>, and <code>x = 1</code>.</p>
      <pre><code>def f():
    return "&lt;"</code></pre>
      <ol><li>one<ul><li>inner</li></ul></li><li>two</li></ol>
      <table><tr><th>Name<th>Size</tr><tr><td>a</td><td>1</td></tr></table>
      <h3>End</h3>text<br>more</body></html>"""
    assert readable(html, BASE) == (
        "Title: The title\n\n"
        "- Home (http://site.example/)\n"
        "- Top\n\n"
        "# Head & shoulders\n\n"
        "One paragraph with bold and a link (http://site.example/dir/next.html), and `x = 1`.\n\n"
        '```\ndef f():\n    return "<"\n```\n'
        "- one\n  - inner\n- two\n\n"
        "Name | Size\na | 1\n\n"
        "### End\n\ntext\nmore"
    )


@pytest.mark.parametrize(
    "html",
    [
        "<script>no</script>",
        "<style>no</style>",
        "<noscript><p>no</noscript>",
        "<template><div>no</div></template>",
        "<div hidden>no <div>no</div> no</div>",
        "<div style='x:y; DISPLAY : none'>no</div>",
        "<span aria-hidden=true>no</span>",
        "<svg><text>no</text></svg>",
        "<select><option>no</select>",
        "<!-- no -->",
        "<?no ?>",
        "<img alt=no src=no>",
    ],
)
def test_what_a_browser_does_not_show_is_left_out(html: str) -> None:
    assert readable(f"<p>before</p>{html}<p>after</p>", BASE) == "before\n\nafter"


@pytest.mark.parametrize(
    ("href", "shown"),
    [
        ("https://else.example/a?b=c", "text (https://else.example/a?b=c)"),
        ("javascript:alert(1)", "text"),
        ("mailto:a@b.example", "text"),
        ("data:text/html,x", "text"),
        ("", "text"),
        ("#part", "text"),
        ("http://[", "text"),
        ("/" + "x" * 1000, "text"),
    ],
)
def test_links_are_shown_with_the_address_they_lead_to(href: str, shown: str) -> None:
    assert readable(f'<a href="{href}">text</a>', BASE) == shown


def test_a_link_that_shows_its_address_shows_it_once_and_an_empty_one_nothing() -> None:
    html = '<p><a href="http://a.example/">http://a.example/</a> <a href="/x"></a>'
    assert readable(html, BASE) == "http://a.example/"


PIECES = (
    *("<p>", "</p>", "<ul>", "<li>", "</ul>", "<pre>", "</pre>", "<code>", "<a href=x>", "</a>", "<td>"),
    *(
        "<title>",
        "</title>",
        "<script>",
        "</script>",
        "<div hidden>",
        "</div>",
        "<h2>",
        "<br/>",
        "&amp;",
        "x",
    ),
)
CLOSED = "</script>" + "</div>" * 30 + "</pre></title>"


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_however_broken_a_page_is_what_follows_is_read(html: str) -> None:
    assert readable(f"{html}{CLOSED}<p>the end</p>", BASE).endswith("the end")
