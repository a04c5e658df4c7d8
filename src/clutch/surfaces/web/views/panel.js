// One task: where it stands in its tree, what it does, what can be done with it, and four tabs.

import { at, go, link, onMove, opening, openTask } from "/web/address.js";
import { ask, post, taskPath } from "/web/api.js";
import { connection } from "/web/connection.js";
import { attribute, button, h, put } from "/web/dom.js";
import { openDialog } from "/web/dialogs.js";
import { doing, elapsed, money, usedTokens } from "/web/format.js";
import { messageBox } from "/web/message.js";
import { asOf, moment, onMoment, shownNow } from "/web/replay.js";
import * as store from "/web/store.js";
import { closeControl } from "/web/tabs.js";
import { activityTab } from "/web/views/activity.js";
import { wouldStop } from "/web/views/batch.js";
import { detailsTab } from "/web/views/details.js";
import { filesTab, resultTab } from "/web/views/result.js";

const TABS = { activity: ["Activity", activityTab], result: ["Result", resultTab], files: ["Files", filesTab], details: ["Details", detailsTab] };
const place = document.getElementById("panel");
const NARROW = matchMedia("(max-width: 760px)");
let shown = null; // { id, parts, tab, update }

export function startPanel() {
  onMove((now, before) => { if (openTask(now) !== openTask(before) || now.tab !== before.tab || now.view !== before.view) show(); });
  onMoment(() => { if (shown) update(); });
  store.onTasks((ids) => { if (shown && ids.has(shown.id)) update(); });
  connection.onChange((state) => { if (state === "live" && shown) shown.update?.(taskShown()); });
  setInterval(() => { if (shown && connection.state === "live") head(); }, 1000);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && shown && !document.querySelector("dialog[open]") && !event.defaultPrevented) close();
  });
  if (openTask()) show();
}

/** The task of the panel, as of the moment that a replay shows. */
const taskShown = () => asOf(store.task(shown.id));

function close() {
  const row = document.querySelector(`:is(.row, .lane)[data-task="${CSS.escape(shown?.id ?? "")}"]`);
  go({ ...opening(""), tab: "activity" });
  row?.focus();
}

async function show() {
  const { tab } = at();
  const id = openTask();
  document.body.classList.toggle("has-panel", Boolean(id));
  place.hidden = !id;
  connection.showLive("panel", tab === "activity" ? id : null);
  if (!id) { shown = null; return place.replaceChildren(); }
  if (shown?.id !== id) {
    shown = { id, tab: null, update: null, parts: null };
    place.replaceChildren(h("p", { class: "quiet", text: "Loading" }));
  }
  const task = store.task(id) ?? (await fetchTask(id));
  if (!task || shown?.id !== id) return;
  if (!shown.parts) {
    build(task);
    if (NARROW.matches) shown.parts.title.focus(); // the list is hidden behind the panel
  }
  if (shown.tab !== tab) openTab(tab, task);
  update();
}

async function fetchTask(id) {
  const askedAt = store.asking();
  try {
    store.keep(await ask(taskPath(id)), askedAt);
    return store.task(id);
  } catch (error) {
    if (shown?.id === id) place.replaceChildren(closeButton(), h("p", { role: "alert", text: connection.failed(error) }));
    return null;
  }
}

const closeButton = () => closeControl(close);

function build(task) {
  const tabs = Object.entries(TABS).map(([name, [title]]) =>
    h("a", { role: "tab", id: `tab-${name}`, "data-local": true, "data-tab": name, "aria-controls": "tab-content", text: title }));
  const parts = {
    path: h("nav", { class: "path", "aria-label": "Path" }),
    dot: h("span", { class: "dot" }),
    title: h("h2", { tabindex: -1 }),
    status: h("p", { class: "now-line", role: "status" }),
    figures: h("p", { class: "quiet figures" }),
    actions: h("div", { class: "actions" }),
    said: h("p", { class: "said", role: "alert" }),
    tabs,
    content: h("div", { role: "tabpanel", id: "tab-content", class: "tab-content", tabindex: 0 }),
  };
  const list = h("div", { role: "tablist", "aria-label": "About this task" }, tabs);
  list.addEventListener("keydown", moveTab);
  parts.message = messageBox(task);
  shown.parts = parts;
  place.replaceChildren(
    h("div", { class: "panel-head" }, parts.path, closeButton()),
    h("div", { class: "panel-title" }, parts.dot, parts.title), parts.status, parts.figures, parts.actions, parts.said, list, parts.content, parts.message);
}

function moveTab(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const names = Object.keys(TABS);
  const name = names[(names.indexOf(at().tab) + step + names.length) % names.length];
  go({ tab: name }, { replace: true });
  document.getElementById(`tab-${name}`)?.focus();
}

function openTab(name, task) {
  const known = name in TABS ? name : "activity";
  shown.tab = name;
  for (const one of shown.parts.tabs) {
    const isHere = one.dataset.tab === known;
    attribute(one, "aria-selected", String(isHere));
    attribute(one, "tabindex", isHere ? 0 : -1);
    attribute(one, "href", link({ tab: one.dataset.tab }));
  }
  attribute(shown.parts.content, "aria-labelledby", `tab-${known}`);
  shown.parts.content.replaceChildren();
  shown.update = TABS[known][1](shown.parts.content, task);
}

function update() {
  const task = taskShown();
  if (!task || !shown.parts) return;
  path(task);
  head();
  actions(task);
  shown.update?.(task);
}

function path(task) {
  const above = store.lineage(task.taskId).slice(0, -1);
  const names = [...above.map((one) => `${one.taskId} ${one.label}`), task.taskId].join("\n");
  if (shown.parts.path.names === names) return;
  shown.parts.path.names = names;
  shown.parts.path.replaceChildren(...above.flatMap((one) => [h("a", { href: link(opening(one.taskId)), "data-local": true, text: one.label || one.taskId }), " › "]), h("span", { text: task.taskId }));
}

function head() {
  const task = taskShown();
  if (!task || !shown.parts) return;
  const { dot, title, status, figures } = shown.parts;
  put(title, task.label || task.taskId);
  place.dataset.status = task.status;
  place.dataset.group = task.group;
  attribute(dot, "title", task.status);
  const now = shownNow();
  put(status, task.doingNow.startsWith(task.status) ? doing(task, now) : `${task.status} · ${doing(task, now)}`);
  const use = task.usage.subtree;
  put(figures, [elapsed(task, now), `${usedTokens(use)} tokens`, money(use.usd), task.delivery.text && `result ${task.delivery.text}`].filter(Boolean).join(" · "));
}

// ---- actions ---------------------------------------------------------------------------------------------

/** What can be done with a task in its state. */
function possible(task) {
  const timeline = at().view === "timeline" ? [] : ["timeline"];
  if (moment() !== null || connection.isExported) return timeline; // the past cannot be changed
  if (task.outcome === null) return ["message", task.status === "paused" ? "resume" : "pause", ...timeline, "kill"];
  return ["retry", "continue", ...timeline, ...(task.group === "undelivered" ? ["redeliver", "dismiss"] : [])];
}

const ACTIONS = {
  message: ["Message", () => place.querySelector(".message textarea").focus()],
  pause: ["Pause", (task) => act(task, "pause")],
  resume: ["Resume", (task) => act(task, "resume")],
  retry: ["Retry", (task) => act(task, "retry")],
  continue: ["Continue", () => place.querySelector(".message textarea").focus()],
  redeliver: ["Redeliver", (task) => act(task, "redeliver")],
  dismiss: ["Discard", (task) => act(task, "dismiss")],
  kill: ["Kill…", confirmKill],
  timeline: ["Timeline", (task) => go({ view: "timeline", task: task.taskId, lane: task.taskId, at: "" })],
};

function actions(task) {
  const names = possible(task);
  shown.parts.message.hidden = moment() !== null;
  if (shown.parts.actions.names === names.join()) return;
  shown.parts.actions.names = names.join();
  shown.parts.actions.replaceChildren(...names.map((name) => button(ACTIONS[name][0], () => ACTIONS[name][1](store.task(shown.id)), { class: name === "kill" ? "danger-text" : "" })));
}

async function act(task, verb) {
  const { said, actions: row } = shown.parts;
  const buttons = [...row.querySelectorAll("button")];
  buttons.forEach((one) => { one.disabled = true; });
  put(said, "");
  try {
    await post(taskPath(task.taskId, `/${verb}`));
    const askedAt = store.asking();
    store.keep(await ask(taskPath(task.taskId)), askedAt);
  } catch (error) {
    put(said, connection.failed(error));
  } finally {
    buttons.forEach((one) => { one.disabled = false; });
  }
}

/** The dialog lists every task that will stop, before anything stops. */
async function confirmKill(task) {
  let hit = [];
  try {
    hit = await wouldStop([task]);
  } catch (error) {
    return put(shown.parts.said, connection.failed(error));
  }
  openDialog({
    title: hit.length === 1 ? "Kill this task?" : `Kill ${hit.length} tasks?`,
    confirm: "Kill",
    danger: true,
    content: [h("p", { text: "These tasks stop for good. Their results are not delivered." }),
      h("ul", { class: "hit" }, hit.map((one) => h("li", {}, h("span", { text: one.label || one.taskId }), h("span", { class: "quiet", text: one.status }))))],
    act: async () => {
      const { notStopped, stillStopping } = await post(taskPath(task.taskId, "/kill"), { reason: "killed in the dashboard" });
      const late = [...notStopped, ...stillStopping];
      if (late.length) put(shown.parts.said, late.map((one) => `${one.taskId}: ${one.why}`).join("\n"));
    },
  });
}

