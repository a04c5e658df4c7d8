"""Secrets in text that is shown to other readers than it was meant for: taken out, and marked where they stood.

It knows the shapes that keys and tokens have and the names that people give to passwords. A secret that looks
like a word cannot be seen; what is not to be read at all must not be given. Every pattern has a bound on every
repetition, so that no text can make it slow.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

MARK = "[redacted]"

_BEGIN_KEY = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_END_KEY = re.compile(r"-----END (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----")

#: A letter or digit directly before a token can be the end of an escape: of JSON or Python (`\n`, `\x0a`, `\u000a`), of
#: an address (`%20`), of a terminal's colour (`[31m`).
_ESCAPED = (
    r"(?<=\\[abfnrtv])|(?<=\\x[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2})"
    r"|(?<=[\[;][0-9]m)|(?<=[\[;][0-9]{2}m)"
)
#: Tokens that their makers gave a shape of their own. The first look-ahead only saves time.
_TOKENS = re.compile(
    rf"(?=[0-9ASdeghnprsxy])(?:(?<![A-Za-z0-9])|{_ESCAPED})(?:"
    r"(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{16}"
    r"|sk-[A-Za-z0-9_-]{16,300}|(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,200}"
    r"|gh[opusr]_[A-Za-z0-9]{20,255}|github_pat_[A-Za-z0-9_]{20,255}|glpat-[A-Za-z0-9_-]{16,100}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,300}|xapp-[A-Za-z0-9-]{10,300}"
    r"|AIza[A-Za-z0-9_-]{30,60}|ya29\.[A-Za-z0-9_-]{20,1000}"
    r"|hf_[A-Za-z0-9]{20,100}|npm_[A-Za-z0-9]{30,100}|pypi-[A-Za-z0-9_-]{30,500}|dop_v1_[a-f0-9]{40,100}"
    r"|SG\.[A-Za-z0-9_-]{16,40}\.[A-Za-z0-9_-]{16,100}"
    r"|eyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{8,1000}"
    r"|[0-9]{8,10}:AA[A-Za-z0-9_-]{30,40}"
    r")(?![A-Za-z0-9])"
)
_SCHEMES = re.compile(rf"(?i)(?:\b|{_ESCAPED})(bearer|basic)((?: |%20){{1,3}})([A-Za-z0-9._~+/=-]{{8,4000}})")
_IN_ADDRESS = re.compile(r"(://[^\s/@:]{0,200}:)([^\s/@]{1,500})(@)")
_NAMED = re.compile(
    r"(?i)((?:passwords?|passwd|passphrase|pwd|secrets?|token|credentials?|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"client[_-]?secret|auth[_-]?key|encryption[_-]?key)"
    r"\\{0,3}[\"']?\s{0,3}(?:=>|[:=]|%3[AD])\s{0,3})"
    r"(\\{1,3}\"[^\"\n]{1,4000}?\\{1,3}\"|\"[^\"\n]{1,4000}\"|'[^'\n]{1,4000}'|[^\s\"',;&)\]}]{4,4000})"
)
_NO_SECRET = re.compile(
    r"(?i)[\"']?(?:null|none|true|false|undefined|\$\{?[A-Z_].{0,200}|\[redacted\]?)[\"']?"
)
_QUOTE = re.compile(r"\\{0,3}[\"']")  #: of a text inside of a text it is escaped


class Redacted(NamedTuple):
    text: str
    found: int

    @property
    def is_any(self) -> bool:
        return self.found > 0


def redact(text: str) -> Redacted:
    text, keys = _private_keys(text)
    text, named = _values(text)
    text, tokens = _TOKENS.subn(MARK, text)
    text, schemes = _SCHEMES.subn(lambda found: f"{found[1]}{found[2]}{MARK}", text)
    text, addresses = _IN_ADDRESS.subn(_address, text)
    return Redacted(text, keys + named + tokens + schemes + addresses)


def redact_all(value: Any, *, is_secret: bool = False) -> Any:
    """JSON without the secrets in its texts. `is_secret`: a name above it says so, of all that is below."""
    match value:
        case str() if is_secret:
            return value if _NO_SECRET.fullmatch(value) else MARK
        case str():
            return redact(value).text
        case int() | float() if is_secret and not isinstance(value, bool):
            return MARK
        case dict():
            return {
                key: redact_all(inner, is_secret=is_secret or _NAMED.search(f"{key}=0000") is not None)
                for key, inner in value.items()
            }
        case list():
            return [redact_all(inner, is_secret=is_secret) for inner in value]
        case _:
            return value


def _address(found: re.Match[str]) -> str:
    return f"{found[1]}{MARK}{found[3]}"


def _private_keys(text: str) -> tuple[str, int]:
    """From its first line to its last; one whose end is missing extends to the end of the text."""
    pieces, at, count = [], 0, 0
    while begin := _BEGIN_KEY.search(text, at):
        pieces += [text[at : begin.start()], MARK]
        end = _END_KEY.search(text, begin.end())
        at, count = (end.end() if end else len(text)), count + 1
    return "".join([*pieces, text[at:]]), count


def _values(text: str) -> tuple[str, int]:
    """What is assigned to a name that says it is secret."""
    count = 0

    def instead(found: re.Match[str]) -> str:
        nonlocal count
        value = found[2]
        if _NO_SECRET.fullmatch(value.replace("\\", "")):
            return found[0]
        count += 1
        quote = _QUOTE.match(value)
        return f"{found[1]}{quote[0]}{MARK}{quote[0]}" if quote else f"{found[1]}{MARK}"

    return _NAMED.sub(instead, text), count
