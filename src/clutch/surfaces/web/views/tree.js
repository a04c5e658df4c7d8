// The order of the list: families in four groups by who has to act, children below their parent.
//
// The order is stable: an active family stays where it was created, a finished one stands where it ended. A family is
// shown once, in the group of its most urgent member.

const GROUPS = ["needs attention", "active", "undelivered", "finished"];

const urgency = (task) => GROUPS.indexOf(task.group);
const ended = (task) => (task.endedAt === null ? 0 : Date.parse(task.endedAt));

/** Return `[{ group, families: [{ top, members: [{ task, level, children }], start, end }] }]` without empty groups. */
export function groupsOf(tasks) {
  const families = familiesOf(tasks);
  const found = GROUPS.map((group, place) => ({ group, families: families.filter((one) => one.urgency === place) }));
  found[3].families.sort((a, b) => b.ended - a.ended);
  return found.filter((one) => one.families.length);
}

function familiesOf(tasks) {
  const known = new Map([...tasks].map((task) => [task.taskId, task]));
  const below = Map.groupBy(known.values(), (task) => (known.has(task.parentTaskId) ? task.parentTaskId : null));
  for (const list of below.values()) list.sort((a, b) => a.createdAt.localeCompare(b.createdAt) || a.taskId.localeCompare(b.taskId));
  const families = (below.get(null) ?? []).map((top) => family(top, below));
  // Imported tasks can be each other's parent: none of them is a top, and each is shown by itself.
  const seen = new Set(families.flatMap((one) => one.members.map((member) => member.task.taskId)));
  for (const task of known.values()) if (!seen.has(task.taskId)) families.push(family(task, new Map()));
  return families;
}

function family(top, below) {
  const members = [];
  const walk = (task, level) => {
    const children = below.get(task.taskId) ?? [];
    members.push({ task, level, children: children.length });
    for (const child of children) walk(child, level + 1);
  };
  walk(top, 1);
  const tasks = members.map((member) => member.task);
  return {
    top,
    members,
    urgency: Math.min(...tasks.map(urgency)),
    ended: Math.max(...tasks.map(ended)),
    start: Math.min(...tasks.map((task) => Date.parse(task.createdAt))),
    isOver: tasks.every((task) => task.activity === null),
  };
}

/** All tasks of one tree, each parent before its children: `[{ task, level, children }]`. */
export const orderOf = (tasks) => familiesOf(tasks).flatMap((one) => one.members);

/** The members that are shown: those below a folded task are not. */
export function shownMembers({ members }, isOpen) {
  const shown = [];
  let hiddenBelow = Infinity;
  for (const member of members) {
    if (member.level > hiddenBelow) continue;
    hiddenBelow = member.children && !isOpen(member.task) ? member.level : Infinity;
    shown.push(member);
  }
  return shown;
}
