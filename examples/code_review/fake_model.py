"""A stand-in for a model, so that the example runs without an API key.

It reviews as a model would: it searches its worktree with the tool `search`, leaves a note there with `write`, and
submits its findings with `submit_result`.
"""

from __future__ import annotations

import re

from clutch import Answer, Call
from clutch.testing import ScriptedModel, prompt_of, results_of

#: Aspect: what to search for, and what to say about it.
REVIEWS = {
    "unfinished work": ("TODO", "TODO without an owner"),
    "error handling": ("except:", "bare except hides errors"),
    "missing tests": ("def untested", "function without a test"),
}

MATCH = re.compile(r"(?m)^(.+?):(\d+): ")  #: a line of `search`: path, number, text


def fake_answer(prompt: str, results: list[str]) -> Answer:
    aspect = next(aspect for aspect in REVIEWS if aspect in prompt)
    pattern, comment = REVIEWS[aspect]
    if not results:
        note = Call("write", {"path": "REVIEW.md", "text": f"Reviewed for {aspect}.\n"})
        return Answer(calls=(Call("search", {"pattern": pattern}), note))
    matches = MATCH.findall(results[0])
    found = [{"file": file, "line": int(line), "comment": comment} for file, line in matches]
    return Answer(calls=(Call("submit_result", {"value": {"findings": found}}),))


fake_model = ScriptedModel(lambda request: fake_answer(prompt_of(request), results_of(request)))
