// Tables of figures that change while they are shown, and the pace of their reads. A row keeps its elements as long as
// its key is there, so that a link that has the focus keeps it.

import { connection } from "/web/connection.js";
import { arrange, attribute, h, put } from "/web/dom.js";

/** `columns`: `{ title, class, cell(row) }`. A cell is a text, an element, or `{ text, href }`; the first one heads the
 * row. An element is made anew at each drawing, so it must not take the focus. */
export class FigureTable {
  constructor(caption, columns) {
    this.columns = columns;
    this.rows = new Map();
    this.caption = h("caption", { class: "hidden-text", text: caption });
    this.body = h("tbody");
    this.head = h("tr", {}, columns.map((one) => h("th", { scope: "col", class: one.class, text: one.title })));
    this.table = h("table", { class: "figures" }, this.caption, h("thead", {}, this.head), this.body);
    this.node = h("div", { class: "scroll" }, this.table);
  }

  draw(rows, keyOf) {
    const kept = new Map();
    for (const row of rows) {
      const key = keyOf(row);
      const line = this.rows.get(key) ?? this.line();
      kept.set(key, line);
      attribute(line, "data-state", row.rowState ?? null);
      this.columns.forEach((column, place) => fill(line.children[place], column.cell(row)));
    }
    this.rows = kept;
    arrange(this.body, [...kept.values()]);
    this.node.hidden = kept.size === 0;
  }

  line() {
    return h("tr", {}, this.columns.map((one, place) => (place === 0 ? h("th", { scope: "row", class: one.class }) : h("td", { class: one.class }))));
  }
}

function fill(cell, value) {
  if (value instanceof Node) return cell.replaceChildren(value);
  if (value?.href) {
    const link = cell.firstElementChild?.tagName === "A" ? cell.firstElementChild : h("a", { "data-local": true });
    if (link.parentNode !== cell) cell.replaceChildren(link);
    attribute(link, "href", value.href);
    return put(link, value.text);
  }
  return put(cell, value?.text ?? value);
}

const EVENTS = ["overview", "progress", "lifecycle:start", "lifecycle:end", "lifecycle:error", "announce", "phase"];
const PAUSE_MS = 1000;
const SHARE = 5; // reading takes at most one part in so many of the time

/** Read again after events, at most once a second, as long as `isShown`; a slow read lengthens the pause. */
export function readAfterEvents(isShown, read) {
  let timer = null;
  let pause = PAUSE_MS;
  const run = async () => {
    const began = performance.now();
    if (isShown() && connection.state === "live") await read().catch((error) => connection.failed(error));
    pause = Math.max(PAUSE_MS, SHARE * (performance.now() - began));
    timer = null;
  };
  connection.on(EVENTS, () => { if (isShown()) timer ??= setTimeout(run, pause); });
}
