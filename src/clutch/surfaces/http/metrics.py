"""`/metrics` for Prometheus: what the store, the limiter and the loops say at this moment, in its text format.

Written by hand: everything here is read when it is asked for, so a client library would only add its registry and
its import to every start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from starlette.responses import PlainTextResponse, Response

from clutch import __version__
from clutch.core.model import Phase
from clutch.core.views import Tally
from clutch.ports import Limiter
from clutch.surfaces.http.routes import AppState, Ask, route
from clutch.transactions import workers
from clutch.transactions.read import costs, status
from clutch.transactions.read.costs import By

TEXT = "text/plain; version=0.0.4"
ALIVE = tuple(phase for phase in Phase if phase not in (Phase.COMPLETED, Phase.COMPLETED_GIVEUP))

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Metric:
    """`kind`: a counter only grows; a gauge is a current value."""

    name: str
    about: str
    samples: Iterable[tuple[Labels, float]]
    kind: str = field(default="gauge")

    def lines(self) -> Iterator[str]:
        yield f"# HELP clutch_{self.name} {self.about}"
        yield f"# TYPE clutch_{self.name} {self.kind}"
        for labels, value in self.samples:
            yield f"clutch_{self.name}{_written(labels)} {value:.10g}"


def _written(labels: Labels) -> str:
    if not labels:
        return ""
    escaped = (
        (name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
        for name, value in labels.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"


@route("GET", "/metrics", media="text/plain")
async def metrics(ask: Ask) -> Response:
    """Everything that is counted, in the text format of Prometheus."""
    app = ask.app
    state, counted = await app.read(workers.health), await app.read(status.counts)
    used = await app.read(costs.spending, By.MODEL)
    told = (*_of_tasks(state, counted), *_of_models(used), *_of_process(app), *_of_invariants(app))
    return PlainTextResponse("".join(f"{line}\n" for one in told for line in one.lines()), media_type=TEXT)


def _alone(value: float) -> Iterable[tuple[Labels, float]]:
    return [({}, value)]


def _of_tasks(state: workers.GatewayHealth, counted: status.Counts) -> Iterator[Metric]:
    phases = [({"phase": phase.value}, counted.phases.get(phase, 0)) for phase in ALIVE]
    yield Metric("info", "The version that answers.", [({"version": __version__}, 1)])
    yield Metric("tasks", "Tasks that are not over, by phase.", phases)
    yield Metric("tasks_total", "Tasks ever accepted.", _alone(counted.tasks), "counter")
    yield Metric("queued", "Tasks that wait for their turn.", _alone(state.queued))
    yield Metric(
        "oldest_queued_seconds",
        "How long the first task in the queue has waited.",
        _alone(counted.oldest_queued_s),
    )
    yield Metric("running", "Sessions with a turn in progress.", _alone(state.running))
    yield Metric("undelivered", "Results that could not be delivered.", _alone(state.undelivered))
    yield Metric("letters_open", "Letters without an answer.", _alone(counted.letters))
    yield Metric(
        "needs_you", "Plans, questions and budgets that wait for a person.", _alone(counted.needs_you)
    )
    yield Metric("workers", "Processes at work on this database.", _alone(state.workers))
    yield Metric(
        "leases_expired", "Processes that did not renew their lease.", _alone(counted.leases_expired)
    )


def _of_models(used: list[tuple[str, Tally]]) -> Iterator[Metric]:
    calls = [({"model": model}, tally.calls) for model, tally in used]
    usd = [({"model": model}, float(tally.usd)) for model, tally in used if tally.usd is not None]
    tokens = [
        ({"model": model, "kind": kind}, count)
        for model, tally in used
        for kind, count in (("input", tally.input), ("output", tally.output))
    ]
    yield Metric("model_calls_total", "Model calls.", calls, "counter")
    yield Metric("model_tokens_total", "Tokens of model calls.", tokens, "counter")
    yield Metric("model_usd_total", "Dollars of model calls whose price is known.", usd, "counter")


def _of_process(app: AppState) -> Iterator[Metric]:
    services = app.gateway.services
    stats, now = services.db.stats, services.now()
    beats = [
        ({"loop": name}, max(0.0, now - beat.at)) for name, beat in sorted(services.pulses.beats.items())
    ]
    waits = services.models.waits() if isinstance(services.models, Limiter) else {}
    named = [({"provider": name}, one) for name, one in sorted(waits.items())]
    yield Metric("loop_age_seconds", "Since the last pass of sweeper, heartbeat and outbox senders.", beats)
    yield Metric(
        "limiter_passages_total", "Calls let through.", [(n, w.passages) for n, w in named], "counter"
    )
    yield Metric(
        "limiter_wait_seconds_total", "Waited by those.", [(n, w.waited_s) for n, w in named], "counter"
    )
    yield Metric(
        "limiter_parked_total",
        "Calls that were refused for now.",
        [(n, w.turned_away) for n, w in named],
        "counter",
    )
    yield Metric("store_transactions_total", "Transactions.", _alone(stats.transactions), "counter")
    yield Metric("store_statements_total", "Statements.", _alone(stats.statements), "counter")
    yield Metric("store_batches_total", "Batches of transactions.", _alone(stats.batches), "counter")
    yield Metric("store_batch_seconds_total", "Until they were durable.", _alone(stats.batch_s), "counter")
    yield Metric("watchers", "Open streams of events.", _alone(app.feed.watchers))
    yield Metric("requests_under_way", "Requests and streams.", _alone(app.gateway.visits.under_way))


def _of_invariants(app: AppState) -> Iterator[Metric]:
    """The last check, which takes longer than a scrape may; no sample before the first one has ended."""
    known = app.invariants.latest()
    broken, age_s = ((), ()) if known is None else map(_alone, known)
    yield Metric("invariants_broken", "Invariants of the stored data that do not hold.", broken)
    yield Metric("invariants_age_seconds", "Since they were checked.", age_s)


ENTRIES = (metrics,)
