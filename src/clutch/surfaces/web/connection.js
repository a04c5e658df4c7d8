// The connection to the gateway: one stream of events, and what the page knows about it.
//
// After a break the page loads the state again and follows the stream from the cursor of that answer, so no row is lost
// or doubled. The gateway sends `alive` every two seconds: a process that is stopped, and not dead, is noticed too.

import { ask, follow, forgetGateway, isSignedOut, problemText, signIn, Unreachable } from "/web/api.js";

const RETRY_MS = 1000;
const SILENT_MS = 5000; // two `alive` were missed

let state = "connecting"; // then "live", "lost" or "signed out"
let lostAt = null;
let events = null;
let name = null; // of the stream, once it has begun
let chosen = ""; // whose text the stream brings
let isChoosing = false;
let lastEventAt = 0;
let retry = null;
let lastCursor = null; // of the event that was received last
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
    choose();
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
  name = null;
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

/** The tasks and sessions whose text the page shows, as the gateway reads them. */
const shown = () => [...new Set(live.values())].join(",");

/** Choose whose text the stream brings. It stays open: pieces of a second stream could overtake those of the first.
 * One request at a time: an older choice must not come after a newer one. */
async function choose() {
  if (isChoosing) return;
  isChoosing = true;
  while (name !== null && chosen !== shown()) {
    const stream = name;
    chosen = shown();
    await ask(`/v1/events/${stream}/live`, { method: "POST", body: { live: chosen } }).catch((error) => {
      if (stream !== name) return;
      failed(error);
      if (state === "live") listen(lastCursor); // another gateway with the same address does not know the stream
    });
  }
  isChoosing = false;
}

function listen(cursor) {
  abort();
  const after = cursor ? `&after=${encodeURIComponent(cursor)}` : "";
  const mine = (events = new AbortController());
  [lastEventAt, lastCursor, chosen] = [Date.now(), cursor, shown()];
  const receiveMine = (event, data) => { if (!mine.signal.aborted) receive(event, data); };
  follow(`/v1/events?include=overview&live=${encodeURIComponent(chosen)}${after}`, mine.signal, receiveMine).catch(() => null).then(async () => {
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

function receive(event, data) {
  lastEventAt = Date.now();
  if (event === "gap") return lose(); // this reader was too slow: it loads again
  if (event === "alive" || data === undefined) return;
  const said = JSON.parse(data);
  if (event === "stream") { name = said.id; return choose(); }
  lastCursor = said.cursor ?? lastCursor;
  for (const act of watchers.get(event) ?? []) act(said, event);
}

setInterval(() => { if (state === "live" && Date.now() - lastEventAt > SILENT_MS) lose(); }, 500);
addEventListener("hashchange", () => { if (location.hash) start(); }); // a new link was opened in this tab
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && state === "signed out") sync(); // signed in again in another tab
});
