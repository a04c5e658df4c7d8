"""A collector of OpenTelemetry on loopback: decodes what arrives by OTLP over HTTP, and answers as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True, slots=True)
class Received:
    """A span as the collector has it, ids in hexadecimal."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: tuple[tuple[str, Any], ...]
    links: tuple[str, ...]
    is_error: bool

    def of(self, name: str) -> Any:
        return dict(self.attributes).get(name)


@dataclass(slots=True)
class Collector:
    """`refused`: requests with spans that get an error. `unwanted`: so do all that contain this text, with `status`,
    and `refusals` counts them. `silent`: set, spans are taken and never acknowledged."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    metrics: set[str] = field(default_factory=set)
    headers: list[dict[str, str]] = field(default_factory=list)
    refused: int = 0
    unwanted: bytes | None = None
    status: int = 400
    refusals: int = 0
    silent: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def named(self, name: str) -> list[Received]:
        with self.arrived:
            return [one for one in self.spans if one.name == name]

    def until(self, is_met: Any, within_s: float) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: is_met(self.spans), within_s), [
                one.name for one in self.spans
            ]

    def take(self, body: bytes) -> bool:
        """Return whether the request is acknowledged."""
        with self.arrived:
            if self.refused:
                self.refused -= 1
                return False
            if self.unwanted is not None and self.unwanted in body:
                self.refusals += 1
                self.arrived.notify_all()
                return False
            self.spans += _decoded(body)
            self.arrived.notify_all()
        return True


def _decoded(body: bytes) -> Sequence[Received]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Received(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            tuple((one.key, _value(one.value)) for one in span.attributes),
            tuple(link.span_id.hex() for link in span.links),
            span.status.code == 2,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return tuple(map(_value, found.values)) if kind == "array_value" else found


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_taken = True
            if self.path == "/v1/traces":
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                is_taken = collector.take(body)
                if collector.silent.is_set():
                    return  # the connection closes without an answer
            else:
                assert self.path == "/v1/metrics"
                for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    collector.metrics |= {
                        one.name for scope in resource.scope_metrics for one in scope.metrics
                    }
            self.send_response(200 if is_taken else collector.status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="collector")
        thread.start()
        collector.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
