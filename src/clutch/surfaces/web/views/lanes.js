// One lane of a timeline: the task at the moment that is shown, its bar on the axis, tool calls, attempts, and the
// critical path below the bar. Made once, then patched; the bar is one gradient, however many segments it has.

import { link } from "/web/address.js";
import { attribute, h, put } from "/web/dom.js";
import { statesOf } from "/web/replay.js";
import { clockText, exact } from "/web/views/axis.js";

export const NAMES = {
  queued: "queued", thinking: "thinking", tool: "tool", subagents: "waiting for subagents", user: "waiting for the user",
  provider: "waiting for quota", paused: "paused", delivering: "delivering",
};
const TICKS_MAX = 300; // of one lane: more cannot be told apart

/** What the view knows of a task, with moments in milliseconds. */
export function laneOf({ task, segments, tools }) {
  const created = Date.parse(task.createdAt);
  const known = statesOf(task.taskId);
  return {
    id: task.taskId, task, created,
    spans: segments.map((one) => ({ activity: one.activity, start: created + one.start * 1000, end: one.end === null ? null : created + one.end * 1000 })),
    tools: tools.map((one) => ({ start: Date.parse(one.at), end: one.end === null ? null : Date.parse(one.end), text: one.text, message: one.message })),
    attempts: known.filter((one, place) => place > 0 && known[place - 1].generation !== one.generation).map((one) => ({ time: one.time, number: one.generation })),
    spawned: known[0]?.time ?? created,
    critical: [],
  };
}

export function makeLane(lane) {
  const parts = {
    fold: h("button", { type: "button", class: "fold", tabindex: -1, "aria-label": "Show or hide subagents" }),
    dot: h("span", { class: "dot" }),
    name: h(lane.isSession ? "span" : "a", { class: "name", "data-local": !lane.isSession, tabindex: lane.isSession ? undefined : -1 }),
    status: h("span", { class: "lane-status" }),
    bar: h("span", { class: "lane-bar" }),
    path: h("span", { class: "critical" }),
    marks: h("span", { class: "ticks" }),
  };
  const track = h("div", { role: "gridcell", class: "track" }, parts.bar, parts.path, parts.marks);
  const row = h("div", { role: "row", class: lane.isSession ? "lane session" : "lane", tabindex: -1, "data-task": lane.id },
    h("div", { role: "gridcell", class: "lane-name" }, parts.fold, parts.dot, parts.name, parts.status), track);
  row.parts = { ...parts, track };
  return row;
}

/** Write who the task is and what it showed at the moment. `task`: as of that moment. */
export function fillLane(row, lane, task, { level, children, isOpen, isSelected, index, text }) {
  const { parts } = row;
  put(parts.name, lane.isSession ? lane.label : task.label || task.taskId);
  attribute(row, "aria-level", level);
  attribute(row, "aria-rowindex", index + 2);
  attribute(row, "aria-expanded", children ? String(isOpen) : null);
  attribute(row, "aria-selected", String(isSelected));
  row.style.setProperty("--level", level - 1);
  row.style.setProperty("--index", index);
  parts.fold.hidden = children === 0;
  attribute(parts.track, "aria-label", text);
  if (lane.isSession) { parts.dot.hidden = true; return put(parts.status, "parent agent"); }
  attribute(parts.name, "href", link({ lane: lane.id, tab: "activity" }));
  attribute(parts.name, "title", `${task.label || ""} ${task.taskId}`.trim());
  row.dataset.status = task.status;
  row.dataset.group = task.group;
  put(parts.status, task.group === "undelivered" ? "undelivered" : task.status);
}

/** Draw the bar up to a moment: what came later had not happened. */
export function drawLane(row, lane, scale, until) {
  if (lane.isSession) return drawMessages(row, lane, scale, until);
  const { bar, path, marks } = row.parts;
  paint(bar, gradient(lane.spans.map((one) => ({ ...one, colour: `var(--bar-${one.activity in NAMES ? one.activity : "queued"})` })), scale, until));
  paint(path, gradient(lane.critical.map((one) => ({ ...one, colour: "var(--ink)" })), scale, until));
  const found = lane.tools.filter((one) => one.start <= until && one.start >= scale.from && one.start <= scale.to).slice(-TICKS_MAX).map((one) => ({ name: "tool-tick", x: scale.x(one.start), title: toolText(one), isCurrent: lane.tool === one }));
  for (const one of lane.attempts) if (one.time <= until && one.time >= scale.from) found.push({ name: "attempt", x: scale.x(one.time), title: `Attempt ${one.number}`, text: String(one.number) });
  drawMarks(marks, found);
}

/** A parent agent that is no task has no bar: only the messages that brought results. */
function drawMessages(row, lane, scale, until) {
  drawMarks(row.parts.marks, lane.messages.filter((one) => one <= until).map((one) => ({ name: "message-mark", x: scale.x(one), title: "Message with a result" })));
}

function gradient(spans, scale, until) {
  const stops = [];
  let last = 0;
  for (const { start, end, colour } of spans) {
    if (start >= until) break;
    const from = Math.max(0, scale.x(start));
    const to = Math.min(scale.width, Math.max(scale.x(Math.min(end ?? until, until)), from + 0.75));
    if (to <= 0 || from >= scale.width || to <= last) continue;
    const left = Math.max(from, last);
    if (left > last) stops.push(`transparent ${last.toFixed(1)}px ${left.toFixed(1)}px`);
    stops.push(`${colour} ${left.toFixed(1)}px ${to.toFixed(1)}px`);
    last = to;
  }
  return stops.length ? `linear-gradient(to right, ${stops.join(", ")}, transparent ${last.toFixed(1)}px)` : "none";
}

function paint(node, image) {
  if (node.drawn !== image) node.style.backgroundImage = node.drawn = image;
}

function drawMarks(place, found) {
  while (place.children.length > found.length) place.lastElementChild.remove();
  while (place.children.length < found.length) place.append(h("span"));
  found.forEach(({ name, x, title, text = "", isCurrent = false }, index) => {
    const node = place.children[index];
    if (node.className !== name) node.className = name;
    node.style.transform = `translateX(${x.toFixed(1)}px)`;
    attribute(node, "title", title);
    attribute(node, "data-current", isCurrent ? "true" : null);
    put(node, text);
  });
}

export const toolText = (tool) => `${tool.text} · ${tool.end === null ? "running" : exact(tool.end - tool.start)}`;

/** The exact moments of a lane in words. `moment(time)`: as the axis shows moments. */
export function laneText(lane, task, until, moment) {
  if (lane.isSession) return `${lane.label}: parent agent, ${lane.messages.filter((one) => one <= until).length} messages with results`;
  const parts = [task.label || task.taskId, task.doingNow.startsWith(task.status) ? task.doingNow : `${task.status} · ${task.doingNow}`, `spawned ${moment(lane.created)}`];
  if (task.startedAt) parts.push(`started ${moment(Date.parse(task.startedAt))}`);
  if (task.outcome !== null && task.endedAt) parts.push(`ended ${moment(Date.parse(task.endedAt))}`);
  const sums = new Map();
  for (const one of lane.spans) if (one.start < until) sums.set(one.activity, (sums.get(one.activity) ?? 0) + Math.min(one.end ?? until, until) - one.start);
  for (const [name, sum] of sums) if (sum >= 1) parts.push(`${NAMES[name] ?? name} ${exact(sum)}`);
  const calls = lane.tools.filter((one) => one.start <= until).length;
  if (calls) parts.push(`${calls} tool ${calls === 1 ? "call" : "calls"}`);
  if (lane.critical.some((one) => one.start < until)) parts.push(`on the critical path for ${exact(lane.critical.reduce((sum, one) => sum + Math.max(0, Math.min(one.end ?? until, until) - one.start), 0))}`);
  return parts.join(" · ");
}

/** What the task did at a moment under the pointer. */
export function spotText(lane, time) {
  const span = lane.spans?.find((one) => one.start <= time && time < (one.end ?? Infinity));
  const tool = lane.tools?.findLast((one) => one.start <= time && time <= (one.end ?? Infinity));
  return [clockText(time), span ? NAMES[span.activity] ?? span.activity : null, tool ? toolText(tool) : null].filter(Boolean).join(" · ");
}
