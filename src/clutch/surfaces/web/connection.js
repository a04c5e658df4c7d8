// The connection to the gateway: one stream of events, and what the page knows about it.
//
// After a break the page loads the state again and follows the stream from the cursor of that answer, so no row is lost
// or doubled. The gateway sends `alive` every two seconds: a process that is stopped, and not dead, is noticed too.

import { ask, follow, forgetGateway, isSignedOut, problemText, signIn, Unreachable } from "/web/api.js";

const RETRY_MS = 1000;
const DRAIN_MS = 500;
const RUNS_MAX = 100; // whose pieces are counted
const SILENT_MS = 5000; // two `alive` were missed

let state = "connecting"; // then "live", "lost" or "signed out"
let lostAt = null;
let events = null;
let ending = null; // the stream before, until the next one has begun: steps are not kept, and one in between would be lost
let hasBegun = false;
let lastEventAt = 0;
let retry = null;
let lastCursor = null; // of the event that was received last
const LIVE = /^(assistant:|tool:|usage$)/; // pieces: they have a number in their run, and no cursor
const numbers = new Map(); // run -> the number of its piece that was received last; two streams may bring the same one
const live = new Map(); // part of the page -> the task or session whose text it shows
let load = async () => null; // of the present view; returns the cursor from which events continue
const listeners = new Set();
const watchers = new Map(); // name of an event -> functions

export const connection = {
  get state() { return state; },
  get lostAt() { return lostAt; },
  /** The moment up to which the page knows what happens: clocks stop when the connection is lost. */
  get now() { return lostAt ?? Date.now(); },
  onChange(act) { listeners.add(act); },
  on(names, act) { for (const name of [names].flat()) watchers.set(name, [...(watchers.get(name) ?? []), act]); },
  useLoader(act) { load = act; },
  /** Receive text and tool calls of this task or session; `place` names the part of the page that shows them. */
  showLive(place, target) {
    if ((live.get(place) ?? "") === (target ?? "")) return;
    if (target) live.set(place, target); else live.delete(place);
    if (state === "live") listen(lastCursor);
  },
  start,
  /** Tell the connection how a request of a view ended, so that a dead gateway is noticed at the first failure. */
  failed,
};

function become(next) {
  if (next === "live") lostAt = null;
  else lostAt ??= Date.now();
  if (state === next) return;
  state = next;
  for (const act of listeners) act(state);
}

function failed(error) {
  if (isSignedOut(error)) {
    abort(); // each further request would count as a wrong token
    become("signed out");
  } else if (error instanceof Unreachable) {
    lose();
  }
  return problemText(error);
}

function abort() {
  events?.abort();
  ending?.abort();
  [ending, hasBegun] = [null, false];
  numbers.clear(); // a gateway that is started again counts anew
}

function lose() {
  abort();
  forgetGateway(); // another program may have taken its port
  become("lost");
  retry ??= setTimeout(() => { retry = null; if (state !== "signed out") sync(); }, RETRY_MS);
}

/** Sign in if the address has a code, then load and follow. Returns the problem in words, or an empty text. */
async function start() {
  let problem = "";
  try {
    await signIn();
  } catch (error) {
    problem = problemText(error);
  }
  return (await sync()) || problem;
}

let syncing = null;
function sync() {
  syncing ??= (async () => {
    try {
      listen(await load());
      become("live");
      return "";
    } catch (error) {
      const said = failed(error);
      if (state !== "signed out") lose();
      return said;
    } finally {
      syncing = null;
    }
  })();
  return syncing;
}

function listen(cursor) {
  if (hasBegun) { ending?.abort(); ending = events; } else events?.abort();
  hasBegun = false;
  const after = cursor ? `&after=${encodeURIComponent(cursor)}` : "";
  const shown = encodeURIComponent([...new Set(live.values())].join(","));
  const mine = (events = new AbortController());
  [lastEventAt, lastCursor] = [Date.now(), cursor];
  const receiveMine = (name, data) => {
    if (mine.signal.aborted) return;
    if (mine === events && !hasBegun) { hasBegun = true; endSoon(ending); }
    if (mine === events || !hasBegun || LIVE.test(name)) receive(name, data);
  };
  follow(`/v1/events?include=overview&live=${shown}${after}`, mine.signal, receiveMine).catch(() => null).then(async () => {
    if (mine !== events || mine.signal.aborted) return;
    // A stream does not say why it ended. Health does: unreachable, or signed out.
    forgetGateway();
    try {
      await ask("/v1/health");
      lose();
    } catch (error) {
      failed(error);
      if (state !== "signed out") lose();
    }
  });
}

/** Pieces from before the next stream began are still on their way; all else the next one brings again. */
function endSoon(stream) {
  setTimeout(() => { stream?.abort(); if (ending === stream) ending = null; }, DRAIN_MS);
}

function receive(name, data) {
  lastEventAt = Date.now();
  if (name === "gap") return lose(); // this reader was too slow: it loads again
  if (name === "alive" || data === undefined) return;
  const said = JSON.parse(data);
  lastCursor = said.cursor ?? lastCursor;
  if (LIVE.test(name) && isKnown(said)) return;
  for (const act of watchers.get(name) ?? []) act(said, name);
}

/** Whether the stream before has brought this piece. */
function isKnown({ runId, seq }) {
  if (seq <= (numbers.get(runId) ?? -1)) return true;
  numbers.delete(runId); // the newest stand last
  numbers.set(runId, seq);
  if (numbers.size > RUNS_MAX) numbers.delete(numbers.keys().next().value);
  return false;
}

setInterval(() => { if (state === "live" && Date.now() - lastEventAt > SILENT_MS) lose(); }, 500);
addEventListener("hashchange", () => { if (location.hash) start(); }); // a new link was opened in this tab
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && state === "signed out") sync(); // signed in again in another tab
});
