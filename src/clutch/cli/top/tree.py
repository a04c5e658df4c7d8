"""The rows of the list: families in four groups by who has to act, children below their parent.

The order is stable: an active family stays where it was created, a finished one stands where it ended. A family is
shown once, in the group of its most urgent member. The page in the browser has the same order (`tree.js`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from clutch.core.families import in_families
from clutch.core.status import TaskGroup

Task = Mapping[str, Any]
GROUPS = tuple(TaskGroup)


@dataclass(frozen=True, slots=True)
class Row:
    """A task, or without one the heading of a group with the number of its tasks."""

    task: Task | None
    level: int = 1
    children: int = 0
    is_open: bool = False
    heading: str = ""
    count: int = 0

    @property
    def task_id(self) -> str | None:
        return None if self.task is None else str(self.task["taskId"])


@dataclass(frozen=True, slots=True)
class TreeMember:
    task: Task
    level: int
    children: int


@dataclass(frozen=True, slots=True)
class TaskFamily:
    members: list[TreeMember]

    @property
    def group(self) -> TaskGroup:
        return min((TaskGroup(one.task["group"]) for one in self.members), key=GROUPS.index)

    @property
    def ended(self) -> str:
        """Return when the last of them ended. Moments of the API are ordered like their texts."""
        return max(one.task["endedAt"] or "" for one in self.members)


@dataclass(slots=True)
class TaskTree:
    tasks: dict[str, Task] = field(default_factory=dict)
    text: str = ""  #: the filter
    _open: dict[str, bool] = field(default_factory=dict)  #: as the user has set it, or as it was shown

    def load(self, tasks: Iterable[Task]) -> None:
        """Replace all tasks: nothing is left of what was shown before a break."""
        self.tasks = {task["taskId"]: task for task in tasks}

    def keep(self, task: Task) -> None:
        self.tasks[task["taskId"]] = task

    def fold(self, task_id: str, *, is_open: bool) -> None:
        self._open[task_id] = is_open

    def lineage(self, task_id: str) -> list[Task]:
        """Return the task and those above it, the top first. Imported tasks can be each other's parents."""
        path: list[Task] = []
        while (task := self.tasks.get(task_id)) is not None and task not in path:
            path.insert(0, task)
            task_id = task["parentTaskId"]
        return path

    def rows(self) -> list[Row]:
        return [row for group, families in groups_of(self._shown()) for row in self._rows(group, families)]

    def _rows(self, group: TaskGroup, families: Sequence[TaskFamily]) -> Iterator[Row]:
        yield Row(None, heading=group.value, count=sum(len(one.members) for one in families))
        for family in families:
            hidden_below: int | None = None
            for one in family.members:
                if hidden_below is not None and one.level > hidden_below:
                    continue
                is_open = self._is_open(one, group)
                hidden_below = None if is_open else one.level
                yield Row(one.task, one.level, one.children, is_open)

    def _is_open(self, member: TreeMember, group: TaskGroup) -> bool:
        """A family that ends while it is shown stays as it was: nothing folds under the eyes of the user."""
        if not member.children or self.text:
            return True
        is_over = group is TaskGroup.FINISHED
        return self._open.get(member.task["taskId"], False) if is_over else self._kept_open(member)

    def _kept_open(self, member: TreeMember) -> bool:
        return self._open.setdefault(member.task["taskId"], True)

    def _shown(self) -> Iterable[Task]:
        """Return the tasks that match the filter, and those above them, without which they have no place."""
        if not self.text:
            return self.tasks.values()
        wanted = self.text.lower()
        matching = (one["taskId"] for one in self.tasks.values() if wanted in searched(one))
        shown = {task["taskId"] for task_id in matching for task in self.lineage(task_id)}
        return [task for task_id, task in self.tasks.items() if task_id in shown]


def searched(task: Task) -> str:
    """Return the text in which a filter looks."""
    return " ".join(
        str(task[name] or "") for name in ("taskId", "label", "status", "doingNow", "agentId")
    ).lower()


def groups_of(tasks: Iterable[Task]) -> list[tuple[TaskGroup, list[TaskFamily]]]:
    """Return the groups that have families, each with its families in order."""
    ordered = sorted(tasks, key=lambda one: (one["createdAt"], one["taskId"]))
    placed = in_families(ordered, itemgetter("taskId"), itemgetter("parentTaskId"))
    children = Counter(task["parentTaskId"] for level, task in placed if level)
    families: list[TaskFamily] = []
    for level, task in placed:
        member = TreeMember(task, level + 1, children[task["taskId"]])
        if not level:
            families.append(TaskFamily([]))
        families[-1].members.append(member)
    groups: dict[TaskGroup, list[TaskFamily]] = {group: [] for group in GROUPS}
    for family in families:
        groups[family.group].append(family)
    groups[TaskGroup.FINISHED].sort(key=lambda one: one.ended, reverse=True)
    return [(group, found) for group, found in groups.items() if found]
