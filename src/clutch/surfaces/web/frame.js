// The frame around each view: navigation with counts, search, connection, warnings, and the title of the tab.

import { at, DEFAULTS, go, link, onMove } from "/web/address.js";
import { connection } from "/web/connection.js";
import { attribute, h, put, soon } from "/web/dom.js";
import { minuteOf } from "/web/format.js";
import { openNewTask } from "/web/newtask.js";
import { onOverview, overview } from "/web/store.js";

const TYPED_MS = 250; // a search starts when the user stops typing for so long
const byId = (id) => document.getElementById(id);
const notices = new Map(); // by what they are about: a later look must not take back what was said of a decision
let views = [];

export function startFrame(given) {
  views = given;
  byId("views").replaceChildren(...views.map(navigationItem), ...SAVED.map(savedItem));
  byId("views").dataset.views = String(views.length);
  byId("new-task").addEventListener("click", () => openNewTask());
  startSearch();
  onMove(markNavigation);
  onOverview(showOverview);
  connection.onChange(showConnection);
  markNavigation();
  document.querySelector("[data-skip]").addEventListener("click", (event) => { event.preventDefault(); byId("main").focus(); });
}

export function showView(view) {
  const place = byId("view");
  place.replaceChildren();
  place.className = `view-${view.name}`;
  put(byId("title"), view.title);
  view.show(place);
}

/** Show a message until it is taken back with an empty text. */
export function showNotice(about, text) {
  if ((notices.get(about) ?? "") === text) return;
  notices.set(about, text);
  const shown = [...notices.values()].filter(Boolean).join("\n");
  byId("notice").hidden = !shown;
  put(byId("notice"), shown);
}

// ---- navigation ------------------------------------------------------------------------------------------

const SAVED = [
  { title: "Active", filter: { state: "active" }, count: (sum) => sum.running + sum.queued + sum.waiting + sum.needsYou },
  { title: "Failed today", filter: { state: "failed" }, count: (sum) => sum.failed + sum.timeout + sum.lost },
];

const navigationItem = (view) => h("li", {},
  h("a", { href: "/", "data-local": true, "data-view": view.name }, h("span", { text: view.title }), h("span", { class: "count" })));

const savedItem = (saved, place) => h("li", { class: place === 0 ? "saved first" : "saved" },
  h("a", { href: "/", "data-local": true, "data-saved": String(place) }, h("span", { text: saved.title }), h("span", { class: "count" })));

function markNavigation() {
  for (const item of byId("views").querySelectorAll("a[data-view]")) {
    const isHere = at().view === item.dataset.view && !SAVED.some((one) => one.filter.state === at().state && at().state);
    item.href = link({ ...DEFAULTS, view: item.dataset.view });
    attribute(item, "aria-current", isHere ? "page" : null);
  }
  for (const item of byId("views").querySelectorAll("a[data-saved]")) {
    const { filter } = SAVED[Number(item.dataset.saved)];
    item.href = link({ ...DEFAULTS, ...filter });
    attribute(item, "aria-current", at().view === "tasks" && at().state === filter.state ? "page" : null);
  }
  const search = document.querySelector("#search input");
  if (document.activeElement !== search) search.value = at().text;
}

function showOverview() {
  const sum = overview.summary;
  for (const view of views) count(`a[data-view="${view.name}"]`, view.count(overview));
  SAVED.forEach((saved, place) => count(`a[data-saved="${place}"]`, saved.count(sum)));
  const waiting = overview.inbox.length;
  document.title = waiting ? `(${waiting}) Clutch` : "Clutch";
  byId("demo").hidden = !overview.isDemo;
  if (overview.isDemo) put(byId("demo"), "Demo model (no API key): answers come from a script, not an LLM. Run `clutch init` to choose a model.");
  const wrong = overview.problems.filter((one) => one.isError);
  showNotice("gateway", wrong.map((one) => `Problem: ${one.detail}. Remedy: ${one.remedy}`).join("\n"));
}

function count(selector, number) {
  put(byId("views").querySelector(`${selector} .count`), number === null ? "" : String(number));
}

// ---- connection ------------------------------------------------------------------------------------------

const TEXTS = {
  connecting: () => "Connecting",
  live: () => "Live",
  lost: () => `Reconnecting, data from ${minuteOf(connection.lostAt)}`,
  "signed out": () => "Signed out",
};

function showConnection(state) {
  put(byId("connection"), TEXTS[state]());
  document.documentElement.dataset.connection = state.replace(" ", "-");
  const lost = "The gateway does not answer. The page shows the last state it sent, and reconnects by itself.";
  showNotice("connection", { lost, "signed out": "This page is signed out. Run `clutch open` in a terminal to sign in again." }[state] ?? "");
}

// ---- search ----------------------------------------------------------------------------------------------

function startSearch() {
  const input = document.querySelector("#search input");
  const search = () => go({ view: "tasks", text: input.value.trim() }, { replace: true });
  input.addEventListener("input", soon(search, TYPED_MS));
  byId("search").addEventListener("submit", (event) => { event.preventDefault(); search(); });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    event.preventDefault();
    input.focus();
    input.select();
  });
}

export const isTyping = (node) => node.closest?.("input, textarea, select, [contenteditable]") !== null;
