"""The order of every list: a family stands where its most urgent member does, children below their own parent."""

from __future__ import annotations

from operator import itemgetter

from hypothesis import given
from hypothesis import strategies as st

from clutch.core.families import in_families

Pair = tuple[int, int | None]


def placed(pairs: list[Pair]) -> list[tuple[int, int]]:
    return [(level, pair[0]) for level, pair in in_families(pairs, itemgetter(0), itemgetter(1))]


def test_a_child_stands_below_its_parent_and_moves_the_family_up() -> None:
    pairs: list[Pair] = [(21, 2), (1, None), (11, 1), (2, None), (22, 2), (31, 3)]
    assert placed(pairs) == [(0, 2), (1, 21), (1, 22), (0, 1), (1, 11), (0, 31)]


def test_tasks_that_are_each_others_parents_come_last_with_what_is_below_them() -> None:
    assert placed([(8, 9), (7, 7), (1, None), (9, 8), (10, 9)]) == [(0, 1), (0, 8), (0, 7), (0, 9), (0, 10)]


@given(st.permutations(range(12)), st.lists(st.integers(-1, 13), min_size=12, max_size=12))
def test_every_task_is_listed_once_whatever_its_parent_is(order: list[int], parents: list[int]) -> None:
    shown = placed([(one, parents[one]) for one in order])
    assert sorted(one for _, one in shown) == list(range(12))


def test_a_chain_deeper_than_the_stack_of_python_is_placed() -> None:
    depth = 5000
    assert placed([(number, number - 1) for number in range(1, depth + 1)])[-1] == (depth - 1, depth)


@given(st.permutations(range(12)), st.lists(st.integers(-1, 11), min_size=12, max_size=12))
def test_every_task_is_listed_once_and_each_child_comes_directly_below_its_parents_line(
    order: list[int], parents: list[int]
) -> None:
    # A parent has a smaller number than its child, so that there is no circle.
    pairs: list[Pair] = [(one, parents[one] if parents[one] < one else None) for one in order]
    above, line = dict(pairs), list[int]()
    for level, one in (shown := placed(pairs)):
        assert level <= len(line), "no level is skipped"
        del line[level:]
        assert above[one] == (line[-1] if line else None) or (above[one] == -1 and not line)
        line.append(one)
    assert sorted(one for _, one in shown) == sorted(order)
    tops = [one for level, one in shown if not level]
    first = {top: min(order.index(one) for one in family(top, above)) for top in tops}
    assert tops == sorted(tops, key=first.__getitem__)


def family(top: int, above: dict[int, int | None]) -> set[int]:
    found = {top}
    while more := {one for one, parent in above.items() if parent in found} - found:
        found |= more
    return found
