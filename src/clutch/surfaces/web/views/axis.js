// The time axis of a timeline: from moments to pixels and back, zoom, and marks at whole units. Pure functions.

import { duration } from "/web/format.js";

const SECOND = 1000;
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].map((one) => one * SECOND)];
const MARK_PX = 84; // a mark with its text
const SPAN_MIN = 20; // milliseconds: nothing is recorded more finely

/** An axis over `width` pixels that shows `[from, to]`. */
export const axis = (from, to, width) => ({ from, to, width, x: (time) => ((time - from) / (to - from)) * width, time: (x) => from + (x / width) * (to - from) });

/** The whole tree, with a little room for the arrows at its end. */
export function fitted(start, end) {
  const span = Math.max(end - start, SPAN_MIN);
  return { from: start - span * 0.01, to: end + span * 0.03 };
}

/** Zoom so that `time` stays where it is. Never farther out than the whole tree. */
export function zoomed({ from, to }, factor, time, whole) {
  const span = Math.max(SPAN_MIN, (to - from) * factor);
  if (span >= whole.to - whole.from) return null;
  const share = (time - from) / (to - from);
  return inside({ from: time - span * share, to: time + span * (1 - share) }, whole);
}

/** Move by a share of what is shown. */
export function panned({ from, to }, share, whole) {
  const by = (to - from) * share;
  return inside({ from: from + by, to: to + by }, whole);
}

function inside({ from, to }, whole) {
  const by = Math.max(0, whole.from - from) - Math.max(0, to - whole.to);
  return { from: from + by, to: to + by };
}

const two = (number, digits = 2) => String(number).padStart(digits, "0");

/** A length of time, to the millisecond where it is short. */
export function exact(ms) {
  if (Math.abs(ms) < SECOND) return `${Math.round(ms)} ms`;
  return Math.abs(ms) < 60 * SECOND ? `${(ms / SECOND).toFixed(Math.abs(ms) < 10 * SECOND ? 2 : 1)} s` : duration(ms / SECOND);
}

export function clockText(time, withMillis = true) {
  const at = new Date(time);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}${withMillis ? `.${two(at.getMilliseconds(), 3)}` : ""}`;
}

/** As many digits as tell two marks apart. */
const fine = (ms, step) => (ms < SECOND ? `${Math.round(ms)} ms` : `${(ms / SECOND).toFixed(step >= 100 ? 1 : step >= 10 ? 2 : 3)} s`);

/** Marks `{ x, text }` at whole units, as many as have room. */
export function marks(scale, start, isRelative) {
  const least = ((scale.to - scale.from) / scale.width) * MARK_PX;
  const step = STEPS.find((one) => one >= least) ?? Math.ceil(least / (86400 * SECOND)) * 86400 * SECOND;
  const zero = isRelative ? start : new Date(scale.from).setHours(0, 0, 0, 0);
  const found = [];
  for (let time = zero + Math.ceil((scale.from - zero) / step) * step; time <= scale.to; time += step) {
    if (isRelative && time < start) continue;
    found.push({ x: scale.x(time), text: isRelative ? (time === start ? "0" : `+${step < SECOND ? fine(time - start, step) : duration((time - start) / SECOND)}`) : clockText(time, step < SECOND) });
  }
  return found;
}
