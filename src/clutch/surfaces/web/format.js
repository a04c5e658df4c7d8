// Figures as the commands print them (`core/text/format.py`): two units of time, three digits of tokens, cents.

const two = (number) => String(number).padStart(2, "0");

export const counted = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

export function duration(seconds) {
  const whole = Math.floor(Math.max(0, seconds));
  if (whole < 60) return whole ? `${whole}s` : "<1s";
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes}m${two(whole % 60)}s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours}h${two(minutes % 60)}m`;
  return `${Math.floor(hours / 24)}d${two(hours % 24)}h`;
}

/** Beside other words a short time has a space before its unit: `6 s`. */
export function secondsText(seconds) {
  const whole = Math.floor(Math.max(0, seconds));
  return whole < 60 ? `${whole} s` : duration(whole);
}

const tenths = (value) => `${Math.floor(value / 10)}.${value % 10}`.replace(/\.0$/, "");

export function tokens(count) {
  if (count < 1000) return String(count);
  const thousands = Math.floor((count + 50) / 100);
  if (thousands < 10000) return `${tenths(thousands)}k`;
  return `${tenths(Math.floor((count + 50000) / 100000))}M`;
}

/** Calls that used nothing are calls whose provider does not count: unknown, never 0. */
export function usedTokens(use) {
  const count = use.input + use.output;
  return use.calls && !count ? "n/a" : tokens(count);
}

export function money(usd) {
  if (usd === null) return "n/a";
  const value = Number(usd);
  return value > 0 && value < 0.005 ? "<$0.01" : `$${value.toFixed(2)}`;
}

export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 ** 2) return `${tenths(Math.floor((bytes * 10) / 1024))} KiB`;
  return `${tenths(Math.floor((bytes * 10) / 1024 ** 2))} MiB`;
}

/** The time of day; with the date if that is another day. */
export function clock(moment) {
  const at = new Date(moment);
  return at.toDateString() === new Date().toDateString() ? at.toLocaleTimeString() : at.toLocaleString();
}

export const minuteOf = (moment) => new Date(moment).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

/** The time of day without seconds, or the date of another day: where many moments stand below each other. */
export function moment(text) {
  const at = new Date(text);
  return at.toDateString() === new Date().toDateString() ? minuteOf(at) : at.toLocaleDateString();
}

/** Elapsed means one thing everywhere: since the task started, until it ended. */
export function elapsed(task, now) {
  if (task.startedAt === null) return "";
  const end = task.outcome !== null && task.endedAt !== null ? Date.parse(task.endedAt) : now;
  return duration((end - Date.parse(task.startedAt)) / 1000);
}

/** What the task is doing now, with the time since it began. */
export function doing(task, now) {
  if (task.doingSince === null) return task.doingNow;
  return `${task.doingNow} · ${secondsText((now - Date.parse(task.doingSince)) / 1000)}`;
}
