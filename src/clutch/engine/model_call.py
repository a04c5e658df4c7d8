"""One model call of a run: within its limits and its budget, with a transcript that fits the window, always booked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from clutch.contain import contained
from clutch.core import budget, compaction
from clutch.core.budget import Amount
from clutch.core.messages import Answer, Usage, whole
from clutch.core.policy import OnBudget
from clutch.core.questions import Decision, QuestionKind
from clutch.core.run import SUBMIT
from clutch.core.text import announce, prompts
from clutch.core.text.format import duration
from clutch.core.text.tasks import storable
from clutch.engine.open_run import OpenRun
from clutch.engine.prompt import compacted, overhead_bytes
from clutch.logs import logger
from clutch.ports import Delta, ModelError, ModelRequest, OnDelta, Trouble
from clutch.transactions import questions, transcript, turn_end, usage
from clutch.transactions.questions import BUDGET_INDEX, NewQuestion
from clutch.transactions.usage import Fate

RETRYABLE = frozenset({Trouble.RATE_LIMIT, Trouble.OVERLOADED, Trouble.NETWORK, Trouble.MALFORMED})
#: A stream that was cut may have cost as much as a whole one.
CUT = frozenset({Trouble.NETWORK, Trouble.MALFORMED})
BUSY = frozenset({Trouble.RATE_LIMIT, Trouble.OVERLOADED})
BUDGET_WAIT_S = 2.0  # only calls in flight are in the way; most take longer, none is waited for in vain


log = logger(__name__)


class _Stopped(Exception):
    """No call may be made, and the reason is committed already."""


async def ask(run: OpenRun) -> Answer | None:
    """The next answer of the model, not committed yet. None: the run is over or parked, and that is committed."""
    limit = run.policy.steps_max(run.about.agent_id)
    if run.steps >= limit:
        await run.fail(f"step limit of {limit} reached")
        return None
    try:
        return await _ask_and_fit(run)
    except ModelError as error:
        await _stumble(run, error)
    except _Stopped:
        pass
    return None


async def ask_apart(
    run: OpenRun, request: ModelRequest, problem: Callable[[Answer], str]
) -> Answer | str | None:
    """The answer to a request that is no part of the transcript, booked. `problem` says what is wrong with a useless
    one, which is asked for again.

    None: the call could not be made now, and that is committed. A text says why it never can be."""
    try:
        answer = await _booked(run, request)
        if wrong := problem(answer):
            # The answer is paid for: the call that is open now has not been sent.
            raise ModelError(Trouble.MALFORMED, wrong, is_sent=False)
    except _Stopped:
        return None
    except ModelError as error:
        if error.trouble not in RETRYABLE:
            await run.tx_with_budgets(usage.drop, _fate(error))
            return storable(str(error))
        await _stumble(run, error)
        return None
    return answer


async def _booked(run: OpenRun, request: ModelRequest) -> Answer:
    answer = await _call(run, request, _unheard)
    usd = run.services.prices.cost(request.model, answer.usage)
    await run.tx_with_budgets(usage.book, answer, usd)
    return answer


async def _ask_and_fit(run: OpenRun) -> Answer:
    await _compact(run, is_forced=run.wants_summary)
    while True:
        try:
            return await _call(run, _request(run), run.on_delta, wraps_up=_wraps_up(run))
        except ModelError as error:
            if error.trouble is not Trouble.CONTEXT:
                raise
            await _free(run)
            if not await _compact(run, is_forced=True):
                raise


async def _call(run: OpenRun, request: ModelRequest, on_delta: OnDelta, *, wraps_up: bool = False) -> Answer:
    if run.is_budgeted:
        held = await _reserve(run, request.model, _estimate(run, request))
        run.is_last_call = wraps_up and budget.is_last(held)
        request = _last_request(run, request) if run.is_last_call else request
    with contained(), run.interrupt.repeatable():
        answer = whole(await run.services.models.ask(request, on_delta))
    run.tell("usage", answer.usage)
    return run.in_own_names(answer)


async def _free(run: OpenRun) -> None:
    """Release a call that the provider refused as too long. Without a budget its row serves the next call."""
    if run.is_budgeted:
        await run.tx_with_budgets(usage.drop, Fate.FREE)


def _request(run: OpenRun) -> ModelRequest:
    return ModelRequest(
        model=run.model,
        system=run.system.text,
        transcript=tuple(compaction.view(run.transcript, run.about.base)),
        tools=run.specs,
        key=f"{run.about.session_key}:{run.head}",
        thinking=run.thinking,
        output_tokens_max=run.policy.budgets.output_tokens if run.is_budgeted else None,
        converted=run.converted,
    )


def _last_request(run: OpenRun, request: ModelRequest) -> ModelRequest:
    """The request for the final answer. The stored transcript stays as it is.

    The note uses tokens of the answer, because no more were reserved."""
    form = tuple(spec for spec in request.tools if spec.name == SUBMIT)
    last = replace(request, system=f"{request.system}\n\n{prompts.BUDGET_WRAP_UP}", tools=form)
    more = max(0, run.services.prices.tokens(last) - run.services.prices.tokens(request))
    return replace(last, output_tokens_max=max(1, run.policy.budgets.output_tokens - more))


async def _stumble(run: OpenRun, error: ModelError) -> None:
    said = storable(str(error))  # a provider may put anything into it
    run.tell("lifecycle:error", said)
    is_retryable = error.trouble in RETRYABLE
    # Only a busy provider names a time that is worth waiting for; a dead address gets its few tries.
    retry_at = error.retry_at if error.trouble in BUSY else None
    is_limited = error.trouble is Trouble.RATE_LIMIT
    next_at = await run.tx_with_senders(
        turn_end.stumble, said, is_retryable, retry_at, fate=_fate(error), is_limited=is_limited
    )
    following = "not retried" if next_at is None else f"next in {duration(next_at - run.services.now())}"
    log.warning("Model call of %s to %s failed: %s (%s)", run.about.session_key, run.model, error, following)


def _fate(error: ModelError) -> Fate:
    if not error.is_sent:
        return Fate.UNSENT
    return Fate.UNKNOWN if error.is_begun or error.trouble in CUT else Fate.FREE


# ---- what it may cost --------------------------------------------------------------------------------------


async def may_start(run: OpenRun) -> bool:
    """Whether foreign code may start. It makes its own calls; their cost is known when it has ended, if their price is.

    False: no budget is left, and the consequence is committed."""
    try:
        await _reserve(run, run.model, Amount(0, run.price(Usage())))
    except _Stopped:
        return False
    return True


async def _reserve(run: OpenRun, model: str, estimate: Amount) -> budget.Reservation:
    refused = await run.tx_with_budgets(usage.reserve, model, estimate)
    if isinstance(refused, budget.Reservation):
        return refused
    if refused.may_free_up:
        await run.tx(turn_end.wait, BUDGET_WAIT_S)
    elif _may_ask(run, refused):
        await _ask_for_more(run, refused)
    else:
        await run.fail(announce.budget_used_up(refused))
    raise _Stopped


def _estimate(run: OpenRun, request: ModelRequest) -> Amount:
    sent = run.services.prices.tokens(request)
    answer = request.output_tokens_max or run.policy.budgets.output_tokens
    usd = run.services.prices.cost(request.model, Usage(input=sent, output=answer))
    return Amount(sent + answer, usd)


def _wraps_up(run: OpenRun) -> bool:
    """Whether a run without a user who could raise the budget must end with an answer."""
    rule = run.policy.budgets.on_budget
    return rule is OnBudget.WRAP_UP or (rule is OnBudget.ASK and run.policy.is_headless)


def _may_ask(run: OpenRun, refused: budget.BudgetExhausted) -> bool:
    """No limit, however high, permits a call of unknown price, so there is nothing to ask for."""
    is_asking = run.policy.budgets.on_budget is OnBudget.ASK and not run.policy.is_headless
    return is_asking and not refused.is_unpriced


async def _ask_for_more(run: OpenRun, refused: budget.BudgetExhausted) -> None:
    """Ask the user once for each time the budget is exhausted; a rejection ends the run."""
    said = await run.services.db.read(questions.decided, run.session_id, run.fence, run.head)
    before = [index for index in said if index <= BUDGET_INDEX]
    if any(said[index].decision is Decision.REJECT for index in before):
        return await run.fail(announce.budget_used_up(refused))
    body = json.dumps({"purse": refused.name, "text": announce.budget_used_up(refused)}, sort_keys=True)
    asked = NewQuestion(run.services.ids.next(), BUDGET_INDEX - len(before), QuestionKind.BUDGET, body)
    await run.save_files()
    await run.tx(turn_end.ask, run.head, [asked], run.services.ids.nonce())
    run.tell("question", asked.id)


# ---- what fits ---------------------------------------------------------------------------------------------


async def _compact(run: OpenRun, *, is_forced: bool) -> bool:
    """A summary takes the place of the older part. False: nothing had to go, or nothing could."""
    rules = run.policy.context
    window = run.services.prices.window(run.model)
    if window is not None:
        rules = replace(rules, window_tokens=min(window, rules.window_tokens))
    overhead = overhead_bytes(run.system.text, run.specs)
    found = compaction.cut(
        run.transcript, run.about.base, rules, overhead_bytes=overhead, is_forced=is_forced
    )
    if found is None:
        return False

    async def booked(request: ModelRequest) -> Answer:
        try:
            return await _booked(run, request)
        except ModelError as error:
            if error.trouble is Trouble.CONTEXT:
                await _free(run)  # it is asked again in smaller pieces
            raise

    summary = await compacted(booked, _request(run), found, rules, run.services.ids.nonce())
    run.head = await run.tx(transcript.compact, summary)
    run.transcript.append(summary)
    await run.load_system_prompt()
    return True


def _unheard(delta: Delta) -> None:
    """A summary is no text of the agent, so no watcher gets it."""
    del delta
