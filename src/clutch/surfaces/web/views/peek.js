// A look at a task without leaving the list: its question, its final text or what it does, and a reply in place.

import { ask, taskPath } from "/web/api.js";
import { Cards } from "/web/cards.js";
import { connection } from "/web/connection.js";
import { button, h, put } from "/web/dom.js";
import { messageBox } from "/web/message.js";
import { renderMarkdown } from "/web/markdown.js";

const SHOWN_CHARS = 4000;
let open = null; // { id, line }

/** The open peek of a task, which stands below its row. */
export const peekOf = (id) => (open?.id === id ? open.line : null);

export function closePeek() {
  open?.line.remove();
  open = null;
}

export function togglePeek(task, items, giveFocusBack) {
  const wasOpen = open?.id === task.taskId;
  closePeek();
  if (wasOpen) return;
  const content = h("div", { role: "gridcell", "aria-colspan": 6 });
  const line = h("div", { role: "row", class: "peek" }, content);
  open = { id: task.taskId, line };
  const close = () => { closePeek(); giveFocusBack(); };
  line.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.stopPropagation(); close(); } });
  const item = items.find((one) => one.taskId === task.taskId);
  if (item) {
    const cards = new Cards("Decision");
    cards.draw([item]);
    content.append(cards.list);
  } else {
    const text = h("div", { class: "peek-text" });
    content.append(text, messageBox(task));
    if (task.outcome === null) put(text, task.doingNow);
    else showResult(task, text);
  }
  content.append(button("Close", close, { class: "close" }));
}

async function showResult(task, place) {
  try {
    const { text } = await ask(taskPath(task.taskId, "/result"));
    if (!text) put(place, task.errorText ?? "There is no final text.");
    else place.append(renderMarkdown(text.length > SHOWN_CHARS ? `${text.slice(0, SHOWN_CHARS)}…` : text, 2));
  } catch (error) {
    put(place, connection.failed(error));
  }
}
