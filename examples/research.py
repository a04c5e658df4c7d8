"""Research with structured output: one child for each question, findings as pydantic models, then one merged report.

    python research.py

    answered: What do users complain about?
    ...
    report: 4 questions, 4 findings, the surest first
      90 % Exports fail for files over 2 GB [tickets/4711]
      ...

`output_type=` gives the child the JSON schema of the type. A value that does not match goes back to the model once;
then the outcome is `error`. `result.value` is an instance of the type, and mypy knows it.
"""

from __future__ import annotations

import asyncio

from pydantic import BaseModel, Field

import clutch
from clutch import Answer, Call, Clutch
from clutch.testing import ScriptedModel, prompt_of

QUESTIONS = [
    "What do users complain about?",
    "What do competitors offer?",
    "What does the law require?",
    "What did we try before?",
]


class Finding(BaseModel):
    claim: str
    source: str = Field(description="where it can be checked")
    confidence: int = Field(ge=0, le=100)


class Report(BaseModel):
    summary: str
    findings: list[Finding]


async def main() -> None:
    # A real model: replace models=fake_model by model="anthropic:claude-sonnet-4-5"
    async with Clutch("research-state", models=fake_model) as c:
        # Fan out. The keys make it repeatable: started again, the program finds these tasks and their findings.
        tasks = [
            await c.spawn(
                question, label=question, output_type=Finding, idempotency_key=f"research:{question}"
            )
            for question in QUESTIONS
        ]
        findings: list[Finding] = []
        async for task, result in clutch.as_completed(tasks):
            if result.value is None:  # one failed child does not fail the others
                print(f"no answer: {task.label}: {result.error}")
            else:
                print(f"answered: {task.label}")
                findings.append(result.value)

        # Merge. The child gets the findings as JSON and returns one report.
        listed = "\n".join(sorted(finding.model_dump_json() for finding in findings))
        merging = await c.spawn(f"Merge these findings into one report:\n{listed}", output_type=Report)
        report = (await merging).raise_for_outcome().value
        assert report is not None  # a task with an output_type ends well only with a value
        print(f"report: {report.summary}")
        for finding in report.findings:
            print(f"  {finding.confidence} % {finding.claim} [{finding.source}]")


# ---- a stand-in for a model, so that the example runs without an API key --------------------------------------

CLAIMS = {
    QUESTIONS[0]: Finding(claim="Exports fail for files over 2 GB", source="tickets/4711", confidence=90),
    QUESTIONS[1]: Finding(claim="Two competitors export in the background", source="web/7", confidence=70),
    QUESTIONS[2]: Finding(claim="Users can demand an export within a month", source="GDPR 12", confidence=85),
    QUESTIONS[3]: Finding(claim="Splitting files by hand was not used", source="notes/2024", confidence=60),
}


def fake_answer(prompt: str) -> Answer:
    """Submit a value, as a model does: structured output is a call of the tool `submit_result`."""
    for question, finding in CLAIMS.items():
        if question in prompt:
            return submit(finding)
    findings = [Finding.model_validate_json(line) for line in prompt.splitlines() if line.startswith("{")]
    findings.sort(key=lambda finding: -finding.confidence)
    summary = f"{len(QUESTIONS)} questions, {len(findings)} findings, the surest first"
    return submit(Report(summary=summary, findings=findings))


def submit(value: BaseModel) -> Answer:
    return Answer(calls=(Call("submit_result", {"value": value.model_dump()}),))


fake_model = ScriptedModel(lambda request: fake_answer(prompt_of(request)))

if __name__ == "__main__":
    asyncio.run(main())
