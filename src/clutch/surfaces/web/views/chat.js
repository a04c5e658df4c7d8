// Chat with the main agents: the list of conversations, and the one that the address names.

import { at, go, link, onMove } from "/web/address.js";
import { ask } from "/web/api.js";
import { followInbox, loadInbox, onInbox } from "/web/cards.js";
import { connection } from "/web/connection.js";
import { arrange, attribute, button, h, perFrame, put } from "/web/dom.js";
import { field, openDialog } from "/web/dialogs.js";
import { moment } from "/web/format.js";
import { showNotice } from "/web/frame.js";
import * as store from "/web/store.js";
import { Composer } from "/web/views/composer.js";
import { Conversation, isWorking } from "/web/views/conversation.js";

const MAIN = "agent:main:main";
const SEEN = "clutch.chat-seen"; // by session, the number of the last message that the user saw
const LIVE = ["assistant:text", "assistant:thinking", "usage", "tool:start", "tool:end"];
const NARROW = matchMedia("(max-width: 760px)");

const chats = new Map(); // key -> as the gateway sent it last
const changedAt = new Map(); // key -> when its last event came
const lines = new Map(); // key -> its line in the list
let open = null; // { key, conversation, composer }
let seen = null; // null: this browser has shown no list yet

const list = h("ul", { class: "chats" });
const side = h("nav", { class: "chat-list", "aria-label": "Conversations" },
  h("div", { class: "chat-list-head" }, h("h2", { text: "Conversations" }), button("New chat", () => openNewChat())), list);
const pane = h("section", { class: "chat-pane", "aria-label": "Chat" });

export const chatView = {
  name: "chat",
  title: "Chat",
  count: () => null,
  load,
  show(place) {
    place.append(side, pane);
    openSession();
  },
};

const isHere = () => at().view === "chat";
const wanted = () => at().session || (NARROW.matches ? "" : [...chats.values()].sort(byTime)[0]?.sessionKey ?? MAIN);
const byTime = (one, other) => Date.parse(other.lastProgressAt) - Date.parse(one.lastProgressAt) || one.sessionKey.localeCompare(other.sessionKey);

async function load() {
  const askedAt = store.asking();
  const page = await ask("/v1/chats");
  // An event that has come since is newer than the answer.
  const newer = [...chats.values()].filter((one) => changedAt.get(one.sessionKey) >= askedAt);
  chats.clear();
  for (const one of [...page.chats, ...newer]) chats.set(one.sessionKey, one);
  readSeen();
  drawList();
  if (!isHere()) return page.cursor;
  if (!at().session && wanted()) go({ session: wanted() }, { replace: true });
  openSession();
  await loadInbox();
  if (open) {
    // Events of a time without a connection, or in another view, do not come again.
    open.conversation.hasTasks = false;
    open.conversation.dropStream();
    await open.composer.resume();
    await open.conversation.refresh();
  }
  showNotice("view", "");
  return page.cursor;
}

// ---- the open conversation -------------------------------------------------------------------------------

/** Show the conversation of the address. Without one, a narrow screen shows the list. */
function openSession() {
  const key = at().session;
  side.parentElement?.classList.toggle("has-conversation", Boolean(key));
  connection.showLive("chat", key);
  if (open?.key === key && pane.contains(open.conversation.node)) return;
  open?.conversation.close();
  open = null;
  if (!key) return pane.replaceChildren();
  const conversation = new Conversation(key, changed);
  open = { key, conversation, composer: new Composer(conversation) };
  const { title, detail } = nameOf(key);
  const back = h("a", { class: "back", href: link({ session: "", task: "" }), "data-local": true, "aria-label": "All conversations", text: "‹" });
  pane.replaceChildren(h("div", { class: "chat-head" }, back, h("h2", { text: title }), h("span", { class: "quiet", text: detail })), conversation.node, open.composer.node);
  drawList();
}

function changed({ chat }) {
  if (chat) chats.set(chat.sessionKey, chat);
  open.composer.draw(open.conversation.chat);
  markSeen();
  drawList();
}

const refresh = () => open?.conversation.refresh().catch((error) => showNotice("view", connection.failed(error)));

connection.on("chat", (chat) => {
  chats.set(chat.sessionKey, chat);
  changedAt.set(chat.sessionKey, store.asking());
  if (!isHere()) return;
  drawList();
  if (open?.key === chat.sessionKey) refresh();
});
connection.on(LIVE, (data, name) => { if (open && isHere() && data.taskId === null && data.sessionKey === open.key) open.conversation.live(name, data); });
const drawAsks = () => { if (open && isHere()) open.conversation.around(() => open.conversation.drawAsks()); };
onInbox(drawAsks);
store.onOverview((overview) => { if (isHere()) followInbox(overview); });
onMove((now, before) => {
  if (now.view !== "chat") connection.showLive("chat", "");
  if (now.view !== "chat" || before.view !== "chat" || now.session === before.session) return;
  openSession();
  refresh();
  if (!NARROW.matches) document.getElementById("composer")?.focus();
});
setInterval(() => { if (isHere() && connection.state === "live") open?.conversation.tick(); }, 1000);
document.addEventListener("visibilitychange", () => { if (isHere()) { markSeen(); drawList(); } });

// ---- the list --------------------------------------------------------------------------------------------

/** `agent:NAME:main` is the agent's own session, `agent:NAME:chat:TITLE` another one. */
function nameOf(key) {
  const [, agent = key, kind = "", ...rest] = key.split(":");
  return kind === "chat" && rest.length ? { title: rest.join(":"), detail: agent } : { title: agent, detail: kind === "main" ? "main session" : kind };
}

const drawList = perFrame(() => {
  if (!isHere()) return;
  const shown = [...chats.values()].sort(byTime).map((one) => one.sessionKey);
  // These are sessions as soon as they have a message: the one that is open now, and that of the main agent.
  if (open && open.key !== MAIN && !shown.includes(open.key)) shown.unshift(open.key);
  if (!shown.includes(MAIN)) shown.push(MAIN);
  for (const key of lines.keys()) if (!shown.includes(key)) lines.delete(key);
  arrange(list, shown.map((key) => fillLine(lines.get(key) ?? makeLine(key), key)));
});

function makeLine(key) {
  const { title, detail } = nameOf(key);
  const parts = { mark: h("span", { class: "dot" }), state: h("span", { class: "hidden-text" }), time: h("time", { class: "quiet" }), last: h("span", { class: "last quiet" }) };
  const line = h("li", {}, h("a", { "data-local": true }, h("span", { class: "chat-title" }, parts.mark, h("strong", { text: title }), h("span", { class: "quiet", text: detail }), parts.state), parts.time, parts.last));
  line.parts = parts;
  lines.set(key, line);
  return line;
}

function fillLine(line, key) {
  const { mark, state, time, last } = line.parts;
  const chat = chats.get(key);
  const isUnread = Boolean(chat) && key !== open?.key && chat.head > (seen?.[key] ?? 0);
  const isOpen = key === open?.key;
  attribute(line.firstElementChild, "href", link({ view: "chat", session: key, task: "", tab: "activity" }));
  attribute(line.firstElementChild, "aria-current", isOpen ? "page" : null);
  line.dataset.mark = isWorking(chat) ? "working" : isUnread ? "unread" : chat?.children ? "waiting" : "";
  mark.hidden = !line.dataset.mark;
  put(state, { working: ", working", unread: ", unread", waiting: ", waiting for subagents" }[line.dataset.mark] ?? "");
  put(time, chat ? moment(chat.lastProgressAt) : "");
  put(last, chat?.lastLine || "No messages yet");
  return line;
}

// ---- what the user has seen ------------------------------------------------------------------------------

/** A browser that shows the list for the first time counts everything as seen. */
function readSeen() {
  try {
    seen = JSON.parse(localStorage.getItem(SEEN) ?? "null");
  } catch {
    seen = null; // written by an older page
  }
  if (seen) return;
  seen = Object.fromEntries([...chats.values()].map((one) => [one.sessionKey, one.head]));
  localStorage.setItem(SEEN, JSON.stringify(seen));
}

function markSeen() {
  const head = open?.conversation.chat?.head;
  if (!seen || !head || document.hidden || seen[open.key] === head) return;
  seen[open.key] = head;
  localStorage.setItem(SEEN, JSON.stringify(seen));
}

// ---- a new conversation ----------------------------------------------------------------------------------

async function openNewChat() {
  const { agents } = await ask("/v1/agents").catch((error) => { showNotice("view", connection.failed(error)); return { agents: [] }; });
  if (agents.length === 1) return begin(agents[0].agentId);
  if (!agents.length) return null;
  const choice = h("select", {}, agents.map((one) => h("option", { value: one.agentId, text: one.agentId })));
  choice.value = "main";
  return openDialog({ title: "New chat", confirm: "Open", content: [field("Agent", choice)], act: async () => begin(choice.value) });
}

/** The session is created with its first message. */
function begin(agent) {
  const two = (number) => String(number).padStart(2, "0");
  const now = new Date();
  const name = `${now.getFullYear()}-${two(now.getMonth() + 1)}-${two(now.getDate())}-${two(now.getHours())}${two(now.getMinutes())}-${two(now.getSeconds())}`;
  go({ view: "chat", session: `agent:${agent}:chat:${name}`, task: "" });
}
