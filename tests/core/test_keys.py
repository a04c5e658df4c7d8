"""Session keys, public ids and targets: one spelling per name, and no way to point at the wrong thing."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core import ids
from clutch.core.ids import (
    CANDIDATES_MAX,
    ROW_NUMBER_MAX,
    Ambiguous,
    BadKey,
    Candidate,
    FullKey,
    KeyKind,
    Keyword,
    Numbered,
    RunRef,
    SessionKey,
    TargetText,
    TaskRef,
    Unknown,
    Viewpoint,
    WaitingItem,
    agent_hint,
    agent_id_problem,
    hint,
    items_meant,
    main_key,
    parse_run_id,
    parse_session_key,
    parse_target,
    parse_task_id,
    resolve,
    run_id,
    subagent_key,
    target_text,
    task_id,
    worker_id,
)
from tests.examples import examples

AGENT_IDS = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,63}", fullmatch=True)
CHAT_NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True)
UUIDS = st.uuids(version=4).map(str)
KEYS = st.one_of(
    st.builds(SessionKey, AGENT_IDS, st.just(KeyKind.MAIN)),
    st.builds(SessionKey, AGENT_IDS, st.just(KeyKind.CHAT), CHAT_NAMES),
    st.builds(SessionKey, AGENT_IDS, st.just(KeyKind.SUBAGENT), UUIDS),
)
CHILD = "agent:main:subagent:6b1f0a52-3c7e-4d19-9a40-0f2d5e8c7b13"
NUMBERS = st.integers(0, ROW_NUMBER_MAX)

# Each looks like `main` or could be taken for it by a surface that trims, folds case or decodes.
ODD_AGENT_IDS = [
    "", " ", "*", "Main", "MAIN", "mAin", " main", "main ", "main\n", "\nmain", "main\r", "main\t",
    "main\x00",
    "\x00main", "main\u200b", "\u200bmain", "ma\u00adin", "main\ufeff", "\ufeffmain", "ma\u200din",
    "\u202emain", "main\u202c", "\u2066main\u2069", "\uff4d\uff41\uff49\uff4e", "m\u0430in", "ma\u0456n",
    "ma\u0131n", "m\u00e1in", "ma\u0301in", "\U0001d426\U0001d41a\U0001d422\U0001d427", "main.", ".main",
    "-main", "_main", "main/", "/main", "../main", "main/../main", "main\\", "main:", ":main", "main:main",
    "main%00", "%6dain", "main;", "main'", 'main"', "main,research", "main|research", "[main]", "{main}",
    "ma*n",
    "main*", "ma?n", "m a i n", "main\u00a0", "main\u2028", "main\u0085", "main\ud800", "a" * 65,
    "Agent not found: x", "\u0661\u0662", "main=", "~main", "$main", "main@host", "main\U000e0061",
]  # fmt: skip


@given(KEYS)
def test_every_session_key_is_read_back_as_itself(key: SessionKey) -> None:
    assert parse_session_key(str(key)) == key
    assert parse_target(str(key)) == FullKey(key)


@given(st.text(max_size=80) | st.from_regex(r"agent:[^\n]{0,20}:(main|chat|subagent)[^\n]{0,40}"))
def test_a_text_is_a_session_key_only_in_its_one_spelling(text: str) -> None:
    key = parse_session_key(text)
    assert isinstance(key, BadKey) or str(key) == text


@pytest.mark.parametrize(
    "text",
    [
        "agent:main\n:main", "agent:main :main", "agent:ma.in:chat:a", f"agent:{'a' * 65}:main",
        "agent:main", "agent:main:main:", "agent:main:main:x", "agent::main", "Agent:main:main",
        "agent:main:Main",
        "agent:main:chat", "agent:main:chat:", "agent:main:chat:a:b", "agent:main:chat:A",
        "agent:main:chat:-a",
        "agent:main:chat:../x", "agent:main:chat:a\n", "agent:main:chat:" + "a" * 65, "agent:main:subagent:",
        CHILD.upper(), CHILD[:-1], CHILD + "0", CHILD.replace("4d19", "1d19"), CHILD.replace("9a40", "ca40"),
        CHILD.replace("-", ""), CHILD + "\n", f"{{{CHILD}}}", f" {CHILD}",
    ],
)  # fmt: skip
def test_a_malformed_session_key_is_rejected(text: str) -> None:
    assert isinstance(parse_session_key(text), BadKey)


def test_a_key_cannot_be_built_around_the_grammar() -> None:
    with pytest.raises(ValueError, match="agent id"):
        main_key("Main")
    with pytest.raises(ValueError, match="uuid4"):
        subagent_key("main", str(uuid.UUID(int=0)))


def test_only_a_well_formed_agent_id_passes() -> None:
    assert len(set(ODD_AGENT_IDS)) >= 50
    assert [text for text in ["main", "a-b_c", *ODD_AGENT_IDS] if agent_id_problem(text) is None] == [
        "main",
        "a-b_c",
    ]


@pytest.mark.parametrize("text", ["Main", " main", "mian", "main\u200b"])
def test_the_nearest_configured_name_is_proposed(text: str) -> None:
    assert hint(text, {"main", "research"}) == "; did you mean 'main'?"


def test_a_name_that_only_shares_letters_is_not_proposed() -> None:
    assert hint("nope", {"openai", "offline"}) == ""


def test_a_refusal_shows_escapes_and_not_the_whole_input() -> None:
    odd = "\x1b[31m\u202e" + "x" * 5000
    refusal = (agent_id_problem(odd) or "") + hint(odd, {"main"})
    assert refusal
    assert refusal.isprintable()
    assert len(refusal) < 200


@given(NUMBERS)
def test_every_row_number_has_one_id_and_gets_back(number: int) -> None:
    assert parse_task_id(task_id(number)) == number
    assert parse_run_id(run_id(number)) == number
    assert worker_id(number).removeprefix("w_") == task_id(number).removeprefix("t_")
    assert parse_run_id(task_id(number)) is None


@given(st.text("0123456789abcdefghjkmnpqrstvwxyzilouA_- \n", max_size=16).map(lambda digits: "t_" + digits))
def test_an_id_is_read_only_in_its_one_spelling(text: str) -> None:
    number = parse_task_id(text)
    assert number is None or task_id(number) == text


@pytest.mark.parametrize("text", ["t_", "t_10", "t_00", "t_7F", "T_7", "t_7\n", "t_" + "z" * 13, "7", "t_u"])
def test_another_spelling_of_an_id_is_no_id(text: str) -> None:
    assert parse_task_id(text) is None


@pytest.mark.parametrize("number", [-1, ROW_NUMBER_MAX + 1])
def test_a_number_no_row_can_have_has_no_id(number: int) -> None:
    with pytest.raises(ValueError, match="row number"):
        task_id(number)


@given(st.integers(0, ROW_NUMBER_MAX - 32))
def test_rows_made_one_after_the_other_differ_in_their_first_digit(start: int) -> None:
    assert len({task_id(number)[:3] for number in range(start, start + 32)}) == 32


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (" last ", Keyword.LAST), ("main", Keyword.MAIN), ("current", Keyword.CURRENT), ("Last", TargetText("Last")),
        ("3", Numbered(3, "3")),
        ("#12", Numbered(12, "#12")), ("007", Numbered(7, "007")), ("t_7f", TaskRef(7 + 15 * 32)),
        ("r_1", RunRef(1)),
        ("t_10", TargetText("t_10")), ("#", TargetText("#")), ("-1", TargetText("-1")),
        ("9" * 10, TargetText("9" * 10)),
        ("", TargetText("")),
        ("\u0663", TargetText("\u0663")), ("AI research", TargetText("AI research")),
        ("agent:main:su", TargetText("agent:main:su")),
    ],
)  # fmt: skip
def test_what_was_typed_is_read_as(text: str, target: object) -> None:
    assert parse_target(text) == target


@given(st.text(max_size=100) | st.text("0123456789#", max_size=5000))
def test_any_text_is_some_target_and_keeps_its_words(text: str) -> None:
    assert target_text(parse_target(text)) == text.strip()


def child(number: int, label: str | None = None) -> Candidate:
    key = f"agent:main:subagent:{uuid.UUID(int=(number << 80) | (4 << 76) | (8 << 60))}"
    return Candidate(key, number, number + 1000, label)


ROOT = Candidate("agent:main:main")
NOWHERE = Viewpoint()


def found(text: str, candidates: list[Candidate], viewpoint: Viewpoint = NOWHERE) -> object:
    return resolve(parse_target(text), candidates, viewpoint)


def test_key_ids_number_and_keywords_find_their_session() -> None:
    one, two = child(1, "AI research"), child(2, "Data analysis")
    viewpoint = Viewpoint(
        {1: 2, 2: 1}, last_task_id=2, main_key=ROOT.session_key, current_key=one.session_key
    )
    for text, wanted in [
        (one.session_key, one), (task_id(1), one), (run_id(1002), two), ("1", two), ("#2", one),
        ("last", two),
        ("main", ROOT), ("current", one), ("Data analysis", two), ("AI", one), (ROOT.session_key, ROOT),
    ]:  # fmt: skip
        assert found(text, [ROOT, one, two], viewpoint) == wanted, text


def test_the_beginning_of_an_id_or_key_is_enough_while_it_is_unique() -> None:
    far, near = child(7 + 15 * 32), child(7 + 14 * 32)
    assert found("t_7f", [far, near]) == far
    assert found("t_7", [far]) == far
    assert found("t_7", [far, near]) == Ambiguous("t_7", (far, near), 2)
    assert found(far.session_key[:-1], [far]) == far


def test_an_exact_id_wins_over_longer_ids_that_begin_with_it() -> None:
    short, long = child(7), child(7 + 15 * 32)
    assert found("t_7", [long, short]) == short


@pytest.mark.parametrize("text", ["", "t", "t_", "r_", "a", "agent", "x"])
def test_too_little_to_go_by_points_at_nothing(text: str) -> None:
    assert found(text, [child(5, "research")]) == Unknown(text, (child(5, "research"),))


def test_an_exact_label_wins_over_labels_that_begin_with_it() -> None:
    exact, longer = child(1, "scan"), child(2, "scan again")
    assert found("scan", [longer, exact]) == exact
    assert found("sca", [longer, exact]) == Ambiguous("sca", (longer, exact), 2)


def test_a_number_nobody_was_shown_may_still_begin_a_label() -> None:
    labelled = child(9, "2024 figures")
    assert found("2024", [labelled]) == labelled
    assert found("2024", [labelled, child(3)], Viewpoint({2024: 3})) == child(3)


def test_a_label_cannot_catch_what_was_meant_for_a_keyword() -> None:
    newest, decoys = child(4, "other"), [child(5, "last resort"), child(6, "main"), child(7, "current")]
    viewpoint = Viewpoint(last_task_id=4, main_key=ROOT.session_key, current_key=ROOT.session_key)
    everyone = [ROOT, newest, *decoys]
    assert found("last", everyone, viewpoint) == newest
    assert found("main", everyone, viewpoint) == ROOT
    assert found("current", everyone, viewpoint) == ROOT


def test_a_number_of_a_task_out_of_sight_finds_nothing() -> None:
    assert isinstance(found("1", [child(2, "x")], Viewpoint({1: 99}, last_task_id=99)), Unknown)
    assert isinstance(found("last", [child(2, "x")], Viewpoint({1: 99}, last_task_id=99)), Unknown)
    assert isinstance(found("last", [ROOT]), Unknown)


def test_an_item_of_the_inbox_is_named_by_its_question_or_by_the_session_that_asks() -> None:
    asker, planner = child(1, "scan"), child(2, "scan again")
    one, two, plan = WaitingItem("q_7f", asker), WaitingItem("q_7", asker), WaitingItem(task_id(2), planner)
    viewpoint = Viewpoint({3: 2}, last_task_id=2)
    for text, meant in [
        ("q_7", [two]), ("q_7f", [one]), ("q_", []), ("q_8", []), (" q_7f ", [one]),
        ("scan", [one, two]), ("scan a", [plan]), ("last", [plan]), ("#3", [plan]), (task_id(2), [plan]),
        (asker.session_key, [one, two]), ("sca", [one, two, plan]), ("other", []),
    ]:  # fmt: skip
        assert items_meant(text, [one, two, plan], viewpoint) == meant, text


def test_unknown_and_ambiguous_list_at_most_ten_candidates() -> None:
    many = [child(number, "same") for number in range(30)]
    ambiguous = found("same", many)
    assert isinstance(ambiguous, Ambiguous)
    assert (len(ambiguous.candidates), ambiguous.total) == (CANDIDATES_MAX, 30)
    unknown = found("nothing like it", many)
    assert isinstance(unknown, Unknown)
    assert len(unknown.candidates) == CANDIDATES_MAX


CANDIDATES = st.lists(
    st.builds(child, st.integers(0, 3000), st.sampled_from([None, "last", "main", "3", "scan", "scan t_1"])),
    max_size=8,
    unique_by=lambda candidate: candidate.task_id,
)
TYPED = st.one_of(
    st.integers(0, 3000).map(task_id),
    st.sampled_from(["t_1", "last", "main", "3", "#3", "scan", "sc", "agent:"]),
)


@examples(300)
@given(TYPED, CANDIDATES, st.dictionaries(st.integers(0, 5), st.integers(0, 3000)), st.integers(0, 3000))
def test_nothing_is_found_outside_what_the_caller_may_see(
    text: str, candidates: list[Candidate], numbering: dict[int, int], last: int
) -> None:
    answer = resolve(parse_target(text), candidates, Viewpoint(numbering, last, ROOT.session_key))
    match answer:
        case Candidate():
            assert answer in candidates
        case Ambiguous():
            assert answer.total >= 2
            assert set(answer.candidates) <= set(candidates)
        case Unknown():
            assert set(answer.candidates) <= set(candidates)


@examples(300)
@given(CANDIDATES.filter(bool), st.data())
def test_a_full_id_or_key_always_finds_its_own_task(candidates: list[Candidate], data: st.DataObject) -> None:
    wanted = data.draw(st.sampled_from(candidates))
    assert wanted.task_id is not None
    assert wanted.run_id is not None
    for text in (wanted.session_key, task_id(wanted.task_id), run_id(wanted.run_id)):
        assert found(text, candidates) == wanted


@given(st.integers(min_value=0, max_value=ids.ROW_NUMBER_MAX), st.data())
def test_the_beginning_of_an_id_as_arithmetic_holds_for_every_id_it_begins(
    number: int, data: st.DataObject
) -> None:
    text = ids.task_id(number)
    beginning = text[: data.draw(st.integers(min_value=3, max_value=max(3, min(len(text), 14))))]
    divided = ids.low_digits("t_", beginning)
    assert divided is not None
    assert number % divided[0] == divided[1]


@pytest.mark.parametrize("text", ["t_", "t", "", "r_7", "t_u", "t_" + "1" * 13, "T_7"])
def test_what_begins_no_id_has_no_arithmetic(text: str) -> None:
    assert ids.low_digits("t_", text) is None


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("agent:mian:main", "; did you mean 'main'?"),
        ("agent:reserch:chat:dan", "; did you mean 'research'?"),
        ("agent:main:main", ""),
        ("mian", ""),
    ],
)
def test_wrong_agent_in_a_session_key_is_answered_with_the_nearest(text: str, near: str) -> None:
    assert agent_hint(text, {"main", "research"}) == near


def test_key_with_an_agent_id_of_the_wrong_form_names_the_nearest() -> None:
    wrong = parse_session_key("agent:Research:main", {"main", "research"})
    assert isinstance(wrong, BadKey)
    assert wrong.message.endswith("did you mean 'research'?")
    badly_named = parse_session_key("agent:research:chat:No", {"main"})
    assert isinstance(badly_named, BadKey)
    assert "did you mean" not in badly_named.message
