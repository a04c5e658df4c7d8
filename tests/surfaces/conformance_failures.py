"""Checks of the MCP conformance suite that a gateway does not pass, each with its reason.

The suite tests libraries: most of its scenarios call tools, prompts and resources that a server has for the test only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FIXTURE = "calls a tool that a server has for this test only"
NO_PROMPTS = "Clutch offers no prompts"
NO_COMPLETION = "Clutch completes no arguments of prompts"
NOT_ITS_RESOURCE = "reads a resource that a server has for this test only"
NO_ROUNDS = "no tool of ours asks before it starts: what a task needs is asked in the task"
NO_PARAMETER_HEADERS = "no tool of ours has parameters in headers"

#: By `scenario:check`.
EXPECTED: Final[Mapping[str, str]] = {
    "completion-complete:completion-complete": NO_COMPLETION,
    "caching:sep-2549-prompts-list-caching-hints": NO_PROMPTS,
    "prompts-get-embedded-resource:prompts-get-embedded-resource": NO_PROMPTS,
    "prompts-get-simple:prompts-get-simple": NO_PROMPTS,
    "prompts-get-with-args:prompts-get-with-args": NO_PROMPTS,
    "prompts-get-with-image:prompts-get-with-image": NO_PROMPTS,
    "prompts-list:prompts-list": NO_PROMPTS,
    "resources-read-binary:resources-read-binary": NOT_ITS_RESOURCE,
    "resources-read-text:resources-read-text": NOT_ITS_RESOURCE,
    "resources-templates-read:resources-templates-read": NOT_ITS_RESOURCE,
    "http-custom-header-server-validation:sep-2243-server-decode-base64": NO_PARAMETER_HEADERS,
    "http-custom-header-server-validation:sep-2243-server-no-xmcp-tool": NO_PARAMETER_HEADERS,
    "http-custom-header-server-validation:sep-2243-server-reject-invalid-param-chars": NO_PARAMETER_HEADERS,
    "http-custom-header-server-validation:sep-2243-server-reject-param-mismatch": NO_PARAMETER_HEADERS,
    "http-custom-header-server-validation:sep-2243-server-validate-param-match": NO_PARAMETER_HEADERS,
    "input-required-result-basic-elicitation:sep-2322-elicitation-incomplete": NO_ROUNDS,
    "input-required-result-basic-list-roots:sep-2322-list-roots-incomplete": NO_ROUNDS,
    "input-required-result-basic-sampling:sep-2322-sampling-incomplete": NO_ROUNDS,
    "input-required-result-capability-check:sep-2322-respect-client-capabilities": NO_ROUNDS,
    "input-required-result-multi-round:sep-2322-multi-round-r1": NO_ROUNDS,
    "input-required-result-multiple-input-requests:sep-2322-multiple-inputs-incomplete": NO_ROUNDS,
    "input-required-result-non-tool-request:sep-2322-non-tool-incomplete": NO_PROMPTS,
    "input-required-result-request-state:sep-2322-request-state-incomplete": NO_ROUNDS,
    "input-required-result-result-type:sep-2322-result-type-included": NO_ROUNDS,
    "input-required-result-tampered-state:sep-2322-reject-tampered-state": NO_ROUNDS,
    "tasks-mrtr-composition:sep-2663-mrtr-synchronous-before-task-creation": NO_ROUNDS,
    "json-schema-2020-12:json-schema-2020-12-tool-found": FIXTURE,
    "server-stateless:sep-2575-missing-capability-http-400": FIXTURE,
    "server-stateless:sep-2575-server-rejects-undeclared-capability": FIXTURE,
    "tools-call-audio:tools-call-audio": FIXTURE,
    "tools-call-embedded-resource:tools-call-embedded-resource": FIXTURE,
    "tools-call-image:tools-call-image": FIXTURE,
    "tools-call-mixed-content:tools-call-mixed-content": FIXTURE,
    "tools-call-with-progress:tools-call-with-progress": FIXTURE,
    "tasks-request-headers:tasks-headers-tolerate-mcp-method-on-tools-call": (
        "wants a greeting; the front answers `greet` with the list of tasks"
    ),
    "tasks-lifecycle:sep-2663-tasks-get-status-failed": (
        "a tool that breaks the protocol; ours do so only when Clutch has lost a task, which no client can cause"
    ),
    "tasks-required-task-error:sep-2663-server-returns-missing-capability-when-required": (
        "for a tool that needs tasks; ours answer clients without tasks, too"
    ),
}
