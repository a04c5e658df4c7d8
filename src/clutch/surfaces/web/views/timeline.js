// The timeline of a tree: one lane per task on a common axis, an arrow from each result to the message of the parent in
// which it was delivered, the critical path, and a slider that shows the tree as it was at any moment.
//
// Only the lanes that are in sight exist as elements. A running tree is drawn again when a pixel has passed, and read
// again when events have come; the longer a read took, the longer the next one waits.

import { at, go, link, onMove, openTask } from "/web/address.js";
import { ask, taskPath } from "/web/api.js";
import { connection } from "/web/connection.js";
import { arrange, attribute, button, h, perFrame, put } from "/web/dom.js";
import { isTyping, showNotice } from "/web/frame.js";
import { elapsed } from "/web/format.js";
import { asOf, moment, onMoment, shownNow, useStates } from "/web/replay.js";
import * as store from "/web/store.js";
import { describe, drawArrows, drawLinks, makeArrows, stateAt } from "/web/views/arrows.js";
import { axis, clockText, exact, fitted, marks, panned, zoomed } from "/web/views/axis.js";
import { drawLane, fillLane, laneOf, laneText, makeLane, NAMES, spotText, toolText } from "/web/views/lanes.js";
import { makePlayer } from "/web/views/player.js";
import { orderOf } from "/web/views/tree.js";

const READ_MS = 700;
const STILL = matchMedia("(prefers-reduced-motion: reduce)");
const STILL_MS = 1000;
const OVERSCAN = 8; // lanes above and below what is in sight

let found = null; // what the gateway answered last
let order = []; // [{ lane, level, children }] of the whole tree
let shown = []; // those that exist at the moment and are not folded
let lanes = new Map();
let arrows = [];
let path = []; // the critical one
let moments = [];
let extent = null; // { from, to } of the axis; null: the whole tree
let isRelative = true;
let focused = null;
let pointed = null;
let reading = null;
let loads = 0;
let drawnAt = 0;
const folded = new Set();
const rows = new Map();

const title = h("h2", { class: "tree-title" });
const facts = h("p", { class: "quiet tree-facts" });
const notice = h("p", { class: "warning", hidden: true });
const head = h("div", { class: "time-axis", "aria-hidden": "true" });
const space = h("div", { class: "lane-space", role: "rowgroup" });
const arrowLayer = makeArrows();
const line = h("div", { class: "now-mark" });
const scroller = h("div", { class: "lanes" }, space);
const headRow = h("div", { role: "rowgroup", class: "lane-head" }, h("div", { role: "row", "aria-rowindex": 1 }, h("div", { role: "columnheader", class: "lane-name", text: "Task" }), h("div", { role: "columnheader", class: "axis-cell" }, h("span", { class: "hidden-text", text: "Time" }), head)));
const grid = h("div", { role: "treegrid", class: "timeline-grid", "aria-label": "Timeline" }, headRow, scroller);
const readout = h("p", { class: "readout", role: "status", text: "Point at a task, or move with ↑ and ↓, to read its exact moments." });
const units = button("Clock", () => { isRelative = !isRelative; redraw(); }, { class: "units" });
const player = makePlayer({ span, events: () => moments, text: momentText });

function legend() {
  const items = Object.entries(NAMES).map(([name, text]) => h("li", {}, h("span", { class: `swatch ${name}` }), h("span", { text })));
  return h("ul", { class: "activity-legend", "aria-label": "Legend" }, items, h("li", {}, h("span", { class: "swatch path" }), h("span", { text: "critical path" })));
}

const toolbar = h("div", { class: "timeline-tools", role: "group", "aria-label": "Zoom" },
  button("−", () => zoom(2), { "aria-label": "Zoom out", title: "Zoom out ( - )" }),
  button("+", () => zoom(0.5), { "aria-label": "Zoom in", title: "Zoom in ( + )" }),
  button("Fit", () => fit(), { title: "Show the whole tree ( 0 )" }), units,
  h("details", { class: "keys-help" }, h("summary", { text: "Keys" }), h("p", { text: "↑ ↓ task · ← → fold, unfold · Enter open · , . tool call · + − 0 zoom · Shift ← → pan · [ ] event · p play" })));

export const timelineView = {
  name: "timeline",
  title: "Timeline",
  count: () => null,
  load,
  show(place) {
    found = null;
    rows.clear();
    space.replaceChildren(arrowLayer, line);
    const back = h("a", { class: "to-tasks", "data-local": true, href: link({ view: "tasks", task: at().task, tab: "activity" }), text: "‹ Tasks" });
    place.append(h("div", { class: "timeline-head" }, back, title, facts, toolbar), notice, legend(), grid, readout, player.bar);
  },
};
new ResizeObserver(() => { if (found) redraw(); }).observe(scroller);

// ---- loading ---------------------------------------------------------------------------------------------

async function load() {
  const { task } = at();
  const mine = ++loads;
  const begun = store.asking();
  const answer = await ask(taskPath(task, "/timeline"));
  if (at().task !== task || at().view !== "timeline" || mine !== loads) return answer.cursor;
  for (const one of answer.lanes) store.keep({ ...one.task, segments: one.segments }, begun);
  use(answer);
  load.tookMs = performance.now() - begun;
  showNotice("view", "");
  return answer.cursor;
}

const ms = (text) => (text === null ? null : Date.parse(text));

function use(answer) {
  found = answer;
  useStates(answer.lanes);
  const tool = focused && lanes.get(focused)?.tool;
  lanes = new Map(answer.lanes.map((one) => [one.task.taskId, laneOf(one)]));
  if (tool && lanes.has(focused)) lanes.get(focused).tool = lanes.get(focused).tools.find((one) => one.start === tool.start);
  path = answer.criticalPath.map((one) => ({ taskId: one.taskId, start: ms(one.start), end: ms(one.end) }));
  if (path.length && lanes.get(answer.root)?.task.outcome === null) path.at(-1).end = null; // it lasts
  for (const stage of path) lanes.get(stage.taskId)?.critical.push(stage);
  arrows = answer.deliveries.map((one) => ({
    ...one, ended: ms(one.endedAt), read: ms(one.readAt), parentLabel: lanes.get(one.toTask)?.task.label,
    states: one.states.map((state) => ({ ...state, time: ms(state.at) })),
  }));
  isEnded = answer.lanes.every((one) => one.task.activity === null);
  order = orderOf(answer.lanes.map((one) => one.task)).map(({ task, level, children }) => ({ lane: lanes.get(task.taskId), level, children }));
  order.unshift(...sessionLanes());
  moments = [...new Set([...answer.lanes.flatMap((one) => one.states.map((state) => Date.parse(state.at))), ...arrows.map((one) => one.read).filter((one) => one !== null)])].sort((a, b) => a - b);
  put(title, lanes.get(answer.root)?.task.label || answer.root);
  notice.hidden = !answer.notice;
  put(notice, answer.notice ?? "");
  attribute(grid, "aria-rowcount", order.length + 1);
  focused ??= answer.root;
  redraw();
}

/** A parent that is no task gets a lane of its own, so that its arrows have an end. */
function sessionLanes() {
  const keys = [...new Set(arrows.filter((one) => one.toTask === null && one.toSession !== null).map((one) => one.toSession))];
  return keys.map((key) => {
    const mine = arrows.filter((one) => one.toSession === key && one.toTask === null);
    const first = Math.min(...mine.map((one) => lanes.get(one.taskId)?.spawned ?? Infinity));
    return { lane: { id: `session ${key}`, label: key, isSession: true, spawned: first, messages: mine.map((one) => one.read).filter((one) => one !== null) }, level: 1, children: 0 };
  });
}

/** Read again after events of this tree, and not more often than the gateway can answer with ease. */
function readSoon() {
  if (reading !== null) return;
  reading = setTimeout(() => {
    reading = null;
    if (at().view === "timeline" && connection.state === "live") load().catch((error) => showNotice("view", connection.failed(error)));
  }, Math.max(READ_MS, 10 * (load.tookMs ?? 0)));
}

store.onTasks((ids) => {
  if (!found || at().view !== "timeline") return;
  for (const id of ids) {
    const task = store.task(id);
    const known = lanes.get(id)?.task;
    if (known ? task && task !== known && JSON.stringify([task.status, task.step, task.delivery.status]) !== JSON.stringify([known.status, known.step, known.delivery.status]) : lanes.has(task?.parentTaskId)) return readSoon();
  }
});

// ---- the axis --------------------------------------------------------------------------------------------

let isEnded = false; // all of its tasks
const isOver = () => isEnded;

/** First and last moment of the tree. A tree that works lasts until now. */
function span() {
  if (!found) return { first: 0, last: 1 };
  const first = lanes.get(found.root)?.created ?? Math.min(...moments);
  const last = isOver() ? Math.max(first + 1, ...moments.slice(-1)) : Math.max(connection.now, ...moments.slice(-1));
  return { first, last };
}

const width = () => Math.max(80, head.clientWidth);
const whole = () => { const { first, last } = span(); return fitted(first, last, width()); };
const scale = () => { const { from, to } = extent ?? whole(); return axis(from, to, width()); };

function zoom(factor, time) {
  const { from, to } = extent ?? whole();
  extent = zoomed({ from, to }, factor, time ?? (moment() !== null && moment() > from && moment() < to ? moment() : (from + to) / 2), whole());
  redraw();
}
function fit() { extent = null; redraw(); }
function pan(share) { if (extent) { extent = panned(extent, share, whole()); redraw(); } }

const relativeText = (time) => `+${exact(time - span().first)}`;
function momentText(time) { return isRelative ? `${relativeText(time)} (${clockText(time)})` : `${clockText(time)} (${relativeText(time)})`; }

// ---- drawing ---------------------------------------------------------------------------------------------

const isFolded = (row, level) => row.level > level;

/** The lanes that exist at the moment, without those below a folded one. */
function shownLanes(until) {
  const wanted = [];
  let hiddenBelow = Infinity;
  for (const one of order) {
    if (isFolded(one, hiddenBelow) || one.lane.spawned > until) continue;
    hiddenBelow = one.children && folded.has(one.lane.id) ? one.level : Infinity;
    wanted.push(one);
  }
  return wanted;
}

const redraw = perFrame(draw);

function draw() {
  if (!found || !grid.isConnected) return;
  const until = shownNow();
  const measure = scale();
  drawnAt = connection.now;
  shown = shownLanes(until);
  const height = laneHeight();
  space.style.height = `${shown.length * height}px`;
  const first = Math.max(0, Math.floor(scroller.scrollTop / height) - OVERSCAN);
  const last = Math.min(shown.length, Math.ceil((scroller.scrollTop + scroller.clientHeight) / height) + OVERSCAN);
  const inSight = shown.slice(first, last).map((one, place) => laneRow(one, first + place, measure, until));
  arrange(space, [arrowLayer, line, ...inSight]);
  for (const [id, row] of rows) if (!row.isConnected) rows.delete(id);
  // The layer of the arrows is as high as what is in sight: browsers paint all of a layer that has changed.
  const places = new Map(shown.map((one, index) => [one.lane.id, (index - first + 0.5) * height]));
  attribute(arrowLayer, "width", measure.width);
  attribute(arrowLayer, "height", Math.max(1, (last - first) * height));
  arrowLayer.style.top = `${first * height}px`;
  const where = { scale: measure, time: until, place: (id) => places.get(id), height: (last - first) * height, start: momentText };
  drawArrows(arrowLayer, arrows, where);
  drawLinks(arrowLayer, path, where);
  drawHead(measure, until);
  player.draw();
}

const laneHeight = () => parseFloat(getComputedStyle(grid).getPropertyValue("--lane")) || 30;

function laneRow({ lane, level, children }, index, measure, until) {
  let row = rows.get(lane.id);
  if (!row) rows.set(lane.id, (row = makeLane(lane)));
  const task = lane.isSession ? null : asOf(store.task(lane.id) ?? lane.task);
  fillLane(row, lane, task, { level, children, index, isOpen: !folded.has(lane.id), isSelected: openTask() === lane.id, text: fullText(lane, task, until) });
  attribute(row, "tabindex", lane.id === focused ? 0 : -1);
  drawLane(row, lane, measure, until);
  return row;
}

function fullText(lane, task, until) {
  const results = arrows.filter((one) => one.taskId === lane.id).map((one) => [one, stateAt(one, until)]).filter(([, state]) => state);
  return [laneText(lane, task, until, momentText), ...results.map(([one, state]) => describe(one, state, momentText))].join(" · ");
}

function drawHead(measure, until) {
  head.replaceChildren(...marks(measure, span().first, isRelative).map((one) => { const node = h("span", { class: "mark", text: one.text }); node.style.transform = `translateX(${one.x.toFixed(1)}px)`; return node; }));
  const root = asOf(store.task(found.root) ?? lanes.get(found.root)?.task);
  const count = shown.filter((one) => !one.lane.isSession).length;
  put(facts, root ? [root.status, elapsed(root, until), `${count} of ${found.total} ${found.total === 1 ? "task" : "tasks"}`].filter(Boolean).join(" · ") : "");
  put(units, isRelative ? "Clock" : "Relative");
  const x = measure.x(until);
  line.hidden = x < 0 || x > measure.width || (moment() === null && isOver());
  line.style.transform = `translate(${x.toFixed(1)}px, ${scroller.scrollTop}px)`;
  line.style.height = `${scroller.clientHeight}px`;
  line.dataset.replay = String(moment() !== null);
  attribute(grid, "data-replay", moment() === null ? null : "true");
}

/** Bars of a tree that works grow: drawn again when they have grown by a pixel. */
function grow() {
  if (at().view !== "timeline") return setTimeout(grow, STILL_MS);
  const measure = found && scale();
  const isDue = measure && moment() === null && connection.state === "live" && !isOver() && connection.now - drawnAt >= (measure.to - measure.from) / measure.width;
  if (isDue && !document.hidden) draw();
  if (STILL.matches || document.hidden || !found || isOver() || connection.isExported) setTimeout(grow, STILL_MS);
  else requestAnimationFrame(grow);
}
grow();

onMoment(() => { if (at().view === "timeline") redraw(); });
onMove((now, before) => {
  if (now.view !== "timeline") return player.stop();
  if (now.task !== before.task && before.view === "timeline") { extent = null; focused = null; folded.clear(); load().catch((error) => showNotice("view", connection.failed(error))); } else redraw();
});

// ---- keys and pointer ------------------------------------------------------------------------------------

function say(text) { put(readout, text); }

function focusLane(index) {
  const one = shown[Math.max(0, Math.min(shown.length - 1, index))];
  if (!one) return;
  const height = laneHeight();
  const top = shown.indexOf(one) * height;
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  if (top + height > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + height - scroller.clientHeight;
  focused = one.lane.id;
  draw();
  rows.get(focused)?.focus({ preventScroll: true });
}

function tool(lane, by) {
  const known = lane.tools?.filter((one) => one.start <= shownNow()) ?? [];
  if (!known.length) return say(`${lane.task?.label ?? lane.label}: no tool calls`);
  const place = known.indexOf(lane.tool);
  lane.tool = known[place < 0 ? (by > 0 ? 0 : known.length - 1) : Math.max(0, Math.min(known.length - 1, place + by))];
  if (extent && (lane.tool.start < extent.from || lane.tool.start > extent.to)) { const half = (extent.to - extent.from) / 2; extent = { from: lane.tool.start - half, to: lane.tool.start + half }; }
  draw();
  say(`${known.indexOf(lane.tool) + 1} of ${known.length}: ${toolText(lane.tool)} · ${momentText(lane.tool.start)} · message ${lane.tool.message}`);
}

const LANE_KEYS = {
  ArrowDown: ({ index }) => focusLane(index + 1),
  ArrowUp: ({ index }) => focusLane(index - 1),
  Home: () => focusLane(0),
  End: () => focusLane(shown.length - 1),
  ArrowRight: ({ lane, children, index }) => (children && folded.delete(lane.id) ? redraw() : focusLane(index + 1)),
  ArrowLeft: ({ lane, children, index }) => { if (children && !folded.has(lane.id)) { folded.add(lane.id); redraw(); } else focusLane(shown.findLastIndex((one, place) => place < index && one.level < shown[index].level)); },
  Enter: ({ lane }) => open(lane),
  ",": ({ lane }) => tool(lane, -1),
  ".": ({ lane }) => tool(lane, 1),
};
const VIEW_KEYS = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => fit(), "[": () => player.step(-1), "]": () => player.step(1), p: () => player.toggle() };

function open(lane) {
  if (lane.isSession) return;
  go({ lane: lane.id, tab: "activity" });
  document.querySelector("#panel h2")?.focus();
}

document.addEventListener("keydown", (event) => {
  if (at().view !== "timeline" || !found || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (isTyping(event.target) || event.target.closest("dialog, #panel")) return;
  if (event.shiftKey && ["ArrowLeft", "ArrowRight"].includes(event.key)) { event.preventDefault(); return pan(event.key === "ArrowLeft" ? -0.25 : 0.25); }
  const row = event.target.closest(".lane");
  const index = row ? shown.findIndex((one) => one.lane.id === row.dataset.task) : -1;
  const act = index >= 0 && row === event.target ? LANE_KEYS[event.key] : undefined;
  if (!act && !VIEW_KEYS[event.key]) return;
  event.preventDefault();
  if (act) act({ ...shown[index], index });
  else VIEW_KEYS[event.key]();
});

const laneAt = (event) => { const row = event.target.closest?.(".lane"); return row && shown.find((one) => one.lane.id === row.dataset.task)?.lane; };
const timeAt = (event) => scale().time(event.clientX - head.getBoundingClientRect().left);

grid.addEventListener("focusin", (event) => {
  const lane = laneAt(event);
  if (!lane) return;
  if (focused !== lane.id) { attribute(rows.get(focused) ?? h("i"), "tabindex", -1); focused = lane.id; attribute(rows.get(focused), "tabindex", 0); }
  say(fullText(lane, lane.isSession ? null : asOf(store.task(lane.id) ?? lane.task), shownNow()));
});
grid.addEventListener("pointermove", (event) => {
  if (pointed?.drag) {
    extent = panned(pointed.extent, (pointed.x - event.clientX) / head.clientWidth, whole());
    pointed.isMoved ||= Math.abs(pointed.x - event.clientX) > 3;
    return redraw();
  }
  const lane = laneAt(event);
  if (!lane) return;
  const task = lane.isSession ? null : asOf(store.task(lane.id) ?? lane.task);
  say(event.target.closest(".track") ? `${relativeText(timeAt(event))} · ${spotText(lane, timeAt(event))} · ${fullText(lane, task, shownNow())}` : fullText(lane, task, shownNow()));
});
grid.addEventListener("pointerdown", (event) => {
  if (extent && event.button === 0 && event.pointerType === "mouse" && event.target.closest(".track")) pointed = { drag: true, x: event.clientX, extent, isMoved: false };
});
addEventListener("pointerup", () => { if (pointed) setTimeout(() => { pointed = null; }, 0); });
grid.addEventListener("click", (event) => {
  const lane = laneAt(event);
  if (!lane || pointed?.isMoved) return;
  if (event.target.closest(".fold")) { if (!folded.delete(lane.id)) folded.add(lane.id); return redraw(); }
  if (!event.target.closest("a")) open(lane);
});
scroller.addEventListener("scroll", () => redraw(), { passive: true });
grid.addEventListener("wheel", (event) => {
  if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(Math.exp(event.deltaY * 0.004), timeAt(event)); }
  else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) { if (extent) { event.preventDefault(); pan((event.deltaX || event.deltaY) / 800); } }
}, { passive: false });
