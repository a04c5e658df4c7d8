"""Sends spans and metrics to a collector by OTLP over HTTP. Loads the OpenTelemetry library."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from clutch import __version__
from clutch.core.traces import SpanRecord
from clutch.observability import OtelSettings
from clutch.observability.exporter import SpansRefused

SEND_S = 3.0  # with the library's own retries; afterwards the spans wait for the next pass
METRICS_MS = 15_000
SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
TOKENS = [float(4**power) for power in range(14)]  #: both as the conventions say
#: Answers about the address, the credentials or the load: the same spans are accepted once that is corrected.
_PASSING = frozenset({401, 403, 404, 405, 407, 408, 429})
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("clutch", __version__)


class OtlpSink:
    """Implements `SpanSink`. `node`: the name of this process among those of the fleet."""

    def __init__(self, settings: OtelSettings, node: str) -> None:
        base, headers = str(settings.endpoint).rstrip("/"), dict(settings.headers)
        # OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME are heeded by the library.
        self._resource = Resource.create({})
        if str(self._resource.attributes["service.name"]).startswith("unknown_service"):
            self._resource = self._resource.merge(Resource({"service.name": "clutch"}))
        self._status = 0  #: of the last answer; 0: none
        watched = requests.Session()
        watched.hooks["response"].append(self._answered)
        # The session of a credential provider signs requests; the library uses it only where it gets no other.
        session = None if any(name.endswith("_CREDENTIAL_PROVIDER") for name in os.environ) else watched
        self._spans = OTLPSpanExporter(f"{base}/v1/traces", headers=headers, timeout=SEND_S, session=session)
        exporter = OTLPMetricExporter(f"{base}/v1/metrics", headers=headers, timeout=SEND_S)
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=METRICS_MS)
        # Each process has its own series: what two of them counted must not be taken for one counter.
        own = self._resource.merge(Resource({"service.version": __version__, "service.instance.id": node}))
        self._provider = MeterProvider([reader], resource=own, shutdown_on_exit=False)
        meter = self._provider.get_meter("clutch", __version__)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", explicit_bucket_boundaries_advisory=TOKENS
        )
        self._seconds = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", explicit_bucket_boundaries_advisory=SECONDS
        )

    def send(self, made: Sequence[SpanRecord]) -> bool:
        self._status = 0
        is_taken = self._spans.export([self._span(one) for one in made]) is SpanExportResult.SUCCESS
        if not is_taken and 400 <= self._status < 500 and self._status not in _PASSING:
            raise SpansRefused(f"the collector refuses the spans with HTTP {self._status}")
        return is_taken

    def _answered(self, response: requests.Response, **_: Any) -> None:
        self._status = response.status_code

    def count(self, made: Sequence[SpanRecord]) -> None:
        """An empty `error.type` would be a label, so failed calls are not in these metrics."""
        for one in made:
            if (call := one.model_call) is None:
                continue
            named = {name: one.attributes[name] for name in _LABELS}
            self._seconds.record(one.end - one.start, named)
            self._tokens.record(call.input, {**named, "gen_ai.token.type": "input"})
            self._tokens.record(call.output, {**named, "gen_ai.token.type": "output"})

    def close(self) -> None:
        self._spans.shutdown()  # type: ignore[no-untyped-call]
        self._provider.shutdown(timeout_millis=SEND_S * 1000)

    def _span(self, one: SpanRecord) -> ReadableSpan:
        return ReadableSpan(
            one.name,
            _context(one.trace_id, one.span_id),
            None if one.parent_id is None else _context(one.trace_id, one.parent_id),
            resource=self._resource,
            attributes=dict(one.attributes),
            links=[Link(_context(one.trace_id, linked)) for linked in one.links],
            kind=SpanKind.CLIENT if one.name.startswith("chat ") else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, one.error) if one.error else Status(StatusCode.UNSET),
            start_time=int(one.start * 1e9),
            end_time=int(one.end * 1e9),
            instrumentation_scope=_SCOPE,
        )


_LABELS = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model")


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=_SAMPLED)
