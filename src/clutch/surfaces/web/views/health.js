// Health: what `clutch doctor` asks the database, who works, what waits, what the providers allow, and what of the
// config file is in force. The state is read after events; invariants are queries over whole tables, and run when the
// view is opened and on request.

import { ask } from "/web/api.js";
import { connection } from "/web/connection.js";
import { breakable, button, h, put, soon } from "/web/dom.js";
import { clock, counted, duration, secondsText, size, tokens } from "/web/format.js";
import { showNotice } from "/web/frame.js";
import { overview } from "/web/store.js";
import { facts } from "/web/views/result.js";
import { FigureTable, readAfterEvents } from "/web/views/table.js";

const until = (moment) => `until ${clock(moment)} (${secondsText((Date.parse(moment) - Date.parse(found.at)) / 1000)})`;

const AGAIN_MS = 2000;
let found = null;
let isChecking = false;
let reads = 0;

// ---- the parts of the view -------------------------------------------------------------------------------

function part(title, ...content) {
  const verdict = h("span", { class: "verdict" });
  return { node: h("section", { "aria-label": title }, h("div", { class: "part-title" }, h("h2", { text: title }), verdict), content), verdict };
}

/** Say a state as text, with a colour beside it. */
function judge(where, state, text) {
  where.verdict.dataset.state = state;
  put(where.verdict, text);
}

const problemList = h("ul", { class: "findings" });
const problems = part("Problems", problemList);
const check = button("Check now", () => checkInvariants().catch(checkFailed));
const checkedAt = h("p", { class: "quiet", role: "status" });
const violated = h("ul", { class: "findings" });
const held = new FigureTable("Invariants", [
  { title: "Invariant", class: "c-code", cell: (row) => row.invariant },
  { title: "What must hold", class: "c-text", cell: (row) => row.promise },
  { title: "State", class: "c-state", cell: (row) => ({ ok: "OK", violated: "Violated", "not checked": "Not checked: took too long" })[row.state] },
]);
const invariants = part("Invariants", h("div", { class: "filters" }, check, checkedAt), violated, h("details", {}, h("summary", { text: "All invariants" }), held.node));
const workerTable = new FigureTable("Workers and leases", [
  { title: "Process", class: "c-text", cell: (row) => `${row.workerId} · pid ${row.pid} on ${row.host}` },
  { title: "State", class: "c-state", cell: (row) => (row.isStale ? "Stale: no longer alive" : row.isHere ? "Alive (this gateway)" : "Alive") },
  { title: "Started", class: "c-wide", cell: (row) => clock(row.startedAt) },
  { title: "Lease", class: "c-wide", cell: (row) => (row.leaseUntil === null ? "none: only owner" : `until ${clock(row.leaseUntil)}`) },
  { title: "Version", class: "c-wide", cell: (row) => row.version },
  { title: "Sessions", class: "c-number", cell: (row) => String(row.sessions) },
]);
const staleRemedy = h("p", { class: "quiet" });
const workers = part("Workers and leases", workerTable.node, staleRemedy);
const providerTable = new FigureTable("Provider limits", [
  { title: "Provider", class: "c-text", cell: (row) => row.provider },
  { title: "State", class: "c-text", cell: providerState },
  { title: "Calls in use", class: "c-number", cell: (row) => `${row.inUse} of ${row.concurrencyMax ?? "no limit"}` },
  { title: "Waiting", class: "c-number c-wide", cell: (row) => String(row.waiting) },
  { title: "Tokens this minute", class: "c-number c-wide", cell: (row) => (row.tokensPerMinute === null ? "no limit" : `${tokens(row.tokensBooked)} of ${tokens(row.tokensPerMinute)}`) },
]);
const noProviders = h("p", { class: "quiet", text: "No provider was asked since the gateway started, and none has a limit in the config." });
const providers = part("Provider limits", providerTable.node, noProviders);
const queueFacts = h("div");
const queues = part("Queues", queueFacts);
const gatewayFacts = h("div");
const gateway = part("Gateway", gatewayFacts);
const configFile = h("p", { class: "quiet config-file" });
const CONFIG_PROBLEM = "config-loaded"; // has a part of its own
const findings = h("ul", { class: "findings" });
const settings = new FigureTable("Settings in force", [
  { title: "Setting in force", class: "c-key", cell: (row) => h("span", {}, breakable(row.key)) },
  { title: "Value", class: "c-text", cell: (row) => h("code", { text: row.value }) },
  { title: "Default", class: "c-text c-wide", cell: (row) => h("code", { text: row.default }) },
  { title: "A change is loaded", class: "c-wide", cell: (row) => (row.needsRestart ? "after a restart" : "at once") },
]);
const config = part("Config: loaded and in the file", configFile, findings, settings.node);
const body = h("div", { class: "health" }, problems.node, invariants.node, workers.node, providers.node,
  h("div", { class: "pair" }, queues.node, gateway.node), config.node);

// ---- loading ---------------------------------------------------------------------------------------------

export const healthView = {
  name: "health",
  title: "Health",
  count: (overview) => overview.problems.filter((one) => one.isError).length || null,
  load,
  show(place) {
    found = null;
    body.classList.add("loading");
    place.append(body);
  },
};

/** Read the state. The first read of an opened view also checks the invariants. */
async function load() {
  const isFirst = found === null;
  await read();
  if (isFirst) checkInvariants().catch(checkFailed);
  return null;
}

async function read() {
  const mine = ++reads;
  const answer = await ask("/v1/health/report");
  if (mine !== reads) return;
  found = answer;
  showNotice("view", "");
  draw();
  if (JSON.stringify(found.problems) !== JSON.stringify(overview.problems)) readAgain();
}

/** The report and the last event disagree: a problem that came and went between two events would stay on the page. */
const readAgain = soon(() => { if (body.isConnected && connection.state === "live") read().catch((error) => connection.failed(error)); }, AGAIN_MS);

readAfterEvents(() => body.isConnected && found !== null, read);

async function checkInvariants() {
  if (isChecking) return;
  isChecking = true;
  check.setAttribute("aria-disabled", "true");
  put(checkedAt, "Checking");
  try {
    drawInvariants(await ask("/v1/health/invariants"));
  } finally {
    isChecking = false;
    check.setAttribute("aria-disabled", "false");
  }
}

function checkFailed(error) {
  put(checkedAt, `Not checked: ${connection.failed(error)}`);
}

// ---- drawing ---------------------------------------------------------------------------------------------

/** One finding: what is wrong, and the remedy. */
const finding = (state, title, lines, remedy) => h("li", { "data-state": state },
  h("p", {}, h("strong", { text: title })), lines.filter(Boolean).map((text) => h("p", { text })), remedy ? h("p", { class: "remedy" }, h("span", { text: "Remedy: " }), h("span", { text: remedy })) : null);

function drawInvariants({ checkedAt: when, tookSeconds, invariants: all }) {
  const [wrong, unasked] = ["violated", "not checked"].map((state) => all.filter((one) => one.state === state));
  const ok = all.length - wrong.length - unasked.length;
  put(checkedAt, `Last checked ${clock(when)}, in ${tookSeconds < 1 ? "less than a second" : secondsText(tookSeconds)}`);
  if (wrong.length) judge(invariants, "error", `${wrong.length} of ${all.length} violated`);
  else judge(invariants, unasked.length ? "warning" : "ok", `${ok} of ${all.length} OK${unasked.length ? `, ${unasked.length} not checked` : ""}`);
  violated.replaceChildren(...wrong.map((one) => finding("error", `${one.invariant}: ${one.promise}`, one.examples.map((text) => `Violated by ${text}`), "save `clutch doctor --bundle FILE` and report it; `clutch why TASK` explains the task")));
  held.draw(all.map((one, place) => ({ ...one, place, rowState: { ok: null, violated: "error", "not checked": "warning" }[one.state] })), (row) => row.place);
}

function draw() {
  body.classList.remove("loading");
  const others = found.problems.filter((one) => found.config === null || one.subject !== CONFIG_PROBLEM);
  problems.node.hidden = others.length === 0;
  judge(problems, others.some((one) => one.isError) ? "error" : "warning", counted(others.length, "problem"));
  problemList.replaceChildren(...others.map((one) => finding(one.isError ? "error" : "warning", one.subject, [one.detail], one.remedy)));
  drawWorkers();
  drawProviders();
  drawQueues();
  drawGateway();
  drawConfig();
}

function drawWorkers() {
  const stale = found.workers.filter((one) => one.isStale).length;
  judge(workers, stale ? "warning" : "ok", stale ? `${stale} of ${counted(found.workers.length, "worker")} stale` : `${found.workers.length} alive`);
  staleRemedy.hidden = stale === 0;
  put(staleRemedy, found.gateway.database === "sqlite" ? "Remedy: restart the gateway; it releases what a dead process held." : "Remedy: none: the other workers release and resume what it held within seconds.");
  workerTable.draw(found.workers.map((one) => ({ ...one, rowState: one.isStale ? "warning" : null })), (row) => row.workerId);
}

function providerState(row) {
  const said = [];
  if (row.breaker) said.push(row.breaker.isProbing ? `Circuit breaker open: one call tests the provider (${row.breaker.reason})` : `Circuit breaker open ${until(row.breaker.until)}: ${row.breaker.reason}`);
  if (row.closed) said.push(`Rate limited, retry after ${clock(row.closed.until)}: ${row.closed.reason}`);
  if (row.secondsBetweenCalls) said.push(`Paced: one call every ${row.secondsBetweenCalls} s`);
  return said.join("\n") || "OK";
}

function drawProviders() {
  const held = found.providers.filter((one) => one.breaker || one.closed);
  judge(providers, held.length ? "error" : "ok", held.length ? `${held.map((one) => one.provider).join(", ")} not asked now` : found.providers.length ? "OK" : "");
  noProviders.hidden = found.providers.length > 0;
  providerTable.draw(found.providers.map((one) => ({ ...one, rowState: one.breaker || one.closed ? "error" : null })), (row) => row.provider);
}

function drawQueues() {
  const { lanes, deferred, undelivered, outbox, unsent } = found.queues;
  judge(queues, undelivered || unsent ? "warning" : "ok", undelivered ? `${undelivered} undelivered` : unsent ? `${counted(unsent, "message")} not sent` : "OK");
  queueFacts.replaceChildren(facts([
    ...lanes.map((one) => [`Lane ${one.name}`, `${one.running} of ${one.limit} running, ${one.queued} queued`]),
    ["Deferred deliveries", String(deferred)], ["Undelivered", String(undelivered)],
    ["Outbox", `${outbox} to send`], ["Not sent", unsent ? `${counted(unsent, "message")}: see \`clutch inbox\`` : "0"]]));
}

function drawGateway() {
  const { version, pid, startedAt, database, databaseBytes, memoryBytes, loops } = found.gateway;
  const late = loops.filter((one) => one.isLate);
  judge(gateway, late.length ? "error" : "ok", late.length ? `${late.map((one) => one.name).join(", ")} late` : "OK");
  gatewayFacts.replaceChildren(facts([
    ["Version", `${version} (pid ${pid})`],
    ["Running for", startedAt === null ? "n/a" : `${duration((Date.parse(found.at) - Date.parse(startedAt)) / 1000)}, since ${clock(startedAt)}`],
    ["Database", `${{ sqlite: "SQLite", postgresql: "PostgreSQL" }[database]}, ${size(databaseBytes)}`],
    ["Memory", size(memoryBytes)],
    ...loops.map((one) => [`Loop ${one.name}`, `${one.isLate ? "Late: " : ""}last ran ${clock(one.at)}, due every ${secondsText(one.everySeconds)}`])]));
}

function drawConfig() {
  const said = found.config;
  config.node.hidden = said === null;
  if (said === null) return;
  const place = said.exists ? `File: ${said.file}` : `There is no config file (${said.file}); settings have their defaults.`;
  const program = said.fromProgram.length ? `\nThe program that runs this gateway sets ${said.fromProgram.join(", ")}; that wins over the file.` : "";
  configFile.replaceChildren(...breakable(`${place}${program}`));
  const isBroken = said.findings.some((one) => ["invalid", "refused"].includes(one.state));
  const text = isBroken ? "File not loaded; the previous config is in force" : said.findings.length ? `${counted(said.findings.length, "change")} not in force` : "All of the file is in force";
  judge(config, isBroken ? "error" : said.findings.length ? "warning" : "ok", text);
  findings.replaceChildren(...said.findings.map((one) => finding(isBroken ? "error" : "warning", `${one.key ?? "The file"}: ${one.state}`,
    [one.detail, one.inFile === null ? "" : `In the file: ${one.inFile} · in force: ${one.inForce}`], one.remedy)));
  settings.draw(said.settings, (row) => row.key);
}
