// Modal dialogs: the browser's own element keeps the focus inside and closes with Escape.

import { problemText } from "/web/api.js";
import { button, h, put } from "/web/dom.js";

/** Show a dialog. `act` runs on confirmation; while it runs the dialog is disabled, and it stays open if `act` fails.
 * `act` gets a function that shows progress. */
export function openDialog({ title, content, confirm, danger = false, act }) {
  const said = h("p", { class: "said", role: "alert" });
  const yes = h("button", { type: "submit", text: confirm, class: danger ? "danger" : "primary" });
  const form = h("form", { method: "dialog" },
    h("h2", { text: title, id: "dialog-title" }), h("div", { class: "dialog-content" }, content), said,
    h("div", { class: "dialog-actions" }, button("Cancel", () => dialog.close()), yes));
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (yes.disabled) return;
    yes.disabled = true;
    try {
      await act((text) => put(said, text));
      dialog.close();
    } catch (error) {
      put(said, problemText(error));
      yes.disabled = false;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** A labelled field of a form. */
export function field(label, control, hint = "") {
  const described = hint ? { "aria-description": hint } : {};
  for (const [name, value] of Object.entries(described)) control.setAttribute(name, value);
  return h("label", { class: "field" }, h("span", { text: label }), control, hint ? h("small", { text: hint }) : null);
}
