// The page behind `clutch open`: who works for whom, what waits for you, and how a task came to where it is.
//
// It knows the HTTP API and nothing else. Whatever a model or a stranger wrote becomes text, never markup: there is no
// innerHTML here, and the page's policy would run none of it. `put` is the only place that writes text, and shows what
// would be invisible or turn the reading direction as escapes: nobody approves what they cannot see.

const RECENT_MINUTES = 30;
const EVENTS = ["lifecycle:start", "lifecycle:end", "lifecycle:error", "phase", "tool:start", "tool:end", "usage", "announce", "question"];
const QUIET_MS = 500; // many events make one look
const AGAIN_MS = 5000; // until a refused line is asked for again
const TICK_MS = 1000; // times go on between them
const HIDDEN = /[^\P{C}\n\t]|[^\P{Z} ]|\p{Default_Ignorable_Code_Point}/gu; // what `core.shown` calls not plain

const byId = (id) => document.getElementById(id);
let shown = null; // the task whose story is open
let last = null; // what was looked at last

// ---- asking ----------------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(said) {
    super(said.remedy ? `${said.message} (${said.remedy})` : said.message);
    this.code = said.code;
  }
}

async function ask(path, { method = "GET", body, headers = {} } = {}) {
  const sent = { "X-Clutch-Page": "1", ...headers };
  if (body !== undefined) sent["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers: sent, body: body === undefined ? undefined : JSON.stringify(body) });
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

const visible = (text) => text.replace(HIDDEN, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);

function put(node, text) {
  node.textContent = visible(text);
  return node;
}

function element(name, text, className = "") {
  const made = put(document.createElement(name), text);
  made.className = className;
  return made;
}

function span(seconds) {
  if (seconds < 60) return `${Math.round(seconds)}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m${Math.round(seconds % 60)}s`;
  return `${Math.floor(seconds / 3600)}h${Math.floor((seconds % 3600) / 60)}m`;
}

const since = (moment, until = Date.now()) => span(Math.max(0, (until - Date.parse(moment)) / 1000));

/** With its day, if that is not today. */
function clock(moment) {
  const at = new Date(moment);
  return at.toDateString() === new Date().toDateString() ? at.toLocaleTimeString() : at.toLocaleString();
}

function state(task) {
  if (task.outcome !== null) return task.outcome === "ok" ? "done" : task.outcome;
  return task.reason === null ? task.phase : `${task.phase} (${task.reason})`;
}

function manner(task) {
  if (task.delivery.state === "undelivered" || (task.outcome !== null && task.outcome !== "ok")) return "bad";
  if (task.phase === "awaiting_approval" || task.reason === "needs-you") return "you";
  return task.outcome === "ok" ? "ok" : "";
}

function doing(task) {
  const tool = task.currentTool;
  return tool === null ? "" : `${tool.name}(${tool.arg ?? ""}) ${since(tool.since)}`;
}

function told({ state, reason }) {
  if (state === "none") return "";
  return reason === null ? state : `${state} (${reason})`;
}

function summary(counted) {
  const names = { running: "running", queued: "queued", waiting: "waiting", needsYou: "waiting for you", done: "done", failed: "failed", timeout: "timed out", killed: "killed", lost: "lost", undelivered: "undelivered" };
  const parts = Object.entries(names).filter(([key]) => counted[key]).map(([key, name]) => `${counted[key]} ${name}`);
  if (counted.usd !== null) parts.push(`$${counted.usd}`);
  return parts.join(" · ") || "nothing here";
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
    state(task),
    doing(task),
    since(task.createdAt, task.endedAt === null ? Date.now() : Date.parse(task.endedAt)),
    (subtree.input + subtree.output).toLocaleString(),
    subtree.usd === null ? "n/a" : `$${subtree.usd}`,
    told(task.delivery),
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

/** Parents before their children, each in the order it was made. */
function inOrder(tasks) {
  const below = Map.groupBy(tasks, (task) => task.parentTaskId);
  const known = new Set(tasks.map((task) => task.taskId));
  const tops = tasks.filter((task) => !known.has(task.parentTaskId));
  const walk = (task) => [task, ...(below.get(task.taskId) ?? []).flatMap(walk)];
  return tops.flatMap(walk);
}

function drawTasks(page) {
  put(byId("summary"), summary(page.summary) + (page.next === null ? "" : ` · only the first ${page.tasks.length} are shown`));
  redraw(byId("tasks"), inOrder(page.tasks), (task) => task.taskId, row, fill);
}

const asked = (item) => `${item.id} ${item.hash}`;

/** What is being typed stays: an item is drawn once, as it was asked. */
function drawInbox({ items }) {
  redraw(document.querySelector("#needs-you ul"), items, asked, waiting);
  byId("needs-you").hidden = items.length === 0;
}

function waiting(item) {
  const line = element("li", "");
  line.dataset.key = asked(item);
  const words = element("textarea", "");
  words.rows = 2;
  words.placeholder = item.kind === "question" ? "Your answer" : "Your words, if you have any";
  words.setAttribute("aria-label", words.placeholder);
  const decide = (decision) => attempt("act", async () => {
    const body = { decision, text: words.value, hash: item.hash };
    await ask(`/v1/inbox/${encodeURIComponent(item.id)}`, { method: "POST", body });
    lookSoon();
  });
  const ways = item.kind === "question" ? ["answer"] : ["approve", "reject"];
  const buttons = ways.map((way) => {
    const button = element("button", way);
    button.addEventListener("click", () => decide(way));
    return button;
  });
  const choices = (item.detail.choices ?? []).map((choice) => element("p", `• ${choice}`));
  const head = element("p", `${item.kind} · ${item.label || item.sessionKey}`, "you");
  line.append(head, element("p", item.text), ...choices, words, ...buttons);
  return line;
}

async function drawStory(taskId) {
  const path = `/v1/tasks/${encodeURIComponent(taskId)}`;
  const { task, timeline, stuck } = await ask(`${path}/why`);
  const result = task.outcome === null ? null : await ask(`${path}/result`);
  if (taskId !== shown) return; // closed, or another one was opened meanwhile
  byId("story").hidden = false;
  put(byId("story-title"), `${task.label || task.taskId}: ${state(task)}`);
  byId("stuck").hidden = stuck === null;
  put(byId("stuck"), stuck === null ? "" : `Waits: ${stuck.opensWhen} (${stuck.command})`);
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

const notices = { look: "", act: "" }; // a look that went well does not take back what was said of a decision

function say(about, words) {
  notices[about] = words;
  const said = Object.values(notices).filter(Boolean).join("\n");
  byId("notice").hidden = !said;
  put(byId("notice"), said);
}

async function attempt(about, act) {
  try {
    await act();
    say(about, "");
  } catch (error) {
    const isStranger = error instanceof Refused && error.code === "unauthorized";
    say(about, isStranger ? "This page is not let in, or no longer. Run `clutch open` in a terminal." : String(error.message));
  }
}

async function look() {
  const [page, inbox] = await Promise.all([
    ask(`/v1/tasks?recentMinutes=${RECENT_MINUTES}&limit=200`),
    ask("/v1/inbox"),
  ]);
  last = page;
  drawTasks(page);
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
  planned ??= setTimeout(async () => {
    await looking;
    planned = null;
    looking = attempt("look", look);
  }, QUIET_MS);
}

/** A line that breaks comes back by itself; one that was refused is asked for again, and the look says why. */
function listen() {
  const events = new EventSource("/v1/events");
  events.onopen = () => { put(byId("line"), "live"); lookSoon(); };
  events.onerror = () => {
    put(byId("line"), "not connected");
    lookSoon();
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, AGAIN_MS);
  };
  for (const name of EVENTS) events.addEventListener(name, lookSoon);
}

await attempt("act", enter);
await attempt("look", look);
listen();
setInterval(() => { if (last !== null) drawTasks(last); }, TICK_MS);
