"""Words that the product does not use, each with what to write instead, and the places that may keep one.

The list is the vocabulary of the project: a word of the industry stands where a private one stood. A pattern is matched
without regard to case, as whole words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple


class Word(NamedTuple):
    """A pattern that is not used, and its replacement."""

    pattern: str
    instead: str


WORDS: Final = (
    Word(r"told|untold", "delivered, pending delivery"),
    Word(r"heard|hears of|unheard", "received, is notified of"),
    Word(r"last words?|(?:your|their|his|own|person's|user's) words", "final text, message, comment"),
    Word(r"what (?:waits for|needs) you", "Inbox"),
    Word(r"needs[_-]me", "attention_required"),
    Word(r"gates?|it opens when", "blocked on, unblocks when"),
    Word(r"go(?:es)? on|went on|gone on|going on", "resumes, continues"),
    Word(r"outcome is fixed|nothing is left to do", "completed; cleanup finished"),
    Word(r"sleeps?|asleep|woken|settled|settles", "waiting, resumed, finished"),
    Word(r"walls?|walled(?: off)?|box|boxed|unboxed", "sandbox, isolated, sandboxed"),
    Word(r"knocks?|lets? in|shows? out", "connect, sign in, sign out"),
    Word(r"purses?", "budget"),
    Word(r"lets? go|let-go", "discard"),
    Word(r"no hurry", "optional (a result), low priority (a task)"),
    Word(r"came round|comes round|what held before", "last ran; keeping the previous configuration"),
    Word(r"the script|scripted model", "demo model"),
    Word(r"results? with a form|has a form|in its form", "structured output"),
    Word(r"twins?", "duplicate"),
    Word(
        r"whoever|somebody|someone|nobody|no one|anybody",
        "the user, the operator, the parent agent, no client",
    ),
    Word(
        r"desks?|doors?|shel(?:f|ves)|errands?|couriers?|rooms?|houses?|births?|born|census|judges?|court",
        "a plain noun",
    ),
)


class Kept(NamedTuple):
    """A place that may keep a word, and the reason."""

    pattern: str
    reason: str


#: Texts in which a listed word is not ours to change, or means what it means everywhere.
KEPT: Final = (
    Kept(
        r"(?:no|is|for|more|enough) room|room (?:for|in|left)|makes? room",
        "room in the plain sense: free capacity",
    ),
    Kept(r"children settled|nobody came back", "reasons as the tables store them"),
    Kept(r"in (?:your|their) own words", "plain English in an instruction to a model"),
    Kept(r"(?:completes?|replaces?) the last word", "the word before the cursor"),
    Kept(r"wall clock", "the clock of a machine"),
    Kept(r"time\.sleep|asyncio\.sleep", "names of Python"),
)

_PATTERNS: Final[Mapping[re.Pattern[str], str]] = {
    re.compile(rf"(?<![\w/.-])(?:{one.pattern})(?![\w/(]|[-.]\w)", re.IGNORECASE): one.instead
    for one in WORDS
}
_KEPT: Final = re.compile("|".join(f"(?:{one.pattern})" for one in KEPT), re.IGNORECASE)


def banned(text: str) -> Iterator[tuple[str, str]]:
    """Yield each word of a text that is not used, with its replacement."""
    kept = [found.span() for found in _KEPT.finditer(text)]
    for pattern, instead in _PATTERNS.items():
        for found in pattern.finditer(text):
            if not any(begin <= found.start() and found.end() <= end for begin, end in kept):
                yield found.group(), instead
