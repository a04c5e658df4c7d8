// Costs: what model calls used in a period, by time, model, agent or tree; budgets; and how fast money goes.
//
// A price that is not known is never shown as 0: sums say "at least", and the calls are named with their model.

import { at, go, link, onMove } from "/web/address.js";
import { ask } from "/web/api.js";
import { connection } from "/web/connection.js";
import { arrange, attribute, h, put } from "/web/dom.js";
import { clock, counted, minuteOf, money, tokens } from "/web/format.js";
import { showNotice } from "/web/frame.js";
import { FigureTable, readAfterEvents } from "/web/views/table.js";

const PERIODS = { 1: "Last hour", 24: "Last 24 h", 168: "Last 7 days", 720: "Last 30 days", all: "All time" };
const GROUPS = { day: "By time", model: "By model", agent: "By agent", tree: "By tree" };
const OFFSET = -new Date().getTimezoneOffset();
const LABELS_MAX = 8; // below the chart

let found = null;
let reads = 0;

const zone = () => `UTC${OFFSET < 0 ? "−" : "+"}${String(Math.floor(Math.abs(OFFSET) / 60)).padStart(2, "0")}:${String(Math.abs(OFFSET) % 60).padStart(2, "0")}`;
const grouping = () => (at().by in GROUPS ? at().by : "day");
const period = () => (at().hours in PERIODS ? at().hours : "24");

/** The known dollars; "at least" where calls without a price are among them, "unknown" where no call has one. */
export function cost(use) {
  if (!use.calls) return "$0.00";
  if (use.usd === null) return use.unpricedCalls ? "unknown" : "$0.00";
  return use.unpricedCalls ? `at least ${money(use.usd)}` : money(use.usd);
}

const count = (use, name) => (use.calls && !use.input && !use.output ? "n/a" : tokens(use[name]));

// ---- the parts of the view -------------------------------------------------------------------------------

const range = h("select", { class: "chip", "aria-label": "Period" }, Object.entries(PERIODS).map(([value, text]) => h("option", { value, text })));
range.addEventListener("change", () => go({ hours: range.value }));
const asOf = h("p", { class: "quiet as-of" });
const cards = Object.fromEntries(["Cost", "Input tokens", "Output tokens", "Cached tokens", "Calls", "Burn rate"].map((name) => {
  const [value, note] = [h("p", { class: "value-text" }), h("p", { class: "quiet" })];
  return [name, { node: h("li", { "data-figure": name }, h("h2", { text: name }), value, note), value, note }];
}));
const unpriced = h("section", { class: "warning unpriced", "aria-label": "Calls of unknown cost", hidden: true });
const chartTitle = h("span");
const asTable = h("a", { "data-local": true, text: "Show as a table" });
const plot = h("div", { class: "plot", role: "img" });
const legend = h("p", { class: "legend", text: "Hatched: calls without a known price are not included; the true cost is higher." });
const chart = h("figure", { class: "chart" }, h("figcaption", {}, chartTitle, asTable), plot, legend);
const budgets = h("ul", { class: "budgets" });
const budgetPart = h("section", { "aria-label": "Budgets" }, h("h2", { text: "Budgets" }), budgets);
const groups = Object.entries(GROUPS).map(([name, text]) => h("a", { class: "chip", "data-local": true, "data-by": name, text }));
const tables = Object.fromEntries(Object.entries(GROUPS).map(([name, title]) => [name, new FigureTable(`Costs ${title.toLowerCase()}`, columns(name))]));
const tablePart = h("section", { "aria-label": "Table" }, h("div", { class: "filters", role: "group", "aria-label": "Group by" }, groups), Object.values(tables).map((one) => one.node));
const empty = h("section", { class: "empty", hidden: true }, h("h2", { text: "No model calls in this period" }),
  h("p", { text: "Costs appear here as soon as an agent asks its model. Choose a longer period, or start a task." }));
const body = h("div", { class: "costs" }, h("div", { class: "filters" }, range, asOf), h("ul", { class: "cards-of-figures", "aria-label": "Totals" }, Object.values(cards).map((one) => one.node)),
  unpriced, empty, chart, budgetPart, tablePart);

function columns(by) {
  const name = { title: { day: "Time", model: "Model", agent: "Agent", tree: "Tree" }[by], class: "c-name", cell: (row) => NAMES[by](row) };
  return [name,
    { title: "Calls", class: "c-number", cell: (row) => String(row.calls) },
    { title: "Input", class: "c-number c-wide", cell: (row) => count(row, "input") },
    { title: "Output", class: "c-number c-wide", cell: (row) => count(row, "output") },
    { title: "Cached", class: "c-number c-wide", cell: (row) => count(row, "cacheRead") },
    { title: "Cost", class: "c-number c-cost-text", cell: (row) => cost(row) },
    { title: "Share", class: "c-share", cell: share }];
}

const NAMES = {
  day: (row) => barName(row.start),
  model: (row) => row.name,
  agent: (row) => ({ text: row.name, href: link({ view: "tasks", agent: row.name, session: "", state: "", text: "", by: "day", task: "" }) }),
  tree: (row) => (row.sessionKey === null ? row.name : { text: row.name, href: link({ view: "tasks", session: row.sessionKey, agent: "", state: "", text: "", by: "day", task: row.taskId ?? "" }) }),
};

/** A bar as wide as the part of the whole. Its text is the cost beside it. */
function share(row) {
  const whole = measureOf(found.total);
  const part = whole ? (100 * measureOf(row)) / whole : 0;
  const bar = h("span", { class: "share", title: `${part.toFixed(part < 10 ? 1 : 0)}% of ${found.total.usd === null ? "the tokens" : "the known cost"}` }, h("span"));
  bar.firstChild.style.width = `${part}%`;
  return bar;
}

const measureOf = (use) => (found.total.usd === null ? use.input + use.output : Number(use.usd ?? 0));

// ---- loading ---------------------------------------------------------------------------------------------

export const costsView = {
  name: "costs",
  title: "Costs",
  count: () => null,
  load,
  show(place) {
    found = null;
    body.classList.add("loading");
    place.append(body);
    mark();
  },
};

async function load() {
  const mine = ++reads;
  const query = new URLSearchParams({ by: grouping(), utcOffsetMinutes: String(OFFSET) });
  if (period() !== "all") query.set("hours", period());
  const answer = await ask(`/v1/usage?${query}`);
  if (mine !== reads) return null; // another period was chosen meanwhile
  found = answer;
  showNotice("view", "");
  draw();
  return null;
}

onMove((now, before) => {
  if (now.view !== "costs" || before.view !== "costs" || (now.hours === before.hours && now.by === before.by)) return;
  mark();
  load().catch((error) => showNotice("view", connection.failed(error)));
});
readAfterEvents(() => body.isConnected, load);

function mark() {
  range.value = period();
  for (const one of groups) {
    attribute(one, "href", link({ by: one.dataset.by }));
    attribute(one, "aria-current", one.dataset.by === grouping() ? "true" : null);
  }
  for (const [name, one] of Object.entries(tables)) one.node.hidden = name !== grouping();
}

// ---- drawing ---------------------------------------------------------------------------------------------

function draw() {
  body.classList.remove("loading");
  put(asOf, `As of ${clock(found.until)} · days and hours in ${zone()}`);
  drawTotals();
  drawUnpriced();
  drawChart();
  drawBudgets();
  const isEmpty = found.total.calls === 0;
  empty.hidden = !isEmpty;
  chart.hidden = tablePart.hidden = isEmpty;
  const by = found.by;
  if (by !== grouping()) return;
  const rows = by === "day" ? found.timeline.bars.filter((one) => one.calls).reverse() : found.usage;
  tables[by].draw(rows, (row) => row.start ?? row.taskId ?? row.name);
  for (const [name, one] of Object.entries(tables)) if (name !== by) one.node.hidden = true;
}

function figure(name, value, note) {
  put(cards[name].value, value);
  put(cards[name].note, note);
}

function drawTotals() {
  const { total, burn } = found;
  figure("Cost", cost(total), total.unpricedCalls ? `${counted(total.unpricedCalls, "call")} without a known price` : "all calls have a known price");
  figure("Input tokens", count(total, "input"), "");
  figure("Output tokens", count(total, "output"), "");
  figure("Cached tokens", count(total, "cacheRead"), total.input ? `${Math.round((100 * total.cacheRead) / total.input)}% of the input` : "");
  figure("Calls", String(total.calls), "");
  const rate = burn.calls === 0 ? "$0.00" : burn.usdPerHour === null ? "unknown" : `${burn.unpricedCalls ? "at least " : ""}${money(burn.usdPerHour)}`;
  figure("Burn rate", `${rate} an hour`, `${tokens(burn.tokensPerHour)} tokens an hour · ${counted(burn.calls, "call")} in ${burn.minutes} min`);
}

function drawUnpriced() {
  unpriced.hidden = found.unpriced.length === 0;
  unpriced.replaceChildren(
    h("p", {}, h("strong", { text: "Cost unknown" }), " · these calls have no known price and are not part of the sums:"),
    h("ul", {}, found.unpriced.map((one) => h("li", {}, h("code", { text: one.model }),
      h("span", { text: `: ${counted(one.calls, "call")}, ${one.tokens ? `${tokens(one.tokens)} tokens` : "tokens not reported"}` })))),
    h("p", { class: "quiet", text: "Prices come from the genai-prices list; a provider of your own has them if it has the name of one on that list, such as deepseek. A budget in tokens limits these calls, too." }));
}

// ---- the chart -------------------------------------------------------------------------------------------

function barName(start) {
  const moment = new Date(start);
  if (found.timeline.unit === "day") return moment.toLocaleDateString([], { weekday: "short", day: "numeric", month: "short" });
  const hour = moment.toLocaleTimeString([], found.timeline.unit === "hour" && moment.getMinutes() === 0 ? { hour: "numeric" } : { hour: "2-digit", minute: "2-digit" });
  return moment.toDateString() === new Date(found.until).toDateString() ? hour : `${moment.toLocaleDateString([], { weekday: "short" })} ${hour}`;
}

/** Bars of dollars; of tokens where no price is known at all. The table by time has the same figures as text. */
function drawChart() {
  const { bars, unit } = found.timeline;
  const top = Math.max(...bars.map(measureOf));
  const isMoney = found.total.usd !== null;
  const text = (value) => (isMoney ? money(String(value)) : `${tokens(Math.round(value))}`);
  const what = `${isMoney ? "Cost" : "Tokens"} per ${unit}`;
  const dearest = bars.find((one) => measureOf(one) === top);
  const said = `${what}, ${counted(bars.length, "bar")}. Highest: ${text(top)}, ${barName(dearest.start)}. The table by time has every figure.`;
  const step = Math.ceil(bars.length / LABELS_MAX);
  const drawn = bars.map((bar, place) => column(bar, top, text, (bars.length - 1 - place) / step));
  put(chartTitle, what);
  attribute(asTable, "href", link({ by: "day" }));
  attribute(plot, "aria-label", said);
  plot.replaceChildren(h("span", { class: "axis", text: text(top) }), h("div", { class: bars.length <= LABELS_MAX ? "columns-of-chart few" : "columns-of-chart" }, drawn));
  legend.hidden = !bars.some((one) => one.unpricedCalls);
}

/** `label`: whole for a bar with a label; every second label is left out on a narrow screen. */
function column(bar, top, text, label) {
  const value = measureOf(bar);
  const made = h("span", { class: "column", title: `${barName(bar.start)}: ${text(value)}, ${counted(bar.calls, "call")}${bar.unpricedCalls ? `, ${bar.unpricedCalls} without a known price` : ""}` },
    h("span", { class: "bar-space" }, h("span", { class: bar.unpricedCalls ? "fill unknown" : "fill" })), h("span", { class: label % 2 ? "tick minor" : "tick", text: Number.isInteger(label) ? barName(bar.start) : "" }));
  made.querySelector(".fill").style.height = top ? `${(100 * value) / top}%` : "0";
  return made;
}

// ---- budgets ---------------------------------------------------------------------------------------------

const amount = (measure, value) => (measure === "usd" ? money(value) : tokens(Number(value)));
const STATES = { ok: "OK", warning: "Nearly exhausted", exhausted: "Exhausted" };
const items = new Map(); // name of a budget -> its elements

function drawBudgets() {
  budgetPart.hidden = found.budgets.length === 0 && found.total.calls === 0;
  const wanted = found.budgets.map((one) => {
    if (!items.has(one.name)) items.set(one.name, h("li", {}));
    const item = items.get(one.name);
    attribute(item, "data-state", one.state);
    // A link that has the focus stays: only what changes is made anew.
    if (!item.firstChild) item.append(h("div", { class: "budget-title" }, budgetName(one), h("span", { class: "state" })), h("div", { class: "meters" }), h("p", { class: "heading" }), h("p", { class: "forecast" }), h("p", { class: "quiet at-limit" }));
    put(item.querySelector(".state"), STATES[one.state]);
    item.querySelector(".meters").replaceChildren(...one.measures.map((measure) => meter(measure, one)));
    put(item.querySelector(".heading"), one.measures.map((measure) => measure.heading?.text).filter(Boolean).join(" "));
    put(item.querySelector(".forecast"), forecast(one));
    put(item.querySelector(".at-limit"), one.atLimit ? `At the limit: ${one.atLimit}` : "");
    return item;
  });
  for (const name of items.keys()) if (!found.budgets.some((one) => one.name === name)) items.delete(name);
  arrange(budgets, wanted.length ? wanted : [none]);
}

const none = h("li", { class: "quiet none", text: "No budget is set: nothing limits what is spent. Set budget.dayUsd or budget.rootTokens in the config, or a budget for one task." });

function budgetName(one) {
  if (one.kind === "day") return h("strong", { text: `Day ${one.name.replace(/^day:/, "")} (UTC)` });
  const text = one.kind === "task" ? `Task ${one.label || one.taskId}` : `Session ${one.sessionKey}`;
  return h("a", { "data-local": true, text, href: link({ view: "tasks", by: "day", hours: "all", session: one.kind === "root" ? one.sessionKey : "", task: one.taskId ?? "" }) });
}

function meter({ measure, limit, spent, reserved, percent }, one) {
  const part = (value) => (Number(limit) > 0 ? Math.min(100, (100 * Number(value)) / Number(limit)) : 100);
  const least = measure === "usd" && one.unpricedCalls ? "at least " : "";
  const text = `${least}${amount(measure, spent)} used, ${amount(measure, reserved)} reserved, of ${amount(measure, limit)}${measure === "tokens" ? " tokens" : ""} (${percent}%)`;
  const bar = h("span", { class: "meter", role: "meter", "aria-label": measure === "usd" ? "Dollars" : "Tokens", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.min(100, percent), "aria-valuetext": text }, h("span", { class: "used" }), h("span", { class: "held" }));
  bar.querySelector(".used").style.width = `${part(spent)}%`;
  bar.querySelector(".held").style.width = `${Math.min(part(reserved), 100 - part(spent))}%`;
  return h("div", { class: "measure" }, bar, h("span", { text }));
}

function forecast(one) {
  if (one.state === "exhausted") return "Exhausted: no new call is made.";
  if (one.exhaustedAt === null) return one.kind === "day" ? "At this rate the budget lasts until its day ends." : "At this rate the budget is not exhausted: its calls use nothing now.";
  const isToday = new Date(one.exhaustedAt).toDateString() === new Date(found.until).toDateString();
  return `At this rate the budget is exhausted at ${isToday ? minuteOf(one.exhaustedAt) : clock(one.exhaustedAt)}.`;
}
