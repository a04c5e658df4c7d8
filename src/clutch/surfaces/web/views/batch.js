// Actions on everything that the filters match. The dialog lists what will be hit, and the action is sent for exactly
// these tasks, whatever comes into the list meanwhile.

import { ask, post, problemText, taskPath } from "/web/api.js";
import { h } from "/web/dom.js";
import { openDialog } from "/web/dialogs.js";
import { showNotice } from "/web/frame.js";
import { query } from "/web/views/filters.js";

const PAGES_MAX = 20;
const SHOWN_MAX = 100;
const ACTIONS = {
  pause: { title: "Pause", fits: (task) => task.outcome === null && task.status !== "paused" },
  resume: { title: "Resume", fits: (task) => task.status === "paused" },
  retry: { title: "Retry", fits: (task) => ["error", "timeout", "lost"].includes(task.outcome) },
  kill: { title: "Kill", fits: (task) => task.outcome === null, danger: true },
};

export function batchButton() {
  const choice = h("select", { class: "chip batch", "aria-label": "Act on all matching tasks" },
    h("option", { value: "", text: "All matching…" }),
    Object.entries(ACTIONS).map(([name, one]) => h("option", { value: name, text: `${one.title} all matching` })));
  choice.addEventListener("change", () => {
    const name = choice.value;
    choice.value = "";
    if (name) propose(name).catch((error) => showNotice("batch", problemText(error)));
  });
  return choice;
}

async function matching() {
  const found = [];
  for (let cursor = null, page = 0; page < PAGES_MAX; page += 1) {
    const answer = await ask(query(cursor));
    found.push(...answer.tasks);
    if (answer.next === null) break;
    cursor = answer.next;
  }
  return found;
}

/** An action on a task reaches all below it: only the topmost of the matching tasks are sent. */
function topmost(tasks) {
  const ids = new Set(tasks.map((task) => task.taskId));
  return tasks.filter((task) => !ids.has(task.parentTaskId));
}

async function propose(name) {
  const action = ACTIONS[name];
  const hit = (await matching()).filter(action.fits);
  const tops = name === "retry" ? hit : topmost(hit);
  const what = name === "kill" ? await wouldStop(tops) : hit;
  if (!tops.length) return showNotice("batch", `${action.title}: no matching task is in a state for it.`);
  showNotice("batch", "");
  const left = what.length > SHOWN_MAX ? h("p", { text: `and ${what.length - SHOWN_MAX} more` }) : null;
  openDialog({
    title: `${action.title} ${what.length} ${what.length === 1 ? "task" : "tasks"}?`,
    confirm: `${action.title} ${what.length}`,
    danger: action.danger,
    content: [h("ul", { class: "hit" }, what.slice(0, SHOWN_MAX).map((task) => h("li", {}, h("span", { text: task.label || task.taskId }), h("span", { class: "quiet", text: task.status ?? "" })))), left],
    act: (say) => run(name, tops, say),
  });
}

/** What a kill of these tasks would stop, with everything below them. */
export async function wouldStop(tasks) {
  const found = new Map();
  for (const task of tasks) {
    const [{ stopped }, { root }] = await Promise.all([
      post(taskPath(task.taskId, "/kill"), { dryRun: true }),
      ask(taskPath(task.taskId, "/tree")),
    ]);
    const known = new Map();
    const walk = (node) => { known.set(node.task.taskId, node.task); node.nodes.forEach(walk); };
    walk(root);
    for (const id of stopped) found.set(id, known.get(id) ?? { taskId: id, label: "", status: "" });
  }
  return [...found.values()];
}

async function run(name, tasks, say) {
  const failures = [];
  for (const [place, task] of tasks.entries()) {
    say(`${place + 1} of ${tasks.length}`);
    await post(taskPath(task.taskId, `/${name}`)).catch((error) => failures.push(`${task.label || task.taskId}: ${problemText(error)}`));
  }
  showNotice("batch", failures.join("\n"));
}
