// The requests of an exported page, answered from the data inside the file. These take the place of the exports of the
// same name in `api.js`; nothing here can reach a network, and the content policy of the file would not allow it.

import { Refused } from "/web/api.js";

export const data = JSON.parse(document.getElementById("clutch-data").textContent);
const READ_ONLY = "This page is an export: it is read-only.";
const refuse = (message) => { throw new Refused({ message, code: "exported" }, 404); };

const lanes = () => Object.values(data.timelines).flatMap((one) => one.lanes);
const listed = () => lanes().map(({ task, segments }) => ({ ...task, segments }));

const IN_STATE = {
  active: (task) => task.outcome === null,
  attention: (task) => task.group === "needs attention",
  finished: (task) => task.outcome !== null,
  failed: (task) => ["error", "timeout", "lost"].includes(task.outcome),
  undelivered: (task) => task.group === "undelivered",
};

function list(query) {
  const text = (query.get("text") ?? "").toLowerCase();
  const fits = IN_STATE[query.get("state")] ?? (() => true);
  const tasks = listed().filter((task) => fits(task) && (!text || task.taskId === text || (task.label ?? "").toLowerCase().includes(text) || JSON.stringify(data.tasks[task.taskId].result ?? "").toLowerCase().includes(text)));
  return { tasks, next: null, cursor: null, summary: null };
}

function ofTask(id, what, query) {
  const known = data.tasks[id];
  if (!known) return refuse(`Task ${id} is not part of this export.`);
  if (what === "transcript") return { messages: known.transcript.filter((one) => one.seq > Number(query.get("after") ?? 0)), next: null };
  if (what === "timeline") return { ...data.timelines[known.root], cursor: null };
  if (what === undefined) return listed().find((task) => task.taskId === id);
  return known[what] ?? refuse("This is not part of the export.");
}

export async function ask(path, { method = "GET" } = {}) {
  if (method !== "GET") return refuse(READ_ONLY);
  const { pathname, searchParams } = new URL(path, "http://export");
  const [, , what, id, part] = pathname.split("/");
  if (what === "tasks") return id === undefined ? list(searchParams) : ofTask(decodeURIComponent(id), part, searchParams);
  return { inbox: { items: [] }, sessions: { sessions: [] }, agents: { agents: [] } }[what] ?? refuse("This is not part of the export.");
}

export async function post() { return refuse(READ_ONLY); }
export async function send() { return refuse(READ_ONLY); }
export async function signIn() {}
export function follow() { return new Promise(() => {}); }
