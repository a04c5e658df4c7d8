"""When a session is due and what it then reads: for any mailbox, not for examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from clutch.core.agents import ActiveHours
from clutch.core.delivery import (
    INJECTED,
    LetterSelection,
    Point,
    RunningTurn,
    choose,
    due,
    injects,
    is_put_back,
    is_sent,
    left_behind,
    put_off,
    put_right,
    way_of,
)
from clutch.core.model import (
    PERSON_KINDS,
    Letter,
    LetterId,
    LetterKind,
    Mail,
    Path,
    RunState,
    SessionId,
    TaskId,
)
from clutch.core.policy import Announcing, Direct, Drop, QueueMode

NOW = 100.0
RULES = Announcing()


def letter(
    number: int,
    kind: LetterKind = LetterKind.ANNOUNCE,
    *,
    at: float = 90.0,
    ready_at: float | None = None,
    silent: bool = False,
    route: str = "",
    taken_seq: int | None = None,
    expects: bool = True,
) -> Letter:
    ready = at if ready_at is None else ready_at
    sender = TaskId(number) if kind is LetterKind.ANNOUNCE else None
    body = f"letter {number}"
    return Letter(LetterId(number), kind, body, at, ready, sender, 1, silent, route, taken_seq, expects)


def announces(count: int, *, route: str = "", expects: bool = True) -> list[Letter]:
    return [letter(number, route=route, expects=expects) for number in range(1, count + 1)]


def mail_of(letters: Sequence[Letter]) -> Mail:
    """What the store sums up. A silent letter never counts: it wakes nobody but a hold."""
    urgent = [
        one.ready_at for one in letters if one.is_urgent or (one.taken_seq is not None and not one.silent)
    ]
    waiting = [one.ready_at for one in letters if not (one.is_urgent or one.silent) and one.taken_seq is None]
    return Mail(min(urgent, default=None), min(waiting, default=None), max(waiting, default=None))


def due_at(
    letters: Sequence[Letter],
    *,
    rules: Announcing = RULES,
    is_held: bool = False,
    hold_until: float | None = None,
    working_children: int = 0,
) -> float | None:
    return due(
        mail_of(letters),
        now=NOW,
        is_closed=False,
        is_paused=False,
        is_held=is_held,
        hold_until=hold_until,
        working_children=working_children,
        run=None,
        parked_until=None,
        rules=rules,
    )


@st.composite
def letters(draw: st.DrawFn) -> Letter:
    kind = draw(st.sampled_from([*LetterKind, LetterKind.ANNOUNCE, LetterKind.ANNOUNCE]))
    is_announce = kind is LetterKind.ANNOUNCE
    is_silent = is_announce and draw(st.booleans())
    is_back = draw(st.booleans())
    moment = st.sampled_from([80.0, 89.5, 90.0, 99.0, 99.5, 100.0, 100.5, 130.0])
    at = min(draw(moment), NOW)
    ready_at = draw(moment) if is_back else at
    return letter(
        0,
        kind,
        at=at,
        ready_at=max(at, ready_at),
        silent=is_silent,
        route=draw(st.sampled_from(["", "web:1"])),
        taken_seq=draw(st.integers(1, 9)) if is_back else None,
        expects=draw(st.booleans()),
    )


MAILBOXES = st.lists(letters(), max_size=8).map(
    lambda box: [one._replace(id=LetterId(number)) for number, one in enumerate(box, start=1)]
)
RULE_SETS = st.builds(
    Announcing,
    mode=st.sampled_from(QueueMode),
    drop=st.sampled_from(Drop),
    cap=st.integers(1, 4),
    debounce_s=st.sampled_from([0.0, 1.0, 5.0]),
)
RUNNING = st.builds(RunningTurn, by_person=st.booleans(), route=st.sampled_from(["", "web:1"]))


@dataclass(frozen=True, slots=True)
class Hold:
    """What a session that sleeps for its children knows when it is looked at."""

    is_held: bool = False
    working_children: int = 0
    hold_until: float | None = None

    @property
    def is_settled(self) -> bool:
        has_expired = self.hold_until is not None and self.hold_until <= NOW
        return self.is_held and (not self.working_children or has_expired)


HOLDS = st.one_of(
    st.just(Hold()),
    st.builds(Hold, st.just(True), st.integers(0, 2), st.sampled_from([None, 50.0, NOW, 200.0])),
)


def looked_at(box: Sequence[Letter], rules: Announcing, hold: Hold) -> tuple[float | None, LetterSelection]:
    moment = due_at(
        box,
        rules=rules,
        is_held=hold.is_held,
        hold_until=hold.hold_until,
        working_children=hold.working_children,
    )
    choice = choose(box, Point.START, now=NOW, rules=rules, is_held=hold.is_held, is_settled=hold.is_settled)
    return moment, choice


# ---- due and choose agree ----------------------------------------------------------------------------


@given(MAILBOXES, RULE_SETS, HOLDS)
@example([letter(1, silent=True, taken_seq=3)], RULES, Hold())
def test_whenever_a_session_is_due_it_finds_something_to_take(
    box: list[Letter], rules: Announcing, hold: Hold
) -> None:
    """A hold may be over with an empty mailbox; then there is only the fact itself to tell."""
    moment, choice = looked_at(box, rules, hold)
    assume(box or not hold.is_settled)
    if moment is not None and moment <= NOW:
        assert choice


@given(MAILBOXES, RULE_SETS, HOLDS)
def test_session_that_is_not_due_finds_at_most_announces_still_in_their_debounce(
    box: list[Letter], rules: Announcing, hold: Hold
) -> None:
    """They may be taken early when a run starts anyway; whatever starts one by itself would be due."""
    moment, choice = looked_at(box, rules, hold)
    if moment is None:
        assert choice == LetterSelection()
    elif moment > NOW:
        assert all(one.kind is LetterKind.ANNOUNCE and one.taken_seq is None for one in choice.taken)
        assert not choice or rules.debounce_s


def test_held_session_with_an_empty_mailbox_is_due_once_nobody_works() -> None:
    assert due_at([], is_held=True, working_children=0) == NOW
    assert due_at([], is_held=True, working_children=1, hold_until=500) == 500
    assert due_at([], is_held=True, working_children=1) is None


@pytest.mark.parametrize(
    ("is_closed", "is_paused", "run", "parked_until", "expected"),
    [
        (True, False, None, None, None),
        (True, False, RunState.RUNNING, None, None),
        (True, True, RunState.RUNNING, None, None),
        (False, True, None, None, None),
        (False, True, RunState.PARKED, 500.0, None),
        (False, True, RunState.ASKING, None, None),
        (False, True, RunState.ANSWERED, None, None),
        # Its worker is gone and it is not parked: one more claim parks it.
        (False, True, RunState.RUNNING, None, 0.0),
    ],
)
def test_closed_or_paused_session_is_due_only_to_be_parked(
    *,
    is_closed: bool,
    is_paused: bool,
    run: RunState | None,
    parked_until: float | None,
    expected: float | None,
) -> None:
    moment = due(
        mail_of([letter(1, LetterKind.USER)]),
        now=NOW,
        is_closed=is_closed,
        is_paused=is_paused,
        is_held=True,
        hold_until=1.0,
        working_children=0,
        run=run,
        parked_until=parked_until,
        rules=RULES,
    )
    assert moment == expected


@pytest.mark.parametrize(("is_closed", "expected"), [(False, 0.0), (True, None)])
def test_paused_session_whose_worker_died_before_the_run_is_due_to_be_parked(
    *, is_closed: bool, expected: float | None
) -> None:
    moment = due(
        mail_of([]),
        now=NOW,
        is_closed=is_closed,
        is_paused=True,
        is_held=False,
        hold_until=None,
        working_children=0,
        run=None,
        parked_until=None,
        rules=RULES,
        is_unbegun=True,
    )
    assert moment == expected


@pytest.mark.parametrize("parked_until", [None, 500.0])
def test_open_run_goes_on_at_once_or_when_its_park_is_over_whatever_the_mailbox_says(
    parked_until: float | None,
) -> None:
    moment = due(
        mail_of([letter(1, LetterKind.USER, at=NOW + 50)]),
        now=NOW,
        is_closed=False,
        is_paused=False,
        is_held=False,
        hold_until=None,
        working_children=0,
        run=RunState.RUNNING if parked_until is None else RunState.PARKED,
        parked_until=parked_until,
        rules=RULES,
    )
    assert moment is not None
    assert moment <= NOW if parked_until is None else moment == parked_until


def test_empty_mailbox_is_not_due() -> None:
    assert due_at([]) is None


# ---- debounce ----------------------------------------------------------------------------------------


def test_a_heartbeat_has_a_turn_of_its_own_after_the_other_urgent_letters() -> None:
    kinds = (LetterKind.HEARTBEAT, LetterKind.INSTRUCTION, LetterKind.HEARTBEAT)
    box = [letter(number, kind) for number, kind in enumerate(kinds, start=1)]
    turns = []
    while box:
        taken = choose(box, Point.START, now=NOW, rules=Announcing()).taken
        turns.append([one.id for one in taken])
        box = [one for one in box if one not in taken]
    assert turns == [[2], [1], [3]]


@pytest.mark.scenario(88)
def test_each_letter_starts_the_debounce_anew_but_not_beyond_ten_times() -> None:
    assert due_at([letter(1, at=50)]) == 51
    assert due_at([letter(1, at=50), letter(2, at=50.5)]) == 51.5
    trickle = [letter(number, at=50 + number * 0.9) for number in range(20)]
    assert due_at(trickle) == 60


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_debounce_ends_between_one_and_ten_lengths_after_the_first_letter(
    moments: list[float], debounce_s: float
) -> None:
    rules = Announcing(debounce_s=debounce_s)
    moment = due_at([letter(number, at=at) for number, at in enumerate(moments)], rules=rules)
    assert moment is not None
    assert min(moments) + debounce_s <= moment <= min(moments) + 10 * debounce_s
    assert moment <= max(moments) + debounce_s


@pytest.mark.parametrize("kind", [kind for kind in LetterKind if kind is not LetterKind.ANNOUNCE])
def test_urgent_letter_needs_no_debounce(kind: LetterKind) -> None:
    assert due_at([letter(1, at=99.9), letter(2, kind, at=99.9)]) == 99.9


def test_letter_given_back_waits_for_its_own_time_without_debounce() -> None:
    back = letter(1, at=50, ready_at=120, taken_seq=3)
    assert due_at([back]) == 120
    assert not choose([back], Point.START, now=119, rules=RULES)
    assert choose([back], Point.START, now=120, rules=RULES).blocks == (back,)


def test_silent_letter_wakes_nobody() -> None:
    silent = letter(1, silent=True)
    assert due_at([silent]) is None
    assert not choose([silent], Point.START, now=NOW, rules=RULES)


# ---- a turn ------------------------------------------------------------------------------------------


@pytest.mark.scenario(206)
@given(MAILBOXES, RULE_SETS, HOLDS)
def test_person_is_read_first_and_alone(box: list[Letter], rules: Announcing, hold: Hold) -> None:
    person = letter(99, LetterKind.USER, at=95)
    _, choice = looked_at([*box, person], rules, hold)
    ready = [one for one in box if one.kind in PERSON_KINDS and (one.ready_at <= NOW or hold.is_settled)]
    people = [*ready, person]
    together = [one for one in people if one.route == people[0].route and one.kind is LetterKind.USER]
    expected = people[:1] if people[0].kind is LetterKind.REQUEST else together
    assert choice == LetterSelection(urgent=tuple(expected))


@given(MAILBOXES, RULE_SETS, HOLDS)
def test_a_turn_answers_one_request_and_nothing_else(
    box: list[Letter], rules: Announcing, hold: Hold
) -> None:
    """In the order they came, whatever else people wrote meanwhile."""
    asked = [letter(number, LetterKind.REQUEST, at=95) for number in (97, 98, 99)]
    left, taken = [*box, *asked], list[Letter]()
    while any(one in left for one in asked):
        _, choice = looked_at(left, rules, hold)
        if any(one.kind is LetterKind.REQUEST for one in choice.taken):
            assert len(choice.taken) == 1
            taken += choice.taken
        left = [one for one in left if one not in choice.taken]
    assert [one for one in taken if one in asked] == asked


@pytest.mark.scenario(206)
def test_letters_that_waited_behind_a_person_are_collected_in_the_next_turn() -> None:
    box = [*announces(5), letter(9, LetterKind.USER)]
    first = choose(box, Point.START, now=NOW, rules=RULES)
    rest = [one for one in box if one not in first.taken]
    assert choose(rest, Point.START, now=NOW, rules=RULES).blocks == tuple(announces(5))


def test_instructions_are_read_before_announces_and_without_them() -> None:
    instruction, note = letter(8, LetterKind.INSTRUCTION), letter(9, LetterKind.NOTE)
    choice = choose([*announces(2), instruction, note], Point.START, now=NOW, rules=RULES)
    assert choice == LetterSelection(urgent=(instruction, note))


@pytest.mark.scenario(88)
def test_three_results_are_one_turn_with_three_blocks() -> None:
    assert choose(announces(3), Point.START, now=NOW, rules=RULES) == LetterSelection(
        blocks=tuple(announces(3))
    )


def test_followup_takes_one_letter_a_turn_in_order() -> None:
    rules, box = Announcing(mode=QueueMode.FOLLOWUP), announces(3)
    read: list[Letter] = []
    while choice := choose(box, Point.START, now=NOW, rules=rules):
        assert len(choice.taken) == 1
        read += choice.taken
        box = [one for one in box if one not in choice.taken]
    assert read == announces(3)


@pytest.mark.scenario(89)
@given(MAILBOXES, RULE_SETS)
def test_routes_never_mix_in_a_turn_of_announces_or_of_people(box: list[Letter], rules: Announcing) -> None:
    choice = choose(box, Point.START, now=NOW, rules=rules)
    people = {one.route for one in choice.urgent if one.kind is LetterKind.USER}
    assert len({one.route for one in (*choice.announces, *choice.dropped)}) <= 1
    assert len(people) <= 1


@given(MAILBOXES, RULE_SETS, HOLDS, st.sampled_from(Point), RUNNING)
def test_no_letter_is_lost_or_taken_twice(
    box: list[Letter], rules: Announcing, hold: Hold, point: Point, running: RunningTurn
) -> None:
    choice = choose(
        box,
        point,
        now=NOW,
        rules=rules,
        is_held=hold.is_held,
        is_settled=hold.is_settled,
        running=running,
    )
    out = Counter(one.id for one in (*choice.taken, *choice.dropped))
    assert set(out.values()) <= {1}
    assert set(out) <= {one.id for one in box}
    assert sum(one.taken_seq is None for one in choice.blocks) <= rules.cap
    assert not [one for one in (*choice.lines, *choice.dropped) if one.taken_seq is not None]
    assert not [one for one in left_behind(box, choice, now=NOW) if one.taken_seq is not None]
    assert not choice.dropped or rules.drop is not Drop.SUMMARIZE
    assert not choice.lines or rules.drop is Drop.SUMMARIZE
    if not hold.is_settled:
        early = [one for one in (*choice.taken, *choice.dropped) if one.ready_at > NOW]
        assert not early or (point is Point.STEP and {one.kind for one in early} <= INJECTED)


@pytest.mark.scenario(82)
@pytest.mark.scenario(212)
@pytest.mark.parametrize("count", [19, 20, 21, 100])
@pytest.mark.parametrize("drop", list(Drop))
def test_cap_shows_20_in_full_and_accounts_for_the_rest(count: int, drop: Drop) -> None:
    box = announces(count)
    choice = choose(box, Point.START, now=NOW, rules=Announcing(drop=drop))
    over = max(0, count - 20)
    kept, rest = (box[:20], box[20:]) if drop is Drop.NEW else (box[over:], box[:over])
    assert choice.blocks == tuple(kept)
    assert choice.lines == (tuple(rest) if drop is Drop.SUMMARIZE else ())
    assert choice.dropped == (() if drop is Drop.SUMMARIZE else tuple(rest))


# ---- a hold ------------------------------------------------------------------------------------------


def _read_together(box: list[Letter]) -> list[Letter]:
    """Those that want a turn each have it later, unless there is nothing else."""
    return [one for one in box if not one.is_solo] or box[:1]


@given(MAILBOXES, RULE_SETS)
def test_settled_hold_reads_every_letter_at_once_unless_a_person_spoke(
    box: list[Letter], rules: Announcing
) -> None:
    assume(all(one.kind not in PERSON_KINDS for one in box))
    here = [one._replace(route="") for one in box]
    choice = choose(here, Point.START, now=NOW, rules=rules, is_held=True, is_settled=True)
    assert Counter((*choice.taken, *choice.dropped)) == Counter(_read_together(here))
    assert choice.silent == tuple(one for one in here if one.silent)


@pytest.mark.scenario(89)
@given(MAILBOXES, RULE_SETS)
def test_what_a_settled_hold_leaves_for_another_route_is_read_in_the_next_turns(
    box: list[Letter], rules: Announcing
) -> None:
    assume(all(one.kind not in PERSON_KINDS for one in box))
    first = choose(box, Point.START, now=NOW, rules=rules, is_held=True, is_settled=True)
    rest = [one for one in box if one not in (*first.taken, *first.dropped)]
    assert len({one.route for one in (*first.announces, *first.dropped, *first.silent)}) <= 1
    while choice := choose(rest, Point.START, now=1000.0, rules=rules):
        rest = [one for one in rest if one not in (*choice.taken, *choice.dropped)]
    assert all(one.silent for one in rest)


def test_held_session_leaves_announces_alone_while_children_work() -> None:
    box = [*announces(3), letter(4, silent=True)]
    assert not choose(box, Point.START, now=NOW, rules=RULES, is_held=True)
    back = box[0]._replace(taken_seq=5)
    assert choose([back, *box[1:]], Point.START, now=NOW, rules=RULES, is_held=True).taken == (back,)


def test_held_session_answers_what_is_urgent() -> None:
    plan = letter(9, LetterKind.PLAN)
    choice = choose([*announces(3), plan], Point.START, now=NOW, rules=RULES, is_held=True)
    assert choice == LetterSelection(urgent=(plan,))


# ---- between two steps -------------------------------------------------------------------------------


@pytest.mark.scenario(81)
@pytest.mark.scenario(84)
@pytest.mark.parametrize(
    ("mode", "expects", "is_injected"),
    [
        (QueueMode.AUTO, True, False),
        (QueueMode.AUTO, False, True),
        (QueueMode.COLLECT, False, False),
        (QueueMode.FOLLOWUP, False, False),
        (QueueMode.STEER, True, True),
        (QueueMode.STEER_BACKLOG, True, True),
        (QueueMode.INTERRUPT, False, False),
    ],
)
def test_mode_decides_what_a_running_turn_is_told(mode: QueueMode, expects: bool, is_injected: bool) -> None:
    box = announces(2, expects=expects)
    rules = Announcing(mode=mode)
    choice = choose(box, Point.STEP, now=NOW, rules=rules)
    assert choice.taken == (tuple(box) if is_injected else ())
    assert injects(mode, expects) is is_injected


@pytest.mark.parametrize("mode", list(QueueMode))
def test_notes_of_the_runtime_reach_a_running_turn_in_every_mode_and_people_do_not(mode: QueueMode) -> None:
    note, person = letter(1, LetterKind.NOTE), letter(2, LetterKind.USER)
    choice = choose([note, person], Point.STEP, now=NOW, rules=Announcing(mode=mode))
    assert choice == LetterSelection(urgent=(note,))


@given(MAILBOXES, RULE_SETS, RUNNING)
def test_run_at_a_step_reads_every_note_even_one_that_waits_for_a_tool(
    box: list[Letter], rules: Announcing, running: RunningTurn
) -> None:
    """Else a run with something left to read would speak its last words again and again."""
    taken = choose(box, Point.STEP, now=NOW, rules=rules, running=running).urgent
    assert taken == tuple(letter for letter in box if letter.kind in INJECTED)


def test_auto_injects_only_what_nobody_waits_for() -> None:
    waited_for, other = letter(1), letter(2, expects=False)
    assert choose([waited_for, other], Point.STEP, now=NOW, rules=RULES).taken == (other,)


def test_only_letters_for_the_running_turns_own_route_are_injected() -> None:
    here, there = letter(1, route="web:1"), letter(2, route="web:2")
    rules, running = Announcing(mode=QueueMode.STEER), RunningTurn(route="web:1")
    assert choose([here, there], Point.STEP, now=NOW, rules=rules, running=running).taken == (here,)


@pytest.mark.parametrize("by_person", [True, False])
def test_interrupt_ends_the_running_turn_unless_a_person_started_it(by_person: bool) -> None:
    rules = Announcing(mode=QueueMode.INTERRUPT)
    choice = choose(announces(1), Point.STEP, now=NOW, rules=rules, running=RunningTurn(by_person))
    assert choice.interrupts is not by_person
    assert not choice.taken
    assert not choose([letter(1, silent=True)], Point.STEP, now=NOW, rules=rules).interrupts


@given(MAILBOXES, HOLDS)
def test_turn_that_is_interrupted_finds_something_to_read_in_its_place(box: list[Letter], hold: Hold) -> None:
    rules = Announcing(mode=QueueMode.INTERRUPT)
    if choose(box, Point.STEP, now=NOW, rules=rules, is_held=hold.is_held).interrupts:
        assert choose(box, Point.START, now=NOW, rules=rules, is_held=hold.is_held)


def test_what_could_not_be_injected_follows_one_by_one_or_together() -> None:
    box = announces(3)
    backlog, steer = Announcing(mode=QueueMode.STEER_BACKLOG), Announcing(mode=QueueMode.STEER)
    assert choose(box, Point.START, now=NOW, rules=backlog).taken == (box[0],)
    assert choose(box, Point.START, now=NOW, rules=steer).taken == tuple(box)


def test_silent_letters_are_never_injected() -> None:
    rules = Announcing(mode=QueueMode.STEER)
    assert not choose([letter(1, silent=True)], Point.STEP, now=NOW, rules=rules)


@pytest.mark.parametrize(
    ("direct", "depths", "is_settled", "sends"),
    [
        (Direct.SEND, [1, 1], False, True),
        (Direct.TURN, [1, 1], False, False),
        (Direct.SEND, [1, 2], False, False),
        (Direct.SEND, [1, 1], True, False),
        (Direct.SEND, [], False, False),
    ],
)
def test_only_results_of_own_children_that_nobody_sleeps_for_are_sent_as_they_are(
    direct: Direct, depths: list[int], is_settled: bool, sends: bool
) -> None:
    choice = LetterSelection(blocks=tuple(announces(len(depths))))
    assert is_sent(choice, depths, Announcing(direct=direct), is_settled=is_settled) is sends


def test_what_must_be_answered_is_never_only_sent() -> None:
    choice = LetterSelection(urgent=(letter(9, LetterKind.PLAN),), blocks=tuple(announces(1)))
    assert not is_sent(choice, [1], Announcing(direct=Direct.SEND), is_settled=False)


# ---- the trace ---------------------------------------------------------------------------------------

BUSY, ENDED = ("direct-primary", "requester-busy"), ("steer-primary", "turn ended first")
GONE, AGAIN = ("direct-primary", "requester gone"), ("direct-primary", "attempt failed")
SLEPT = ("direct-primary", "descendants-active")


@pytest.mark.scenario(202)
@pytest.mark.parametrize(
    ("point", "mode", "idle_since", "path", "tried"),
    [
        (Point.STEP, QueueMode.STEER, None, Path.STEERED, ()),
        (Point.STEP, QueueMode.STEER, 50.0, Path.STEERED, ()),
        (Point.START, QueueMode.AUTO, None, Path.DIRECT, ()),
        (Point.START, QueueMode.AUTO, 90.0, Path.DIRECT, ()),
        (Point.START, QueueMode.AUTO, 90.1, Path.QUEUED, (BUSY,)),
        (Point.START, QueueMode.INTERRUPT, 90.1, Path.QUEUED, (BUSY,)),
        (Point.START, QueueMode.STEER, 90.1, Path.QUEUED, (ENDED,)),
        (Point.START, QueueMode.STEER_BACKLOG, 90.1, Path.QUEUED, (ENDED,)),
    ],
)
def test_trace_names_the_path_and_why_the_first_one_was_left(
    point: Point, mode: QueueMode, idle_since: float | None, path: Path, tried: tuple[tuple[str, str], ...]
) -> None:
    way = way_of(letter(1, at=90), point, mode, idle_since=idle_since)
    assert (way.path, way.tried) == (path, tried)


@pytest.mark.scenario(202)
def test_trace_names_everything_a_letter_went_through_in_order() -> None:
    risen = letter(1, at=90, taken_seq=3)._replace(bubbled_from=SessionId(7))
    way = way_of(risen, Point.START, QueueMode.AUTO, idle_since=95.0)
    assert way.tried == (GONE, AGAIN, BUSY)
    assert way_of(letter(1), Point.START, QueueMode.AUTO, idle_since=50.0, was_held=True).tried == (SLEPT,)


@pytest.mark.parametrize(
    ("idle_since", "way"), [(91.0, (Path.DIRECT, (AGAIN,))), (99.0, (Path.QUEUED, (AGAIN, BUSY)))]
)
def test_requester_is_busy_for_a_second_attempt_only_if_it_was_when_that_was_due(
    idle_since: float, way: tuple[Path, object]
) -> None:
    back = letter(1, at=90, ready_at=95, taken_seq=3)
    assert way_of(back, Point.START, QueueMode.AUTO, idle_since=idle_since) == way


# ---- put off -------------------------------------------------------------------------------------------

NIGHT = ActiveHours("09:00", "17:00")
MIDNIGHT, NOON = 86_400.0 * 20_000, 86_400.0 * 20_000 + 12 * 3600


@pytest.mark.parametrize("mode", QueueMode)
@pytest.mark.parametrize("expects_completion", [True, False])
def test_result_is_put_off_by_a_turn_exactly_when_that_turn_will_not_read_it(
    mode: QueueMode, expects_completion: bool
) -> None:
    rules = Announcing(mode=mode)
    why = put_off(
        now=NOON, has_open_run=True, is_held=False, expects_completion=expects_completion, rules=rules, hours=NIGHT
    )  # fmt: skip
    letter = Letter(
        LetterId(1), LetterKind.ANNOUNCE, "", NOON, NOON, TaskId(7), 1, expects_completion=expects_completion
    )
    choice = choose([letter], Point.STEP, now=NOON, rules=rules)
    assert (why is None) is (bool(choice) or choice.interrupts)
    assert why is None or (why.reason, left_behind([letter], choice, now=NOON)) == (
        "requester-busy",
        [letter],
    )


@pytest.mark.parametrize(
    ("now", "is_held", "hours", "until"),
    [
        (NOON, False, NIGHT, None),
        (MIDNIGHT, True, NIGHT, None),
        (MIDNIGHT, False, None, None),
        (MIDNIGHT, False, NIGHT, MIDNIGHT + 9 * 3600),
    ],
)
def test_idle_reader_is_asleep_only_outside_of_its_hours(
    now: float, is_held: bool, hours: ActiveHours | None, until: float | None
) -> None:
    idle = {"now": now, "has_open_run": False, "is_held": is_held, "expects_completion": True, "hours": hours}
    why = put_off(rules=Announcing(), **idle)  # type: ignore[arg-type]
    assert (None if why is None else why.until) == until


def test_reader_that_never_wakes_puts_off_for_ever() -> None:
    never = ActiveHours("09:00", "09:00")
    idle = {"now": NOON, "has_open_run": False, "is_held": False, "expects_completion": True, "hours": never}
    assert put_off(rules=Announcing(), **idle) == ("quiet-hours", None)  # type: ignore[arg-type]


@given(st.floats(0, 1e9), st.floats(0, 1e6), st.floats(-1e6, 1e9))
def test_a_wait_never_lasts_longer_than_it_was_meant_to_once_the_clock_is_right(
    now: float, wait_s: float, ahead_s: float
) -> None:
    written_at = now + ahead_s
    moment = put_right(written_at + wait_s, written_at, now)
    if ahead_s > 61:
        assert moment - now == pytest.approx(wait_s, abs=1e-3)
    assert moment - now <= wait_s + 61
    assert put_right(moment, min(written_at, now), now) == moment


@given(st.floats(0, 1e9), st.floats(0, 1e6))
def test_a_timer_within_its_period_is_left_alone(now: float, period_s: float) -> None:
    assert not is_put_back(now + period_s, now, period_s)
    assert is_put_back(now + period_s + 100, now, period_s)
