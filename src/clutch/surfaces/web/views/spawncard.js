// A subagent in the conversation that started it: one card at the place of the call, which follows the task until its
// result is delivered.

import { link } from "/web/address.js";
import { ask, taskPath } from "/web/api.js";
import { connection } from "/web/connection.js";
import { attribute, h, put } from "/web/dom.js";
import { doing, elapsed, money } from "/web/format.js";
import * as store from "/web/store.js";
import { firstLine } from "/web/views/activity.js";

const cards = new Map(); // task id -> cards that show it

store.onTasks((ids) => { for (const id of ids) for (const card of shown(id)) fill(card); });
setInterval(() => {
  if (connection.state !== "live") return;
  for (const id of cards.keys()) if (store.task(id)?.activity) shown(id).forEach(fill);
}, 1000);

/** The cards of a task that are still on the page. */
function shown(id) {
  const left = (cards.get(id) ?? []).filter((card) => card.isConnected || !card.wasShown);
  if (left.length) cards.set(id, left);
  else cards.delete(id);
  return left;
}

export const isSpawn = (call) => call.name === "sessions_spawn";

export function spawnCard(call) {
  const { label, task } = call.args ?? {};
  const parts = {
    name: h("a", { class: "spawn-name", "data-local": true, text: firstLine(String(label || task || "Subagent")) }),
    status: h("span", { class: "status" }),
    now: h("span", { class: "now" }),
    figures: h("span", { class: "figures quiet" }),
  };
  const card = h("div", { class: "spawn", "data-status": "starting", role: "group", "aria-label": "Subagent" },
    h("p", { class: "spawn-title" }, h("span", { class: "dot" }), parts.name, parts.figures),
    h("p", { class: "spawn-now" }, parts.status, parts.now));
  card.parts = parts;
  put(parts.status, "starting");
  return card;
}

/** The call has ended: its result names the task, or says why there is none. */
export function endSpawn(card, result) {
  const said = parsed(result.text);
  if (!said?.taskId) {
    card.dataset.status = "failed";
    put(card.parts.status, "not started");
    put(card.parts.now, said?.error ?? result.text.slice(0, 300));
    return;
  }
  card.dataset.task = said.taskId;
  put(card.parts.name, said.label || said.taskId);
  attribute(card.parts.name, "href", link({ task: said.taskId, tab: "activity" }));
  cards.set(said.taskId, [...(cards.get(said.taskId) ?? []), card]);
  if (store.task(said.taskId)) fill(card);
  else fetchTask(said.taskId, card);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null; // a result that was cut, or that another program wrote
  }
}

async function fetchTask(id, card) {
  const askedAt = store.asking();
  try {
    store.keep(await ask(taskPath(id)), askedAt);
  } catch (error) {
    connection.failed(error);
    put(card.parts.status, error.code === "not_found" ? "deleted" : "unknown");
  }
}

function fill(card) {
  card.wasShown ||= card.isConnected;
  const task = store.task(card.dataset.task);
  if (!task) return;
  const { name, status, now, figures } = card.parts;
  card.dataset.status = task.status;
  card.dataset.group = task.group;
  put(name, task.label || task.taskId);
  attribute(name, "href", link({ task: task.taskId, tab: "activity" }));
  put(status, task.status === "running" || task.doingNow.startsWith(task.status) ? "" : task.status);
  put(now, doing(task, connection.now));
  const result = task.outcome === null || !task.delivery.text ? "" : `result ${task.delivery.text}`;
  const delivery = task.doingNow.includes(result) ? "" : result; // an error stands there instead
  put(figures, [delivery, elapsed(task, connection.now), money(task.usage.subtree.usd)].filter(Boolean).join(" · "));
}
