// The state of the page is its address: view, filters, selected task and tab. A link shows what its sender saw, and the
// back button takes back the last step. What is not in the address is not kept.

export const DEFAULTS = {
  view: "tasks", state: "", session: "", agent: "", hours: "24", text: "", task: "", tab: "activity",
  item: "", // of the inbox
  by: "day", // of costs
};
const listeners = new Set();

function read() {
  const given = new URLSearchParams(location.search);
  const found = Object.fromEntries(Object.entries(DEFAULTS).map(([name, usual]) => [name, given.get(name) ?? usual]));
  // Undelivered results were a filter of the list before they had a view. The code of a sign-in stays behind the `#`.
  if (found.view !== "tasks" || found.state !== "undelivered") return found;
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
  const given = new URLSearchParams();
  for (const [name, usual] of Object.entries(DEFAULTS)) if (wanted[name] !== usual) given.set(name, wanted[name]);
  const query = given.toString();
  return query ? `/?${query}` : "/";
}

/** Go to another state. `replace`: without a step for the back button, as while a text is typed. */
export function go(changes, { replace = false } = {}) {
  const href = link(changes);
  if (href === location.pathname + location.search) return;
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
  if (to.getAttribute("href") === location.pathname + location.search) return;
  history.pushState(null, "", to.href);
  moved();
}
