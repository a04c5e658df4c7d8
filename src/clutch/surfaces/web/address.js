// The state of the page is its address: view, filters, selected task and tab. A link shows what its sender saw, and the
// back button takes back the last step. What is not in the address is not kept.

export const DEFAULTS = {
  view: "tasks", state: "", session: "", agent: "", hours: "24", text: "", task: "", tab: "activity",
  item: "", // of the inbox
  by: "day", // of costs
  lane: "", at: "", // of the timeline: the task in the panel, and the moment that is shown
};
const IN_TIMELINE = ["lane", "at"];
// A page that was exported is a file: browsers let it change only what stands behind the `#`.
const IS_FILE = location.protocol === "file:";
const listeners = new Set();

function read() {
  const given = new URLSearchParams(IS_FILE ? location.hash.slice(1) : location.search);
  const found = Object.fromEntries(Object.entries(DEFAULTS).map(([name, usual]) => [name, given.get(name) ?? usual]));
  // Undelivered results were a filter of the list before they had a view. The code of a sign-in stays behind the `#`.
  if (IS_FILE || found.view !== "tasks" || found.state !== "undelivered") return found;
  current = { ...found, view: "undelivered", state: "" };
  history.replaceState(history.state, "", link({}) + location.hash);
  return current;
}

let current = null;
current = read();

export const at = () => current;

/** The address of the present state with changes; values that are the default are left out. */
export function link(changes) {
  const wanted = { ...current, ...changes };
  if (wanted.view !== "timeline") for (const name of IN_TIMELINE) wanted[name] = "";
  const given = new URLSearchParams();
  for (const [name, usual] of Object.entries(DEFAULTS)) if (wanted[name] !== usual) given.set(name, wanted[name]);
  const query = given.toString();
  if (IS_FILE) return `#${query}`;
  return query ? `/?${query}` : "/";
}

/** The task in the panel. In a timeline, `task` names the tree, and stays. */
export const openTask = (state = current) => (state.view === "timeline" ? state.lane : state.task);
export const opening = (id) => (current.view === "timeline" ? { lane: id } : { task: id });

const present = () => (IS_FILE ? location.hash || "#" : location.pathname + location.search);

/** Go to another state. `replace`: without a step for the back button, as while a text is typed. */
export function go(changes, { replace = false } = {}) {
  const href = link(changes);
  if (href === present()) return;
  history[replace ? "replaceState" : "pushState"](null, "", href);
  moved();
}

/** `act(now, before)` runs after each change. */
export function onMove(act) { listeners.add(act); }

function moved() {
  const before = current;
  current = read();
  for (const act of listeners) act(current, before);
}

addEventListener("popstate", moved);

/** A link inside the page: a plain click moves without loading, any other click is the browser's. */
export function follow(event) {
  const to = event.target.closest("a[data-local]");
  if (!to || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  if (to.getAttribute("href") === present()) return;
  history.pushState(null, "", to.getAttribute("href"));
  moved();
}
