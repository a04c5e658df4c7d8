// The moment that the page shows: now, or a moment of the past that the slider of a timeline has chosen.
//
// What a task showed at a moment comes from the gateway, which computes it from what was recorded. Here it is only
// looked up: the last state at or before the moment.

import { at, go, onMove } from "/web/address.js";
import { connection } from "/web/connection.js";

const ADDRESS_MS = 1000; // browsers limit how often a page may change its address
const watchers = new Set();
let states = new Map(); // id -> [{ time, … }], oldest first
let current = read();
let noted = 0;

function read() {
  const { view, at: text } = at();
  const time = view === "timeline" && text ? Date.parse(text) : NaN;
  return Number.isNaN(time) ? null : time;
}

/** The moment in milliseconds; null: now. */
export const moment = () => current;
export const shownNow = () => current ?? connection.now;

/** `act()` runs after each change of the moment, until it returns false. */
export function onMoment(act) { watchers.add(act); }

function changed() {
  for (const act of watchers) if (act() === false) watchers.delete(act);
}

/** Show another moment; null: now. The address follows at most once a second while `isMoving`. */
export function showMoment(time, { isMoving = false } = {}) {
  current = time === null ? null : Math.round(time);
  if (!isMoving || performance.now() - noted > ADDRESS_MS) {
    noted = performance.now();
    go({ at: current === null ? "" : new Date(current).toISOString() }, { replace: true });
  }
  changed();
}

onMove(() => {
  const wanted = read();
  // While a slider moves, the address is behind: only a step back or a link brings another moment.
  if (wanted === current || performance.now() - noted < 50) return;
  current = wanted;
  changed();
});

/** Use the states of the lanes of a timeline. */
export function useStates(lanes) {
  states = new Map(lanes.map(({ task, states: found }) => [task.taskId, found.map((one) => ({ ...one, time: Date.parse(one.at) }))]));
}

export const statesOf = (id) => states.get(id) ?? [];

/** The last of `rows` whose `time` is not after the moment; undefined: none is. */
export function lastUntil(rows, time) {
  let [low, high] = [0, rows.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle].time <= time) low = middle + 1;
    else high = middle;
  }
  return rows[low - 1];
}

/** The task as of the moment that is shown. A task that did not exist then is returned as it is now. */
export function asOf(task) {
  if (current === null || !task) return task;
  const state = lastUntil(statesOf(task.taskId), current);
  if (!state) return task;
  const { deliveryStatus, deliveryText, at: _, time: __, ...rest } = state;
  return { ...task, ...rest, error: state.outcome === null ? null : task.error, delivery: { ...task.delivery, status: deliveryStatus, text: deliveryText } };
}
