// Undelivered: results that could not be delivered to the parent agent, and messages that no channel took. Each can be
// delivered again or discarded, alone or with all that match the filters.

import { at, go, link, onMove } from "/web/address.js";
import { ask, post, problemText, taskPath } from "/web/api.js";
import { loadInbox, onInbox, unsentMessages } from "/web/cards.js";
import { connection } from "/web/connection.js";
import { openDialog } from "/web/dialogs.js";
import { button, h, put, visible } from "/web/dom.js";
import { showNotice } from "/web/frame.js";
import * as store from "/web/store.js";
import { Letters } from "/web/views/letters.js";

const PAGE = 200;
const PAGES_MAX = 20;
const SHOWN_MAX = 100;

const listed = new Map(); // id -> task
const letters = new Letters("Undelivered results");
const messages = new Letters("Messages that were not sent");
const session = choice("Session", "session");
const agent = choice("Agent", "agent");
const redeliverAll = button("Redeliver all…", () => propose("redeliver"));
const discardAll = button("Discard all…", () => propose("dismiss"), { class: "danger-text" });
const heading = h("h2", { class: "section", text: "Messages that were not sent" });
const empty = h("section", { class: "empty", hidden: true },
  h("h2", { text: "Nothing is undelivered." }),
  h("p", { class: "quiet", text: "A result is listed here when its delivery was given up: the parent agent is gone or was killed, its turn failed at every attempt, or its queue was full. The result stays readable, and you can deliver it again." }));
let isLoaded = false;
let loads = 0;

export const undeliveredView = {
  name: "undelivered",
  title: "Undelivered",
  count: ({ summary }) => summary.undelivered + summary.unsent || null,
  load,
  show(place) {
    isLoaded = false;
    letters.reset();
    messages.reset();
    place.append(h("div", { class: "inbox-head" }, h("p", { class: "view-title", text: "Undelivered", "aria-hidden": "true" }), session, agent, h("span", { class: "all" }, redeliverAll, discardAll)),
      letters.list, heading, messages.list, empty);
    onTidy();
  },
};

// ---- loading and drawing ---------------------------------------------------------------------------------

function query(cursor) {
  const given = new URLSearchParams({ state: "undelivered", limit: PAGE });
  if (at().session) given.set("root", at().session);
  if (at().agent) given.set("agent", at().agent);
  if (cursor) given.set("cursor", cursor);
  return `/v1/tasks?${given}`;
}

async function load() {
  const mine = ++loads;
  const askedAt = store.asking();
  const [first] = await Promise.all([ask(query()), loadInbox()]);
  const found = [...first.tasks];
  let { next } = first;
  for (let page = 1; next !== null && page < PAGES_MAX; page += 1) {
    const more = await ask(query(next));
    found.push(...more.tasks);
    next = more.next;
  }
  if (mine !== loads) return first.cursor; // another filter was chosen meanwhile
  listed.clear();
  for (const one of found) { listed.set(one.taskId, one); store.keep(one, askedAt); }
  store.lookAgain(askedAt);
  isLoaded = true;
  showNotice("view", "");
  draw();
  return first.cursor;
}

const fits = (task) => task?.group === "undelivered" && (!at().session || task.rootKey === at().session) && (!at().agent || task.agentId === at().agent);
const givenUpAt = (task) => task.delivery.at ?? task.endedAt ?? task.createdAt;
/** Oldest first: what is given up later comes last, and moves nothing. */
const inOrder = () => [...listed.values()].sort((a, b) => givenUpAt(a).localeCompare(givenUpAt(b)) || a.taskId.localeCompare(b.taskId));

function draw() {
  if (!isLoaded || at().view !== "undelivered") return;
  fill(session, "Session", [...listed.values()].map((one) => one.rootKey));
  fill(agent, "Agent", [...listed.values()].map((one) => one.agentId));
  const tasks = inOrder();
  letters.draw(tasks.map((task) => ({ key: `${task.taskId} ${givenUpAt(task)}`, make: (card) => letters.ofTask(card, task, actions(task)) })),
    (key) => became(store.task(key.split(" ")[0])));
  messages.draw(ownMessages().map((one) => ({ key: one.id, make: (card) => messages.ofMessage(card, one, messageActions(one)) })), () => "Sent or discarded");
}

/** A message belongs to a session; of agents nothing is known. */
const ownMessages = () => (at().agent ? [] : unsentMessages().filter((one) => !at().session || one.sessionKey === at().session));
const became = (task) => (task ? `Result ${task.delivery.text}` : "No longer here");

function onTidy() {
  const isNone = letters.list.hidden && messages.list.hidden;
  heading.hidden = messages.list.hidden;
  empty.hidden = !isLoaded || !isNone;
  put(empty.querySelector("h2"), at().session || at().agent ? "No undelivered result matches these filters." : "Nothing is undelivered.");
  for (const [one, verb] of [[redeliverAll, "Redeliver"], [discardAll, "Discard"]]) {
    one.hidden = listed.size < 2;
    put(one, `${verb} all ${listed.size}…`);
  }
}
letters.onTidy = messages.onTidy = onTidy;

function choice(title, name) {
  const made = h("select", { class: "chip", "aria-label": title, hidden: true });
  made.addEventListener("change", () => go({ [name]: made.value }));
  return made;
}

function fill(select, title, values) {
  const name = title.toLowerCase();
  const all = new Set([...values, at()[name]].filter(Boolean));
  select.hidden = all.size < 2 && !at()[name];
  const names = [...all].join("\n");
  if (select.dataset.names !== names) {
    select.dataset.names = names;
    select.replaceChildren(h("option", { value: "", text: `${title}: all` }), ...[...all].map((one) => h("option", { value: one, text: `${title}: ${one}` })));
  }
  select.value = at()[name];
}

store.onTasks((ids) => {
  if (!isLoaded || at().view !== "undelivered") return;
  let isChanged = false;
  for (const id of ids) {
    const task = store.task(id);
    const belongs = fits(task);
    isChanged ||= belongs !== listed.has(id) || (belongs && givenUpAt(task) !== givenUpAt(listed.get(id)));
    if (belongs) listed.set(id, task);
    else if (task) listed.delete(id);
  }
  if (isChanged) draw();
});
onInbox(draw);
onMove((now, before) => {
  if (now.view !== "undelivered" || before.view !== "undelivered") return;
  if (now.session === before.session && now.agent === before.agent) return;
  letters.reset();
  messages.reset();
  load().catch((error) => showNotice("view", connection.failed(error)));
});

// ---- actions ---------------------------------------------------------------------------------------------

const nameOf = (task) => task.label || task.taskId;

async function act(task, verb) {
  await post(taskPath(task.taskId, `/${verb}`));
  const askedAt = store.asking();
  store.keep(await ask(taskPath(task.taskId)), askedAt);
}

const actions = (task) => ({
  Redeliver: () => act(task, "redeliver"),
  "Discard…": () => confirmDiscard([task]),
});

const messageActions = (message) => {
  const send = async (verb) => { await post(`/v1/messages/${encodeURIComponent(message.id)}/${verb}`); await loadInbox(); };
  return {
    "Send again": () => send("redeliver"),
    "Discard…": () => openDialog({
      title: "Discard this message?", confirm: "Discard", danger: true,
      content: [h("p", { text: `It is not sent to ${visible(message.target)} again. What the agent wrote stays in its transcript.` })],
      act: () => send("dismiss"),
    }),
  };
};

function propose(verb) {
  const tasks = inOrder();
  if (verb === "dismiss") return confirmDiscard(tasks);
  openDialog({
    title: `Redeliver ${counted(tasks)}?`, confirm: `Redeliver ${tasks.length}`,
    content: [h("p", { text: "Each result is delivered to its parent agent again." }), hits(tasks)],
    act: (say) => run("redeliver", tasks, say),
  });
}

function confirmDiscard(tasks) {
  openDialog({
    title: tasks.length === 1 ? "Discard this result?" : `Discard ${counted(tasks)}?`,
    confirm: tasks.length === 1 ? "Discard" : `Discard ${tasks.length}`,
    danger: true,
    content: [h("p", { text: "It is not delivered, and leaves this list. The result stays readable in its task." }), hits(tasks)],
    act: (say) => run("dismiss", tasks, say),
  });
}

const counted = (tasks) => (tasks.length === 1 ? "1 result" : `${tasks.length} results`);

/** The action is sent for exactly the tasks that the dialog lists, whatever is given up meanwhile. */
const hits = (tasks) => h("ul", { class: "hit" },
  tasks.slice(0, SHOWN_MAX).map((task) => h("li", {}, h("a", { href: link({ task: task.taskId }), text: nameOf(task) }), h("span", { class: "quiet", text: task.delivery.text }))),
  tasks.length > SHOWN_MAX ? h("li", { text: `and ${tasks.length - SHOWN_MAX} more` }) : null);

async function run(verb, tasks, say) {
  const failures = [];
  for (const [place, task] of tasks.entries()) {
    say(tasks.length === 1 ? "" : `${place + 1} of ${tasks.length}`);
    await act(task, verb).catch((error) => failures.push(`${nameOf(task)}: ${problemText(error)}`));
  }
  if (failures.length && tasks.length === 1) throw new Error(failures[0]);
  showNotice("batch", failures.join("\n"));
}
