// The tasks that the page knows. An event brings a whole task, which replaces the one before; views hear once per frame
// which ids have changed, however many events came.
//
// An answer may arrive after events that are newer than it. Each event brings what is true at its time, and whatever
// happens later brings another: so a task that an event has changed since the answer was asked for stays as it is.

import { perFrame } from "/web/dom.js";

const tasks = new Map();
const events = new Map(); // id -> { receivedAt, moment } of its last event; `moment`: in seconds of the task
const watchers = new Set();
let changed = new Set();

const flush = perFrame(() => {
  const ids = changed;
  changed = new Set();
  for (const act of watchers) if (act(ids) === false) watchers.delete(act);
});

/** `act(ids)` runs at most once per frame, until it returns false. */
export function onTasks(act) { watchers.add(act); }

export const task = (id) => tasks.get(id);
export const all = () => tasks.values();

/** The moment to note before a request whose answer is kept. */
export const asking = () => performance.now();
const hasChangedSince = (id, askedAt) => (events.get(id)?.receivedAt ?? -Infinity) >= askedAt;

/** Bring in a task of a list or of an answer. `askedAt`: the moment before the request. */
export function keep(found, askedAt) {
  const before = tasks.get(found.taskId);
  if (before && hasChangedSince(found.taskId, askedAt)) {
    // An event has no past: the bar of a task that was not known before it begins in the answer.
    if (found.segments) before.segments = continued(found.segments, before.activity, events.get(found.taskId).moment);
    note(before);
  } else {
    note({ ...found, segments: found.segments ?? before?.segments ?? [] });
  }
}

function note(found) {
  tasks.set(found.taskId, found);
  changed.add(found.taskId);
  flush();
}

/** Bring in the task of an event. Its bar continues where the activity changed. */
export function apply({ at, task: found }) {
  if (!found) return;
  const before = tasks.get(found.taskId);
  const moment = (Date.parse(at) - Date.parse(found.createdAt)) / 1000;
  events.set(found.taskId, { receivedAt: performance.now(), moment });
  note({ ...found, segments: continued(before?.segments ?? [], found.activity, moment) });
}

function continued(segments, activity, moment) {
  const last = segments.at(-1);
  if (last && last.end === null) {
    if (last.activity === activity) return segments;
    const ended = { ...last, end: Math.max(last.start, moment) };
    return activity === null ? [...segments.slice(0, -1), ended] : [...segments.slice(0, -1), ended, { activity, start: ended.end, end: null }];
  }
  return activity === null ? segments : [...segments, { activity, start: Math.max(last?.end ?? 0, moment), end: null }];
}

/** Look again at what events have changed since a list was asked for: it may belong into the list, or no longer. */
export function lookAgain(askedAt) {
  for (const id of tasks.keys()) if (hasChangedSince(id, askedAt)) changed.add(id);
  flush();
}

/** Forget all tasks but these, and but those that are newer: a list was loaded again. */
export function forgetAllBut(ids, askedAt) {
  for (const id of tasks.keys()) {
    if (ids.has(id) || hasChangedSince(id, askedAt)) continue;
    tasks.delete(id);
    events.delete(id);
    changed.add(id);
  }
  lookAgain(askedAt);
}

/** From the top of the tree to the task, as far as the page knows. Imported tasks can be each other's parent. */
export function lineage(id) {
  const path = [];
  for (let one = tasks.get(id); one && path.length < 50; one = tasks.get(one.parentTaskId)) {
    if (path.includes(one)) break;
    path.unshift(one);
  }
  return path;
}

/** The figures over all tasks, as the gateway sent them last. */
export const overview = { summary: null, inbox: [], problems: [], model: null, isDemo: false };
const overviewWatchers = new Set();
export function onOverview(act) { overviewWatchers.add(act); }
export function setOverview(found) {
  Object.assign(overview, found);
  for (const act of overviewWatchers) act(overview);
}
