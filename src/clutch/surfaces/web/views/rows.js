// One row of the list of tasks: made once, then patched. Only what differs is written.

import { link } from "/web/address.js";
import { connection } from "/web/connection.js";
import { attribute, h, put, visible } from "/web/dom.js";
import { doing, elapsed, money, usedTokens } from "/web/format.js";

const COLOURS = ["queued", "thinking", "tool", "subagents", "user", "provider", "paused", "delivering"];

export function makeRow(task) {
  const parts = {
    fold: h("button", { type: "button", class: "fold", tabindex: -1, "aria-label": "Show or hide subagents" }),
    dot: h("span", { class: "dot" }),
    name: h("a", { class: "name", "data-local": true, tabindex: -1 }),
    below: h("span", { class: "below" }),
    status: h("span", { class: "status" }),
    now: h("span", { class: "now" }),
    bar: h("span", { class: "bar", role: "img" }),
    timeline: h("a", { class: "to-timeline", "data-local": true, tabindex: -1 }),
    elapsed: h("span"),
    tokens: h("span"),
    cost: h("span"),
  };
  const cell = (name, ...children) => h("div", { role: "gridcell", class: name }, children);
  const row = h("div", { role: "row", class: "row", tabindex: -1, "data-task": task.taskId },
    cell("c-task", parts.fold, parts.dot, parts.name, parts.below),
    cell("c-doing", parts.status, parts.now),
    cell("c-bar", parts.timeline),
    cell("c-elapsed", parts.elapsed), cell("c-tokens", parts.tokens), cell("c-cost", parts.cost));
  parts.timeline.append(parts.bar);
  row.parts = parts;
  return row;
}

/** Write what has changed. `level`: depth in the tree as shown, from 1. */
export function fillRow(row, task, { level, children, isOpen, isSelected }) {
  const { parts } = row;
  put(parts.name, task.label || task.taskId);
  attribute(parts.name, "href", link({ task: task.taskId, tab: "activity" }));
  attribute(parts.name, "title", task.taskId);
  row.dataset.status = task.status;
  row.dataset.group = task.group;
  row.dataset.outcome = task.outcome ?? "";
  attribute(row, "aria-level", level);
  attribute(row, "aria-selected", isSelected ? "true" : "false");
  attribute(row, "aria-expanded", children ? String(isOpen) : null);
  row.style.setProperty("--level", level - 1);
  linkTimeline(row, task);
  parts.fold.hidden = children === 0;
  const { active, total } = task.children;
  put(parts.below, total ? `${total - active}/${total}` : "");
  attribute(parts.below, "title", total ? `${total - active} of ${total} subagents finished` : null);
  // A running task says what it does; all others say their state first.
  put(parts.status, task.status === "running" || task.doingNow.startsWith(task.status) ? "" : task.status);
  put(parts.tokens, usedTokens(task.usage.subtree));
  put(parts.cost, money(task.usage.subtree.usd));
  tickRow(row, task);
}

/** The bar of a tree's top leads to its timeline. Without an address it is no link. */
function linkTimeline(row, task) {
  const known = `${location.search} ${task.label} ${task.parentTaskId}`;
  if (row.linked === known) return; // an event seldom changes it
  row.linked = known;
  const isTop = task.parentTaskId === null;
  attribute(row.parts.timeline, "href", isTop ? link({ view: "timeline", task: task.taskId, tab: "activity" }) : null);
  attribute(row.parts.timeline, "role", isTop ? "button" : null);
  attribute(row.parts.timeline, "aria-label", isTop ? `Timeline of ${visible(task.label || task.taskId)}` : null);
}

/** Write what changes by itself. */
export function tickRow(row, task) {
  put(row.parts.now, doing(task, connection.now));
  put(row.parts.elapsed, elapsed(task, connection.now));
}

/** Draw the bar on an axis from `start` to `end`, moments in milliseconds that the whole family shares. */
export function drawBar(row, task, start, end) {
  const { bar } = row.parts;
  const created = Date.parse(task.createdAt);
  const width = Math.max(1, end - start);
  const place = (seconds) => Math.min(100, Math.max(0, ((created + seconds * 1000 - start) / width) * 100));
  const now = (end - created) / 1000;
  const stops = [];
  let last = 0;
  for (const one of task.segments) {
    const [from, to] = [place(one.start), place(one.end ?? now)];
    if (to <= from) continue;
    if (from > last) stops.push(`transparent ${last.toFixed(2)}% ${from.toFixed(2)}%`);
    stops.push(`var(--bar-${COLOURS.includes(one.activity) ? one.activity : "queued"}) ${from.toFixed(2)}% ${to.toFixed(2)}%`);
    last = to;
  }
  stops.push(`transparent ${last.toFixed(2)}% 100%`);
  const image = `linear-gradient(to right, ${stops.join(", ")})`;
  if (bar.drawn !== image) bar.style.backgroundImage = bar.drawn = image;
  const words = describe(task.segments, now);
  attribute(bar, "aria-label", words);
  attribute(bar, "title", words);
}

/** The bar in words: the share of each activity. */
function describe(segments, now) {
  const sums = new Map();
  for (const one of segments) sums.set(one.activity, (sums.get(one.activity) ?? 0) + Math.max(0, (one.end ?? now) - one.start));
  const total = [...sums.values()].reduce((a, b) => a + b, 0);
  if (!total) return "No activity yet";
  return [...sums].filter(([, sum]) => sum / total >= 0.01).map(([name, sum]) => `${name} ${Math.round((100 * sum) / total)}%`).join(", ");
}
