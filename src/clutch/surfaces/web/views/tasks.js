// The list of tasks: a tree grid in four groups, with the decisions that wait for the user above it.

import { at, go, link, onMove } from "/web/address.js";
import { ask } from "/web/api.js";
import { Cards, followInbox, inboxItems, loadInbox, onInbox } from "/web/cards.js";
import { connection } from "/web/connection.js";
import { arrange, attribute, button, h, perFrame, put } from "/web/dom.js";
import { showNotice } from "/web/frame.js";
import { openNewTask } from "/web/newtask.js";
import * as store from "/web/store.js";
import { batchButton } from "/web/views/batch.js";
import { fillChoices, filterBar, fits, isFiltered, query } from "/web/views/filters.js";
import { closePeek, peekOf, togglePeek } from "/web/views/peek.js";
import { drawBar, fillRow, makeRow, tickRow } from "/web/views/rows.js";
import { groupsOf, shownMembers } from "/web/views/tree.js";

const TITLES = { "needs attention": "Needs attention", active: "Active", undelivered: "Undelivered", finished: "Finished" };
const COLUMNS = [["Task", "c-task"], ["Doing now", "c-doing"], ["Timeline", "c-bar"], ["Elapsed", "c-elapsed"], ["Tokens", "c-tokens"], ["Cost", "c-cost"]];
const DEMO_EXAMPLES = ["question: markers", "question: sizes", "Survey the folder"]; // the demo model knows few requests
const EXAMPLES = ["Summarise the README of this project.", "Find every TODO in this project and group them by topic.", "Read the docs with three subagents and list what is unclear."];

const FINISHED = 3; // the place of the last group

const listed = new Set(); // the ids that belong into the list
const rows = new Map();
const sections = new Map();
const folded = new Map(); // id -> isOpen, as the user has set it
const places = new Map(); // id -> what decided its place when the list was ordered
const visibleRows = new Set();
let next = null; // the cursor of the following page
let loads = 0;
let isLoaded = false;
let hasChoices = false;
let focused = null; // the id of the row that has the focus of the grid

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) visibleRows[isIntersecting ? "add" : "delete"](target);
  drawBars();
});
const cards = new Cards("Decisions that wait for you", { isCompact: true });
const further = h("p", { class: "further" }, h("a", { "data-local": true }));
const grid = h("div", { role: "treegrid", class: "grid", "aria-label": "Tasks" });
const head = h("div", { role: "rowgroup", class: "head" }, h("div", { role: "row" }, COLUMNS.map(([text, name]) => h("div", { role: "columnheader", class: name, text }))));
const more = button("Show older tasks", () => loadMore(), { class: "more", hidden: true });
const empty = emptyState();
const nothing = h("p", { class: "nothing", text: "No task matches these filters.", hidden: true });

export const tasksView = {
  name: "tasks",
  title: "Tasks",
  count: ({ summary }) => summary.running + summary.queued + summary.waiting + summary.needsYou,
  load,
  show(place) {
    grid.append(head);
    place.append(filterBar(batchButton()), cards.list, further, grid, empty, nothing, more);
    isLoaded = false;
  },
};

// ---- loading ---------------------------------------------------------------------------------------------

async function load() {
  const mine = ++loads;
  const askedAt = store.asking();
  const [page] = await Promise.all([ask(query()), loadInbox()]);
  if (mine !== loads) return page.cursor; // another filter was chosen meanwhile
  listed.clear();
  for (const one of page.tasks) { listed.add(one.taskId); store.keep(one, askedAt); }
  store.forgetAllBut(new Set([...listed, at().task]), askedAt);
  next = page.next;
  isLoaded = true;
  if (!hasChoices) fillChoices();
  hasChoices = true;
  showNotice("view", "");
  draw();
  return page.cursor;
}

async function loadMore() {
  const [mine, askedAt] = [loads, store.asking()];
  const page = await ask(query(next)).catch((error) => { showNotice("view", connection.failed(error)); return null; });
  if (!page || mine !== loads) return; // of another list
  for (const one of page.tasks) { listed.add(one.taskId); store.keep(one, askedAt); }
  next = page.next;
  draw();
}

// ---- drawing ---------------------------------------------------------------------------------------------

const isOpen = (task) => folded.get(task.taskId) ?? (task.group !== "finished" || task.children.active > 0 || Boolean(at().text));

/** Order all rows. Runs when a row came, went, or changed its group; a frame has at most one. */
const draw = perFrame(() => {
  if (!isLoaded) return;
  const found = groupsOf([...listed].map((id) => store.task(id)).filter(Boolean));
  const wanted = [head];
  places.clear();
  for (const id of listed) places.set(id, placeOf(store.task(id), true));
  let isFirst = true;
  for (const { group, families } of found) {
    const section = sectionOf(group);
    const shown = families.flatMap((family) => shownMembers(family, isOpen).map((member) => ({ ...member, family })));
    put(section.count, String(families.reduce((sum, one) => sum + one.members.length, 0)));
    const lines = shown.flatMap(({ task, level, children, family }) => {
      const row = rowOf(task);
      row.family = family;
      // A family that ends while it is shown stays as it was: nothing folds under the eyes of the user.
      if (children && family.urgency < FINISHED && !folded.has(task.taskId)) folded.set(task.taskId, true);
      fillRow(row, task, { level, children, isOpen: isOpen(task), isSelected: task.taskId === at().task });
      const peek = peekOf(task.taskId);
      return peek ? [row, peek] : [row];
    });
    arrange(section.body, [section.title, ...lines]);
    if (isFirst && !rows.has(focused)) focused = shown[0]?.task.taskId ?? null;
    isFirst = false;
    wanted.push(section.body);
  }
  arrange(grid, wanted);
  for (const [id, row] of rows) if (!listed.has(id)) drop(id, row);
  for (const [id, row] of rows) attribute(row, "tabindex", id === focused ? 0 : -1);
  grid.hidden = found.length === 0;
  empty.hidden = found.length > 0 || isFiltered() || next !== null;
  nothing.hidden = found.length > 0 || !empty.hidden;
  more.hidden = next === null;
  drawBars();
});

/** What decides where a task stands. As long as it is the same, an event changes no order. */
const placeOf = (task, belongs) => (task && belongs ? `${task.group} ${task.activity !== null} ${task.parentTaskId}` : "");

function rowOf(task) {
  let row = rows.get(task.taskId);
  if (!row) {
    row = makeRow(task);
    rows.set(task.taskId, row);
    observer.observe(row);
  }
  return row;
}

function drop(id, row) {
  observer.unobserve(row);
  visibleRows.delete(row);
  row.remove();
  rows.delete(id);
}

function sectionOf(group) {
  if (!sections.has(group)) {
    const count = h("span", { class: "count" });
    const title = h("div", { role: "row", class: "group" }, h("div", { role: "gridcell", "aria-colspan": COLUMNS.length }, h("span", { text: TITLES[group] }), count));
    sections.set(group, { title, count, body: h("div", { role: "rowgroup", "data-group": group, "aria-label": TITLES[group] }, title) });
  }
  return sections.get(group);
}

/** The rows of a family share one axis, from its first task to now or to its end. Hidden rows are not drawn. */
function drawBars() {
  for (const row of visibleRows) {
    const task = store.task(row.dataset.task);
    if (task && row.family) drawBar(row, task, row.family.start, row.family.isOver ? row.family.ended : connection.now);
  }
}

// ---- following -------------------------------------------------------------------------------------------

store.onTasks((ids) => {
  if (!isLoaded) return;
  let isOrdered = true;
  for (const id of ids) {
    const task = store.task(id);
    // A task that a search of the gateway found stays, whatever its label says.
    const belongs = Boolean(task) && (fits(task) || (Boolean(at().text) && listed.has(id)));
    if (belongs !== listed.has(id)) listed[belongs ? "add" : "delete"](id);
    if (placeOf(task, belongs) !== (places.get(id) ?? "")) { isOrdered = false; continue; }
    const row = rows.get(id);
    const member = row?.family?.members.find((one) => one.task.taskId === id);
    if (member) fillRow(row, task, { level: member.level, children: member.children, isOpen: isOpen(task), isSelected: id === at().task });
  }
  if (isOrdered) drawBars();
  else draw();
});

setInterval(() => {
  if (connection.state !== "live") return; // clocks stop: what happens now is not known
  for (const row of visibleRows) {
    const task = store.task(row.dataset.task);
    if (task && task.activity !== null) tickRow(row, task);
  }
  drawBars();
}, 1000);

onInbox((items) => {
  cards.draw(items);
  const left = items.length - cards.openCount;
  further.hidden = left <= 0;
  put(further.firstElementChild, left === 1 ? "1 more decision in the Inbox" : `${left} more decisions in the Inbox`);
  attribute(further.firstElementChild, "href", link({ view: "inbox", item: "", task: "" }));
});
store.onOverview(followInbox);
onMove((now, before) => {
  if (now.view !== "tasks") return;
  if (["state", "session", "agent", "hours", "text"].some((name) => now[name] !== before[name])) {
    closePeek();
    load().catch((error) => showNotice("view", connection.failed(error)));
  } else if (now.task !== before.task) draw();
});

// ---- keys and clicks -------------------------------------------------------------------------------------

const order = () => [...grid.querySelectorAll(".row")];

function focusRow(row) {
  if (!row) return;
  rows.get(focused)?.setAttribute("tabindex", "-1");
  focused = row.dataset.task;
  row.setAttribute("tabindex", "0");
  row.focus({ preventScroll: false });
  row.scrollIntoView({ block: "nearest" });
}

function fold(task, open) {
  folded.set(task.taskId, open);
  draw();
}

const KEYS = {
  ArrowDown: (row) => focusRow(order()[order().indexOf(row) + 1]),
  ArrowUp: (row) => focusRow(order()[order().indexOf(row) - 1]),
  Home: () => focusRow(order()[0]),
  End: () => focusRow(order().at(-1)),
  ArrowRight: (row, task) => (row.getAttribute("aria-expanded") === "false" ? fold(task, true) : KEYS.ArrowDown(row)),
  ArrowLeft: (row, task) => (row.getAttribute("aria-expanded") === "true" ? fold(task, false) : focusRow(rows.get(task.parentTaskId))),
  Enter: (row, task) => { go({ task: task.taskId, tab: "activity" }); document.querySelector("#panel h2")?.focus(); },
  " ": (row, task) => { togglePeek(task, inboxItems(), () => focusRow(row)); draw(); requestAnimationFrame(() => peekOf(task.taskId)?.scrollIntoView({ block: "nearest" })); },
};

grid.addEventListener("keydown", (event) => {
  if (!event.target.classList.contains("row") || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = KEYS[event.key];
  const task = store.task(event.target.dataset.task);
  if (!act || !task) return;
  event.preventDefault();
  act(event.target, task);
});
grid.addEventListener("focusin", (event) => {
  const row = event.target.closest(".row");
  if (row && row.dataset.task !== focused) { rows.get(focused)?.setAttribute("tabindex", "-1"); focused = row.dataset.task; row.setAttribute("tabindex", "0"); }
});
grid.addEventListener("click", (event) => {
  const row = event.target.closest(".row");
  const task = row && store.task(row.dataset.task);
  if (!task) return;
  if (event.target.closest(".fold")) fold(task, row.getAttribute("aria-expanded") !== "true");
  else if (!event.target.closest("a") && !getSelection().toString()) go({ task: task.taskId, tab: "activity" });
});

// ---- nothing yet -----------------------------------------------------------------------------------------

function emptyState() {
  const text = h("textarea", { rows: 3, "aria-label": "Task", placeholder: "What should a subagent do?" });
  const start = () => { openNewTask(text.value); };
  text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) start(); });
  const examples = h("ul");
  const fill = ({ isDemo }) => examples.replaceChildren(...(isDemo ? DEMO_EXAMPLES : EXAMPLES).map((one) =>
    h("li", {}, button(one, () => { text.value = one; text.focus(); }, { class: "example" }))));
  fill(store.overview);
  store.onOverview(fill);
  return h("section", { class: "empty", hidden: true, "aria-label": "Start the first task" },
    h("h2", { text: "No tasks in this period" }), h("p", { text: "Describe a piece of work. It runs in the background and survives restarts." }),
    text, h("p", {}, button("Start a task", start, { class: "primary" })),
    h("p", { text: "For example:" }), examples);
}
