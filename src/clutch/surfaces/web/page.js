// The page behind `clutch open`: the tree of tasks, the inbox, and the timeline of one task.
//
// It knows the HTTP API and nothing else; `text.js` writes all text.

import { element, put, visible } from "/text.js";

const RECENT_MINUTES = 30;
const EVENTS = ["lifecycle:start", "lifecycle:end", "lifecycle:error", "phase", "tool:start", "tool:end", "usage", "announce", "question"];
const QUIET_MS = 500; // many events make one look
const AGAIN_MS = 5000; // until a refused line is asked for again
const HEALTH_MS = 5000; // between two questions for the problems of the gateway
const TICK_MS = 1000; // times go on between them
const SETTLED_MS = 1000; // an item of the inbox takes presses when it has stood in its place for so long
const DECIDED = { answer: "answered", approve: "approved", reject: "rejected" };

const byId = (id) => document.getElementById(id);
let shown = null; // the task whose story is open
let last = null; // what was looked at last
let lostAt = null; // since when the gateway does not answer

// ---- asking ----------------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(said) {
    super(said.remedy ? `${said.message} (${said.remedy})` : said.message);
    this.code = said.code;
  }
}

class Unreachable extends Error {}

async function ask(path, { method = "GET", body, headers = {} } = {}) {
  const sent = { "X-Clutch-Page": "1", ...headers };
  if (body !== undefined) sent["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers: sent, body: body === undefined ? undefined : JSON.stringify(body) })
    .catch((error) => { throw new Unreachable(error.message); });
  const said = await answer.json();
  if (!answer.ok) throw new Refused(said.error);
  return said;
}

/** The one-time code stands behind the `#`, which no browser sends; it leaves the address before it is used. */
async function enter() {
  const code = location.hash.slice(1);
  if (!code) return;
  history.replaceState(null, "", location.pathname);
  await ask("/v1/browser/session", { method: "POST", body: {}, headers: { Authorization: `Code ${code}` } });
}

// ---- words -----------------------------------------------------------------------------------------------

function span(seconds) {
  if (seconds < 60) return `${Math.round(seconds)}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m${Math.round(seconds % 60)}s`;
  return `${Math.floor(seconds / 3600)}h${Math.floor((seconds % 3600) / 60)}m`;
}

const now = () => lostAt ?? Date.now(); // the moment up to which the page knows
const since = (moment, until = now()) => span(Math.max(0, (until - Date.parse(moment)) / 1000));

/** With its day, if that is not today. */
function clock(moment) {
  const at = new Date(moment);
  return at.toDateString() === new Date().toDateString() ? at.toLocaleTimeString() : at.toLocaleString();
}

// The words for states, deliveries and counts are the gateway's: `status`, `doingNow`, `delivery.text`, `summary.text`.

function manner(task) {
  if (task.delivery.state === "undelivered" || (task.outcome !== null && task.outcome !== "ok")) return "bad";
  if (task.phase === "awaiting_approval" || task.reason === "needs-you") return "you";
  return task.outcome === "ok" ? "ok" : "";
}

/** `thinking · step 4 · 6 s`: the time continues between two looks. */
function doing({ doingNow, doingSince }) {
  return doingSince === null ? doingNow : `${doingNow} · ${since(doingSince).replace(/^(\d+)s$/, "$1 s")}`;
}

/** Since the task started, until it ended. */
function elapsed({ startedAt, endedAt, outcome }) {
  if (startedAt === null) return "";
  return since(startedAt, outcome === null || endedAt === null ? now() : Date.parse(endedAt));
}

// ---- drawing ---------------------------------------------------------------------------------------------

/** A line is made once and filled again and again: whoever is on it with the keyboard stays there. */
function row(task) {
  const line = element("tr", "");
  line.dataset.key = task.taskId;
  const opens = element("button", task.label || task.taskId);
  opens.title = task.taskId;
  opens.addEventListener("click", () => tell(task.taskId));
  const name = element("td", "", `depth-${Math.min(task.depth, 5)}`);
  name.append(opens);
  line.append(name, ...["", "", "figure", "figure", "figure", "quiet"].map((kind) => element("td", "", kind)));
  return line;
}

function fill(line, task) {
  const { subtree } = task.usage;
  const words = [
    task.status,
    doing(task),
    elapsed(task),
    (subtree.input + subtree.output).toLocaleString(),
    subtree.usd === null ? "n/a" : `$${subtree.usd}`,
    task.delivery.text,
  ];
  words.forEach((text, place) => put(line.cells[place + 1], text));
  line.cells[1].className = manner(task);
  return line;
}

/** The elements of a list by what they show; those that stay are moved, not made anew. */
function redraw(list, items, keyOf, make, refresh = (one) => one) {
  const there = new Map([...list.children].map((one) => [one.dataset.key, one]));
  const wanted = items.map((item) => refresh(there.get(keyOf(item)) ?? make(item), item));
  [...list.children].filter((one) => !wanted.includes(one)).forEach((one) => one.remove());
  wanted.forEach((one, place) => { if (list.children[place] !== one) list.insertBefore(one, list.children[place] ?? null); });
}

/** Parents before their children, each family where the first of its tasks stands in the list. */
function inOrder(tasks) {
  const below = Map.groupBy(tasks, (task) => task.parentTaskId);
  const known = new Map(tasks.map((task) => [task.taskId, task]));
  const topOf = (task, left = tasks.length) => { // undefined: imported tasks can be each other's parent
    const above = known.get(task.parentTaskId);
    return above === undefined ? task : left > 0 ? topOf(above, left - 1) : undefined;
  };
  const walk = (task) => [task, ...(below.get(task.taskId) ?? []).flatMap(walk)];
  return [...new Set(tasks.map((task) => topOf(task)))].filter(Boolean).flatMap(walk);
}

function drawTasks(page) {
  put(byId("summary"), page.summary.text + (page.next === null ? "" : " · older finished tasks are not shown"));
  redraw(byId("tasks"), inOrder(page.tasks), (task) => task.taskId, row, fill);
}

// ---- inbox -----------------------------------------------------------------------------------------------
//
// A click must decide about the item that the user looked at. Each item has elements of its own, and the decision carries
// its id and hash. An item that is decided is disabled at once and stays where it is until the pointer has left the
// inbox, so that no other item moves below the pointer. An item that came to its place less than SETTLED_MS ago takes no
// press: a touch screen has no pointer that stays. Approving a tool call takes two buttons in two places.

const itemKey = (item) => `${item.id} ${item.hash}`;
const inboxList = document.querySelector("#inbox ul");
let isPointerInside = false;
const places = new WeakMap(); // item element -> its place in the document
const settling = new WeakMap(); // item element -> the timer after which it takes presses

function drawInbox({ items }) {
  const open = new Set(items.map(itemKey));
  for (const line of inboxList.children) if (!open.has(line.dataset.key)) close(line, "decided elsewhere");
  const there = new Set([...inboxList.children].map((line) => line.dataset.key));
  inboxList.append(...items.filter((item) => !there.has(itemKey(item))).map(inboxItem));
  tidyInbox();
}

/** Remove what was decided, unless that would move an item below the pointer. */
function tidyInbox() {
  if (!isPointerInside) inboxList.querySelectorAll("li[data-closed]").forEach((line) => line.remove());
  byId("inbox").hidden = inboxList.children.length === 0;
  notePlaces();
}

function notePlaces() {
  for (const line of inboxList.children) {
    const place = Math.round(line.getBoundingClientRect().top + scrollY);
    if (places.get(line) === place) continue;
    places.set(line, place);
    clearTimeout(settling.get(line));
    settling.set(line, setTimeout(() => setSettled(line, true), SETTLED_MS));
    setSettled(line, false);
  }
}

/** `aria-disabled` leaves the focus where it is. */
function setSettled(line, isSettled) {
  line.querySelectorAll("button").forEach((button) => button.setAttribute("aria-disabled", String(!isSettled)));
}

/** A key acts on the element that has the focus. A pointer may have been aimed at what stood there before. */
function isMeant(button, click) {
  notePlaces();
  return click.detail === 0 || button.getAttribute("aria-disabled") !== "true";
}

function close(line, words) {
  if (line.dataset.closed) return;
  line.dataset.closed = "1";
  line.querySelectorAll("button, textarea").forEach((one) => { one.disabled = true; });
  put(line.querySelector(".said"), words);
}

byId("inbox").addEventListener("pointerenter", () => { isPointerInside = true; });
byId("inbox").addEventListener("pointerleave", () => { isPointerInside = false; tidyInbox(); });

function inboxItem(item) {
  const line = element("li", "");
  line.dataset.key = itemKey(item);
  const head = element("p", `${item.status} · ${item.label || item.sessionKey}`, "you");
  const choices = (item.detail.choices ?? []).map((choice) => element("p", `• ${choice}`));
  const text = element("textarea", "");
  text.rows = 2;
  text.placeholder = item.kind === "question" ? "Your answer" : "Comment (optional)";
  text.setAttribute("aria-label", text.placeholder);
  const said = element("p", "", "said");
  said.setAttribute("role", "alert");
  line.append(head, element("p", item.text), ...choices, text, ...decisions(item, line), said);
  return line;
}

function decisions(item, line) {
  if (item.kind === "question") return [decisionButton("answer", () => decide(item, line, "answer"))];
  const approve = () => decide(item, line, "approve");
  const reject = decisionButton("reject", () => decide(item, line, "reject"));
  if (!("tool" in item.detail)) return [decisionButton("approve", approve), reject];
  // `cancel` takes the place of `approve`, and `reject` stays: a double click or a change of mind approves nothing.
  const cancel = decisionButton("cancel", () => confirming(false));
  const run = decisionButton("run it", approve);
  const first = decisionButton("approve", () => confirming(true));
  const confirming = (isAsked) => {
    cancel.hidden = run.hidden = !isAsked;
    first.hidden = isAsked;
    put(line.querySelector(".said"), isAsked ? "Run this call? It starts at once." : "");
  };
  cancel.hidden = run.hidden = true;
  return [first, cancel, reject, run];
}

function decisionButton(name, act) {
  const button = element("button", name);
  button.addEventListener("click", (click) => { if (isMeant(button, click)) act(); });
  return button;
}

/** Disabled from the press until the gateway refuses: one press is one decision. */
async function decide(item, line, decision) {
  const [said, text] = [line.querySelector(".said"), line.querySelector("textarea")];
  if (decision === "answer" && !text.value.trim()) return put(said, "The answer must not be blank.");
  const fields = [...line.querySelectorAll("button, textarea")];
  fields.forEach((one) => { one.disabled = true; });
  put(said, `${decision}: sending`);
  try {
    const body = { decision, text: text.value, hash: item.hash };
    await ask(`/v1/inbox/${encodeURIComponent(item.id)}`, { method: "POST", body });
    close(line, DECIDED[decision]);
  } catch (error) {
    fields.forEach((one) => { one.disabled = false; });
    put(said, problemText(error));
  }
  lookSoon();
}

// ---- one task --------------------------------------------------------------------------------------------

async function drawStory(taskId) {
  const path = `/v1/tasks/${encodeURIComponent(taskId)}`;
  const { task, timeline, stuck } = await ask(`${path}/why`);
  const result = task.outcome === null ? null : await ask(`${path}/result`);
  if (taskId !== shown) return; // closed, or another one was opened meanwhile
  byId("story").hidden = false;
  put(byId("story-title"), `${task.label || task.taskId}: ${task.status}`);
  byId("stuck").hidden = stuck === null;
  put(byId("stuck"), stuck === null ? "" : `${stuck.text} (${stuck.command})`);
  document.querySelector("#story ol").replaceChildren(...timeline.map(moment));
  byId("result").hidden = !result?.text;
  put(byId("result"), result?.text ?? "");
}

function moment(entry) {
  const line = element("li", "");
  line.append(element("time", clock(entry.at)), visible(entry.text));
  return line;
}

// ---- looking ---------------------------------------------------------------------------------------------

const notices = { look: "", act: "", gateway: "" }; // a look that went well does not take back what was said of a decision

function say(about, words) {
  if (notices[about] === words) return;
  notices[about] = words;
  const said = Object.values(notices).filter(Boolean).join("\n");
  byId("notice").hidden = !said;
  put(byId("notice"), said);
}

const isSignedOut = (error) => error instanceof Refused && error.code === "unauthorized";

function problemText(error) {
  if (isSignedOut(error)) return "This page is signed out. Run `clutch open` in a terminal to sign in again.";
  if (error instanceof Unreachable) return "The gateway does not answer. What is shown is the last state it sent.";
  return String(error.message);
}

async function attempt(about, act) {
  try {
    await act();
    say(about, "");
  } catch (error) {
    say(about, problemText(error));
    if (isSignedOut(error)) become("signed out");
    else if (error instanceof Unreachable) become("lost");
  }
}

/** What the gateway knows to be wrong; no event announces it. */
async function lookAtGateway() {
  const { problems } = await ask("/v1/health");
  say("gateway", problems.filter((one) => one.isError).map((one) => `Problem: ${one.detail}. Remedy: ${one.remedy}`).join("\n"));
}

async function look() {
  const [page, inbox] = await Promise.all([
    ask(`/v1/tasks?recentMinutes=${RECENT_MINUTES}&limit=200`),
    ask("/v1/inbox"),
    lookAtGateway(),
  ]);
  last = page;
  become("live");
  drawInbox(inbox);
  if (shown !== null) await drawStory(shown);
}

function tell(taskId) {
  shown = taskId;
  return attempt("look", () => drawStory(taskId));
}

byId("close").addEventListener("click", () => {
  shown = null;
  byId("story").hidden = true;
});

let planned = null;
let looking = null; // one after the other: an older answer must not come after a newer one
function lookSoon() {
  if (connection === "signed out") return;
  planned ??= setTimeout(async () => {
    await looking;
    planned = null;
    looking = attempt("look", look);
  }, QUIET_MS);
}

// ---- connection ------------------------------------------------------------------------------------------

let connection = "connecting"; // then "live", "lost" or "signed out"
let events = null;

function become(state) {
  connection = state;
  lostAt = state === "live" ? null : lostAt ?? Date.now(); // elapsed times stop: what happens now is not known
  put(byId("line"), state === "lost" ? `not connected since ${clock(lostAt)}` : state);
  document.querySelector("main").classList.toggle("stale", state !== "live");
  if (last !== null) drawTasks(last);
  if (state === "signed out") events?.close(); // each further request would count as a wrong token
}

/** A stream that breaks comes back by itself; one that was refused is asked for again, and the look says why. */
function listen() {
  events?.close();
  const mine = events = new EventSource("/v1/events");
  mine.onopen = lookSoon;
  mine.onerror = () => {
    lookSoon();
    if (mine.readyState === EventSource.CLOSED) setTimeout(() => { if (mine === events && connection !== "signed out") listen(); }, AGAIN_MS);
  };
  for (const name of EVENTS) mine.addEventListener(name, lookSoon);
}

/** Sign in if the address has a code, look, and follow what happens unless the gateway refuses this page. */
async function connect() {
  await attempt("act", enter);
  await attempt("look", look);
  if (connection !== "signed out") listen();
}

addEventListener("hashchange", connect); // a new link was opened in this tab
document.addEventListener("visibilitychange", () => {
  if (connection === "signed out" && document.visibilityState === "visible") connect(); // signed in again in another tab
});
await connect();
setInterval(() => { if (last !== null) drawTasks(last); }, TICK_MS);
setInterval(() => { if (connection === "live") attempt("look", lookAtGateway); }, HEALTH_MS);
