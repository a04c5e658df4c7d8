// The tabs of a phone, at its lower edge: the four views that people open most, and the others behind "More". Made from
// the same list as the navigation of a wide screen; the style sheet shows one of the two.

import { at, link, onMove } from "/web/address.js";
import { attribute, button, h, put } from "/web/dom.js";
import { onOverview } from "/web/store.js";

const FIRST = ["inbox", "tasks", "chat", "costs"]; // five tabs are the most that fit with words of this length
let views = [];
const links = new Map(); // name of a view -> { to, count }

export function startTabs(given) {
  views = given;
  const first = FIRST.map((name) => views.find((one) => one.name === name)).filter(Boolean);
  const others = views.filter((one) => !first.includes(one));
  const list = h("ul", {}, [...first.map(tab), others.length ? h("li", {}, moreButton()) : null]);
  document.body.append(h("nav", { class: "tabs", "aria-label": "Tabs" }, list, others.length ? moreList(others) : null));
  onMove(mark);
  onOverview((overview) => { for (const view of views) put(links.get(view.name).count, view.count(overview) || ""); });
  mark();
}

function tab(view) {
  const count = h("span", { class: "count" });
  const to = h("a", { "data-local": true, href: "/", "data-tab-view": view.name }, h("span", { text: view.title }), count);
  links.set(view.name, { to, count });
  return h("li", {}, to);
}

const moreButton = () => h("button", { type: "button", class: "more-tabs", popovertarget: "more-views", text: "More" });

/** The browser's own popover: it closes with Escape and with a touch beside it. */
function moreList(others) {
  const list = h("div", { id: "more-views", popover: "auto" }, h("ul", {}, others.map(tab), h("li", {}, h("a", { href: "/v1/docs", text: "HTTP API" }))));
  list.addEventListener("click", (event) => { if (event.target.closest("a")) list.hidePopover(); });
  return list;
}

function mark() {
  const shown = views.find((one) => one.name === at().view) ?? views[0];
  for (const [name, { to }] of links) {
    to.href = link({ view: name, state: "", session: "", agent: "", hours: "24", text: "", task: "", tab: "activity" });
    attribute(to, "aria-current", name === shown.name ? "page" : null);
  }
  const isBehind = !FIRST.includes(shown.name);
  document.querySelector(".more-tabs")?.toggleAttribute("data-current", isBehind);
}

/** The control that closes a task: "Close" beside the list, "Back" where the task covers the list. */
export const closeControl = (act) => {
  const made = button("", act, { class: "close" });
  const hidden = (text) => h("span", { class: "hidden-text", text });
  made.append(h("span", { class: "wide" }, "Close", hidden(" the task")), h("span", { class: "narrow" }, "Back", hidden(": close the task")));
  return made;
};
