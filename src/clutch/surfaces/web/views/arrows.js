// The way of each result: from the end of a subagent to the message of the parent in which it was delivered.
//
// A line that is solid has arrived; a dashed one is under way or deferred; a red one with a cross was given up; a short
// stub was skipped. Form and colour say the same.

import { visible } from "/web/dom.js";
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

/** Draw the arrows that end or begin in a row that is shown. `place(id)`: the middle of a row, or undefined. */
export function drawArrows(svg, arrows, { scale, time, place, isNear, start }) {
  const drawn = [];
  for (const arrow of arrows) {
    const state = stateAt(arrow, time);
    const from = place(arrow.taskId);
    if (!state || from === undefined) continue;
    const to = place(arrow.toTask ?? `session ${arrow.toSession}`);
    if (!isNear(from) && (to === undefined || !isNear(to))) continue;
    const group = s("g", { class: "arrow", "data-state": state.status, "data-task": arrow.taskId }, ...shape(arrow, state, from, to, scale, time));
    group.prepend(s("title", {}, visible(describe(arrow, state, start))));
    drawn.push(group);
  }
  svg.replaceChildren(...drawn);
}

/** From the end of the subagent to the border of its lane, along the border, and then straight to the parent: the arrows
 * of one message share their last part, and none hides a bar. */
function shape(arrow, { status, isThere }, from, to, scale, time) {
  const x = scale.x(arrow.ended);
  const dot = s("circle", { class: "dot-end", cx: x, cy: from, r: 3 });
  if (status === "skipped" || to === undefined) return [line(`M${x} ${from}h12`), line(`M${x + 12} ${from - 5}v10`), dot];
  const up = to < from ? -1 : 1;
  const border = from + up * BORDER;
  if (status === "undelivered") {
    const [a, b] = [x + 22, from + up * 8];
    return [line(`M${x} ${from}C${x + 12} ${from} ${a} ${from} ${a} ${b}`), line(`M${a - 5} ${b - 5}l10 10M${a + 5} ${b - 5}l-10 10`, "cross"), dot];
  }
  const end = Math.max(x, scale.x(isThere && arrow.read !== null ? arrow.read : time));
  const edge = to - up * 8; // at the edge of the parent's bar
  const bend = Math.min(BEND, (end - x) / 2);
  const along = end - x < 2 ? `V${edge - up * HEAD}` : `V${border - up * bend}Q${x} ${border} ${x + bend} ${border}H${end - bend}Q${end} ${border} ${end} ${border + up * bend}V${edge - up * HEAD}`;
  return [line(`M${x} ${from}${along}`), s("path", { class: "head", d: `M${end} ${edge}l${-HEAD} ${-up * HEAD * 1.4}h${HEAD * 2}z` }), dot];
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

const line = (d, name = "line") => s("path", { class: name, d });

/** What an arrow says, for tooltips and for the text of a lane. */
export function describe(arrow, { text, isThere }, start) {
  const to = arrow.parentLabel ?? arrow.toSession ?? "the parent agent";
  const attempt = arrow.generation > 1 ? ` of attempt ${arrow.generation}` : "";
  if (!isThere) return `Result${attempt}: ${text}`;
  const message = arrow.message === null ? "" : ` in message ${arrow.message}`;
  return `Result${attempt} delivered to ${to}${message}, read ${start(arrow.read ?? arrow.ended)}`;
}
