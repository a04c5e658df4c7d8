// The way of each result: from the end of a subagent to the message of the parent in which it was delivered.
//
// A line that is solid has arrived; a dashed one is under way or deferred; a red one with a cross was given up; a short
// stub was skipped. Form and colour say the same.

import { arrange, attribute, visible } from "/web/dom.js";
import { lastUntil } from "/web/replay.js";

const SVG = "http://www.w3.org/2000/svg";
const HEAD = 5;
const BORDER = 15; // from the middle of a lane to its border
const BEND = 5;

function s(name, given, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const makeArrows = () => s("svg", { class: "arrows", "aria-hidden": "true" });

/** The state of an arrow at a moment; null: the subagent had not ended. */
export function stateAt(arrow, time) {
  const found = lastUntil(arrow.states, time);
  if (!found) return null;
  // The parent has read the message before its model has answered it; the gateway calls it delivered from the answer on.
  const isThere = found.status === "delivered";
  return { status: found.status, text: found.text, isThere };
}

/** Draw the arrows that end or begin in a row that is shown. `place(id)`: the middle of a row, or undefined. An arrow
 * that is drawn already is moved: only what differs is written. */
export function drawArrows(svg, arrows, { scale, time, place, isNear, start }) {
  const before = new Map([...svg.querySelectorAll(".arrow")].map((one) => [one.dataset.key, one]));
  const drawn = [];
  for (const arrow of arrows) {
    const state = stateAt(arrow, time);
    const from = place(arrow.taskId);
    if (!state || from === undefined) continue;
    const to = place(arrow.toTask ?? `session ${arrow.toSession}`);
    if (!isNear(from) && (to === undefined || !isNear(to))) continue;
    const key = `${arrow.taskId} ${arrow.generation}`;
    const group = before.get(key) ?? s("g", { class: "arrow", "data-key": key, "data-task": arrow.taskId }, s("title", {}));
    fill(group, state.status, shape(arrow, state, from, to, scale, time), visible(describe(arrow, state, start)));
    drawn.push(group);
  }
  for (const one of svg.querySelectorAll(".critical-link")) one.remove();
  arrange(svg, drawn);
}

/** `parts`: the class of each path, and its form. */
function fill(group, status, parts, text) {
  const [title, ...known] = group.children;
  if (title.textContent !== text) title.textContent = text;
  if (group.dataset.state !== status || known.length !== parts.length) {
    group.dataset.state = status;
    known.forEach((one) => one.remove());
    known.splice(0, known.length, ...parts.map(([name]) => s("path", { class: name })));
    group.append(...known);
  }
  parts.forEach(([, d], index) => attribute(known[index], "d", d));
}

const dot = (x, y) => ["dot-end", `M${x - 3} ${y}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0`];

/** From the end of the subagent to the border of its lane, along the border, and then straight to the parent: the arrows
 * of one message share their last part, and none hides a bar. */
function shape(arrow, { status, isThere }, from, to, scale, time) {
  const round = (value) => Math.round(value * 10) / 10;
  const x = round(scale.x(arrow.ended));
  if (status === "skipped" || to === undefined) return [["line", `M${x} ${from}h12m0 -5v10`], dot(x, from)];
  const up = to < from ? -1 : 1;
  const border = from + up * BORDER;
  if (status === "undelivered") {
    const [a, b] = [x + 22, from + up * 8];
    return [["line", `M${x} ${from}C${x + 12} ${from} ${a} ${from} ${a} ${b}`], ["cross", `M${a - 5} ${b - 5}l10 10M${a + 5} ${b - 5}l-10 10`], dot(x, from)];
  }
  const end = Math.max(x, round(scale.x(isThere && arrow.read !== null ? arrow.read : time)));
  const edge = to - up * 8; // at the edge of the parent's bar
  const bend = Math.min(BEND, (end - x) / 2);
  const along = end - x < 2 ? `V${edge - up * HEAD}` : `V${border - up * bend}Q${x} ${border} ${x + bend} ${border}H${end - bend}Q${end} ${border} ${end} ${border + up * bend}V${edge - up * HEAD}`;
  return [["line", `M${x} ${from}${along}`], ["head", `M${end} ${edge}l${-HEAD} ${-up * HEAD * 1.4}h${HEAD * 2}z`], dot(x, from)];
}

/** Where the critical path changes from a task to another. */
export function drawLinks(svg, stages, { scale, time, place }) {
  for (const [index, stage] of stages.entries()) {
    const before = stages[index - 1];
    if (!before || before.taskId === stage.taskId || stage.start > time) continue;
    const [a, b] = [place(before.taskId), place(stage.taskId)];
    if (a === undefined || b === undefined) continue;
    svg.prepend(s("path", { class: "critical-link", d: `M${scale.x(stage.start)} ${a + 9}V${b + 9}` }));
  }
}

/** What an arrow says, for tooltips and for the text of a lane. */
export function describe(arrow, { text, isThere }, start) {
  const to = arrow.parentLabel ?? arrow.toSession ?? "the parent agent";
  const attempt = arrow.generation > 1 ? ` of attempt ${arrow.generation}` : "";
  if (!isThere) return `Result${attempt}: ${text}`;
  const message = arrow.message === null ? "" : ` in message ${arrow.message}`;
  return `Result${attempt} delivered to ${to}${message}, read ${start(arrow.read ?? arrow.ended)}`;
}
