// A message to a task, and its receipt: sent, seen at a step, acted on. The words are those of the gateway.

import { ask, newKey, post, taskPath } from "/web/api.js";
import { connection } from "/web/connection.js";
import { button, h, put, soon } from "/web/dom.js";
import { onTasks, task as known } from "/web/store.js";

const READ_MS = 300; // events of one step make one request
const FINAL = ["acted on", "not acted on"];

/** The field below a task: Enter queues a message, Ctrl or Command with Enter interrupts the current work. A finished
 * task is continued instead. */
export function messageBox(task) {
  const text = h("textarea", { rows: 2, "aria-label": "Message", placeholder: task.outcome === null ? "Message this subagent…" : "Continue this task with…" });
  const said = h("p", { class: "said", role: "status" });
  const sendButton = button("Queue", () => send("send"), { class: "primary" });
  const steerButton = button("Interrupt", () => send("steer"), { title: "Replaces what the task does now" });
  const hint = h("span", { class: "quiet keys", text: "⏎ queue · Ctrl ⏎ interrupt" });
  const box = h("form", { class: "message" }, text, h("div", { class: "message-actions" }, hint, sendButton, steerButton), said);

  const isEnded = () => (known(task.taskId) ?? task).outcome !== null;
  const mark = () => {
    steerButton.hidden = hint.hidden = isEnded();
    put(sendButton, isEnded() ? "Continue" : "Queue");
  };
  let wasShown = false;
  onTasks((ids) => {
    wasShown ||= box.isConnected;
    if (wasShown && !box.isConnected) return false;
    if (ids.has(task.taskId)) mark();
    return true;
  });
  mark();

  async function send(way) {
    if (!text.value.trim() || sendButton.disabled) return;
    const verb = isEnded() ? "continue" : way;
    const key = newKey();
    const body = verb === "send" ? { text: text.value, waitSeconds: 0 } : { text: text.value };
    sendButton.disabled = steerButton.disabled = true;
    put(said, "Sending");
    try {
      await post(taskPath(task.taskId, `/${verb}`), body, key);
      text.value = "";
      put(said, verb === "continue" ? "Continued." : "sent");
      if (verb !== "continue") followReceipt(task.taskId, key, said);
    } catch (error) {
      put(said, connection.failed(error));
    } finally {
      sendButton.disabled = steerButton.disabled = false;
    }
  }

  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send(event.ctrlKey || event.metaKey ? "steer" : "send");
  });
  box.addEventListener("submit", (event) => event.preventDefault());
  return box;
}

/** Read the receipt after each event of the task, until the task has acted on the message. */
function followReceipt(taskId, key, said) {
  const path = taskPath(taskId, `/messages/${encodeURIComponent(key)}`);
  let isOver = false;
  const read = soon(async () => {
    if (isOver || !said.isConnected) return;
    const found = await ask(path).catch((error) => { connection.failed(error); return null; });
    if (!found || isOver) return;
    isOver = FINAL.includes(found.status);
    put(said, found.text);
  }, READ_MS);
  onTasks((ids) => {
    if (ids.has(taskId)) read();
    return !isOver && said.isConnected;
  });
  read();
}
