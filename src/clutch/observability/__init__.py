"""Traces and metrics for an OpenTelemetry collector. Only `otlp` loads the library, and only where it is configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clutch.core.validation import check, require


@dataclass(frozen=True, slots=True)
class OtelSettings:
    """`otel.*`."""

    #: Base address of an OTLP/HTTP collector, e.g. http://127.0.0.1:4318. None = no traces. Needs the extra `otel`.
    endpoint: str | None = None
    #: Headers of every request to the collector.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Export prompts, answers, arguments and results too, with secrets redacted.
    content: bool = False
    #: Time between two exports.
    every_s: float = 5.0

    def __post_init__(self) -> None:
        check(self)
        is_url = self.endpoint is None or self.endpoint.startswith(("http://", "https://"))
        require("OtelSettings.endpoint", "must begin with http:// or https://", is_kept=is_url)
        require("OtelSettings.every_s", "must be more than 0", is_kept=self.every_s > 0)
