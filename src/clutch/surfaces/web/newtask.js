// The dialog that starts a task, with the parameters of a spawn that people use most.

import { go } from "/web/address.js";
import { ask, newKey, post } from "/web/api.js";
import { h } from "/web/dom.js";
import { field, openDialog } from "/web/dialogs.js";

const THINKING = ["", "off", "minimal", "low", "medium", "high", "max"];

export async function openNewTask(text = "") {
  const fields = {
    task: h("textarea", { rows: 5, required: true, value: text, placeholder: "What to do, in full" }),
    agentId: h("select", {}, h("option", { value: "", text: "main" })),
    label: h("input", { maxlength: 64, placeholder: "The beginning of the task" }),
    model: h("input", { placeholder: "That of the agent", list: "models" }),
    thinking: h("select", {}, THINKING.map((name) => h("option", { value: name, text: name || "That of the agent" }))),
    runTimeoutSeconds: h("input", { type: "number", min: 0, step: 1, inputmode: "numeric" }),
    tokens: h("input", { type: "number", min: 1, step: 1, inputmode: "numeric" }),
    usd: h("input", { type: "number", min: 0, step: "any", inputmode: "decimal" }),
    planMode: h("input", { type: "checkbox" }),
    workspace: h("select", {}, ["", "inherit", "isolated"].map((name) => h("option", { value: name, text: name || "Default" }))),
  };
  const price = h("p", { class: "quiet", role: "status", "aria-label": "Expected cost" });
  const key = newKey(); // of this dialog: a second press starts no second task
  openDialog({
    title: "New task",
    confirm: "Start",
    content: [
      field("Task", fields.task, "The subagent sees nothing else."),
      h("div", { class: "columns" }, field("Agent", fields.agentId), field("Label", fields.label), field("Model", fields.model)),
      h("datalist", { id: "models" }),
      h("details", {}, h("summary", { text: "Options" }), h("div", { class: "columns" },
        field("Thinking", fields.thinking), field("Time limit, seconds", fields.runTimeoutSeconds),
        field("Token budget", fields.tokens), field("Cost budget, USD", fields.usd), field("Workspace", fields.workspace),
        field("Write a plan first and wait for approval", fields.planMode))),
      price,
    ],
    act: async () => {
      const made = await post("/v1/tasks", bodyOf(fields), key);
      go({ view: "tasks", task: made.taskId, tab: "activity" });
    },
  });
  fields.task.focus();
  // Enter alone makes a new line; with Ctrl or Command it starts the task.
  fields.task.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) fields.task.form.requestSubmit();
  });
  for (const name of ["task", "agentId", "model"]) fields[name].addEventListener("change", () => showPrice(fields, price));
  await fillAgents(fields);
}

/** What tasks like this one cost, and what is left of the budget; nothing while it would not be accepted. */
async function showPrice(fields, price) {
  const asked = bodyOf(fields);
  if (!asked.task.trim()) return;
  const { forecast } = await post("/v1/tasks", { ...asked, dryRun: true }, newKey()).catch(() => ({}));
  if (price.isConnected) price.textContent = forecast?.text ?? "";
}

function bodyOf(fields) {
  const body = { task: fields.task.value };
  for (const name of ["agentId", "label", "model", "thinking", "workspace"]) if (fields[name].value) body[name] = fields[name].value;
  if (fields.runTimeoutSeconds.value) body.runTimeoutSeconds = Number(fields.runTimeoutSeconds.value);
  if (fields.planMode.checked) body.planMode = true;
  const budget = {};
  if (fields.tokens.value) budget.tokens = Number(fields.tokens.value);
  if (fields.usd.value) budget.usd = fields.usd.value;
  if (Object.keys(budget).length) body.budget = budget;
  return body;
}

async function fillAgents(fields) {
  const { agents } = await ask("/v1/agents").catch(() => ({ agents: [] }));
  if (!agents.length) return;
  fields.agentId.replaceChildren(...agents.map((one) => h("option", { value: one.agentId === "main" ? "" : one.agentId, text: one.agentId })));
  const models = [...new Set(agents.map((one) => one.model).filter(Boolean))];
  document.getElementById("models")?.replaceChildren(...models.map((name) => h("option", { value: name })));
}
