"""`make words`: every text that people read, against the words that the product does not use (banned.py).

Prints one JSON line. Each place has a line on stderr; then the exit code is 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from clutch.core.model import DeliveryStatus, TaskStatus
from tests.words import strings
from tests.words.banned import banned
from tests.words.strings import Text


def problems(texts: Iterable[Text]) -> Iterator[str]:
    for place, text in texts:
        for word, instead in banned(text):
            yield f"{place}: {' '.join(word.split())!r} (write: {instead})"


def measure(product: Iterable[Text], pages: Iterable[Text]) -> dict[str, Any]:
    """The JSON line."""
    product, pages = list(product), list(pages)
    found = [*problems(product), *problems(pages)]
    return {
        "schema": "clutch.words/1",
        "ok": not found,
        "strings": len(product),
        "pages": len({text.place.split(":")[0] for text in pages}),
        "banned": found,
        "states": [*TaskStatus, *DeliveryStatus],
    }


def main() -> int:
    shown = (*strings.product(), *strings.web(), *strings.commands_help())
    line = measure(shown, strings.pages())
    for one in line["banned"]:
        print(one, file=sys.stderr)
    print(json.dumps(line, ensure_ascii=False))
    return 0 if line["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
