// The Inbox: everything that waits for a decision of the user, one card each, oldest first.

import { at, go, onMove } from "/web/address.js";
import { Cards, inboxItems, inboxReplies, loadInbox, onInbox } from "/web/cards.js";
import { connection } from "/web/connection.js";
import { h, put } from "/web/dom.js";
import { isTyping, showNotice } from "/web/frame.js";

const KEYS = [["j", "next"], ["k", "previous"], ["a", "approve or answer"], ["r", "reject"], ["Ctrl ⏎", "send an answer"], ["Esc", "leave the field"]];

const cards = new Cards("Decisions that wait for you");
const session = h("select", { class: "chip", "aria-label": "Session", hidden: true });
const replies = h("p", { class: "quiet section" });
const missing = h("p", { class: "warning", role: "status", hidden: true });
const empty = h("section", { class: "empty", hidden: true },
  h("h2", { text: "Nothing needs a decision." }),
  h("p", { class: "quiet", text: "Plans, tool calls that need approval, questions of agents, exhausted budgets and changed MCP tools appear here." }));
const keys = h("p", { class: "keys quiet" }, KEYS.map(([key, text]) => h("span", {}, h("kbd", { text: key }), ` ${text}`)));
let isLoaded = false;
let found = ""; // the item of the address that was selected

export const inboxView = {
  name: "inbox",
  title: "Inbox",
  count: ({ inbox }) => inbox.length || null,
  load,
  show(place) {
    isLoaded = false;
    found = "";
    cards.reset();
    place.append(h("div", { class: "inbox-head" }, h("p", { class: "view-title", text: "Inbox", "aria-hidden": "true" }), session, keys), missing, cards.list, empty, replies);
  },
};

async function load() {
  await loadInbox();
  isLoaded = true;
  showNotice("view", "");
  draw();
  return null; // the stream begins with an overview, which names every item
}

// ---- drawing ---------------------------------------------------------------------------------------------

cards.onTidy = () => {
  empty.hidden = !isLoaded || !cards.list.hidden;
  keys.hidden = cards.list.hidden;
};

const rootOf = (item) => item.path[0]?.sessionKey ?? "";
const fitting = () => inboxItems().filter((item) => !at().session || rootOf(item) === at().session);

function draw() {
  if (!isLoaded || at().view !== "inbox") return;
  fillSessions();
  const items = fitting();
  cards.draw(items);
  put(empty.querySelector("h2"), at().session ? "Nothing of this session needs a decision." : "Nothing needs a decision.");
  put(replies, inboxReplies().length ? `Replies wait to be read in ${inboxReplies().join(", ")}.` : "");
  select(items);
}

function fillSessions() {
  const roots = new Set(inboxItems().map(rootOf).filter(Boolean));
  if (at().session) roots.add(at().session);
  session.hidden = roots.size < 2 && !at().session;
  const names = [...roots].join("\n");
  if (session.dataset.names !== names) {
    session.dataset.names = names;
    session.replaceChildren(h("option", { value: "", text: "Session: all" }), ...[...roots].map((key) => h("option", { value: key, text: `Session: ${key}` })));
  }
  session.value = at().session;
}

session.addEventListener("change", () => go({ session: session.value, item: "" }));

/** Select the item of the address once: later events must not take the focus from where the user is. */
function select(items) {
  const { item } = at();
  if (found === item) return;
  found = item;
  const card = cardOf(item);
  missing.hidden = !item || Boolean(card);
  put(missing, missing.hidden ? "" : `${item} is not in the inbox: it was decided or withdrawn.`);
  if (card && items.some((one) => one.id === item)) focus(card);
}

const cardOf = (item) => (item ? cards.list.querySelector(`:scope > [data-item="${CSS.escape(item)}"]`) : null);

onInbox(draw);
onMove((now, before) => {
  if (now.view !== "inbox" || before.view !== "inbox") return;
  if (now.session !== before.session) cards.reset();
  if (now.session !== before.session || now.item !== before.item) draw();
});
setInterval(() => { if (connection.state === "live" && cards.list.isConnected) cards.tick(); }, 1000);

// ---- keys ------------------------------------------------------------------------------------------------

const current = () => document.activeElement?.closest(".cards > li") ?? null;

function focus(card) {
  if (!card) return;
  found = card.dataset.item;
  missing.hidden = true;
  card.focus({ preventScroll: true });
  card.scrollIntoView({ block: "nearest" });
}

/** Move to another open card. From a card that has left, to the one that took its place. */
function move(step) {
  const open = [...cards.list.querySelectorAll(":scope > li:not([data-closed])")];
  const all = [...cards.list.children];
  const place = all.indexOf(current());
  const from = place >= 0 ? place : cards.last?.isConnected ? all.indexOf(cards.last) - (step > 0 ? 1 : 0) : -1;
  const next = step > 0 ? open.find((card) => all.indexOf(card) > from) : open.findLast((card) => all.indexOf(card) < from);
  if (!next) return;
  focus(next);
  go({ item: next.dataset.item }, { replace: true });
}

const ACTS = {
  j: () => move(1),
  k: () => move(-1),
  a: (card) => card.keys.approve(),
  r: (card) => card.keys.reject(),
};

document.addEventListener("keydown", (event) => {
  if (!cards.list.isConnected || document.querySelector("dialog[open]") || event.isComposing) return;
  const card = current();
  if (card && cards.list.contains(card) && inCard(card, event)) return event.preventDefault();
  if (!ACTS[event.key] || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  event.preventDefault();
  // A key that is held down moves, and decides once.
  const decides = "ar".includes(event.key);
  if (decides && (event.repeat || !card || card.dataset.closed || card.text?.disabled)) return;
  ACTS[event.key](card);
}, true);

/** Keys of the field of a card, and of its confirmation. */
function inCard(card, event) {
  if (event.key === "Escape" && isTyping(event.target)) { card.focus({ preventScroll: true }); return true; }
  if (event.key === "Escape") return card.keys.cancel?.() ?? false;
  const sends = event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target === card.text && card.item.kind === "question";
  if (sends && !event.repeat) card.keys.approve();
  return sends;
}
