// The page behind /v1/docs: every operation of /v1/openapi.json, with fields to fill in, and the answer of the gateway.
//
// It sends what the user fills in, with the user's cookie and nothing else, to paths of the document only.

import { isSignedOut, send as sendOwn } from "/web/api.js";
import { element, put } from "/web/dom.js";

const SHOWN_CHARS_MAX = 200_000; // of an answer; a stream of events has no end
const SIGN_IN = "Not signed in. Run `clutch open`, then open this page again.";

const byId = (id) => document.getElementById(id);
let schemas = {};
let chosen = null; // the operation that is shown
let request = null; // the AbortController of the request under way

// ---- the document ----------------------------------------------------------------------------------------

async function load() {
  const answer = await sendOwn("/v1/openapi.json").catch((error) => error);
  if (isSignedOut(answer) || answer.status === 401) return put(byId("line"), SIGN_IN);
  if (answer instanceof Error) return put(byId("line"), "The gateway does not answer.");
  const said = await answer.json();
  if (!answer.ok) return put(byId("line"), said.error.message);
  schemas = said.components.schemas;
  const operations = Object.entries(said.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, about]) => ({ path, method: method.toUpperCase(), about })));
  document.querySelector("nav").replaceChildren(...operations.map(entry));
  put(byId("line"), `${operations.length} operations · version ${said.info.version}`);
}

function entry(operation) {
  const button = element("button", "");
  button.append(element("span", operation.method, "method"), element("span", operation.path));
  button.title = operation.about.description;
  button.addEventListener("click", () => {
    document.querySelector("nav [aria-current]")?.removeAttribute("aria-current");
    button.setAttribute("aria-current", "true");
    choose(operation);
  });
  return button;
}

/** Return the schema behind a reference; of several, the first that is not null. */
function resolved(schema) {
  if (schema.$ref !== undefined) return resolved(schemas[schema.$ref.split("/").pop()] ?? {});
  const several = schema.anyOf?.filter((one) => one.type !== "null");
  return several?.length ? { ...resolved(several[0]), ...without(schema, "anyOf") } : schema;
}

function without(object, name) {
  const { [name]: _, ...rest } = object;
  return rest;
}

// ---- one operation ---------------------------------------------------------------------------------------

function choose(operation) {
  request?.abort();
  chosen = operation;
  put(byId("operation-title"), `${operation.method} ${operation.path}`);
  put(byId("about"), operation.about.description);
  const body = operation.about.requestBody?.content["application/json"]?.schema;
  const fields = operation.about.parameters.map(parameterField);
  byId("fields").replaceChildren(...fields, ...(body ? [bodyField(resolved(body))] : []));
  for (const id of ["notice", "answer"]) byId(id).hidden = true;
  put(byId("status"), "");
  byId("operation").hidden = false;
  byId("operation").scrollIntoView({ block: "nearest" });
}

function labelled(name, meaning, control) {
  const label = element("label", "");
  label.append(element("span", name), control);
  if (meaning) label.append(element("span", meaning, "meaning"));
  return label;
}

function parameterField(parameter) {
  const schema = resolved(parameter.schema);
  const words = schema.enum ?? (schema.type === "boolean" ? [true, false] : null);
  const control = element(words ? "select" : "input", "");
  if (words) control.append(...["", ...words].map((word) => element("option", String(word))));
  else if (schema.default !== undefined && schema.default !== null) control.placeholder = String(schema.default);
  control.name = parameter.name;
  control.dataset.in = parameter.in;
  control.required = parameter.required === true;
  const meaning = [parameter.in, schema.type, parameter.description].filter(Boolean).join(" · ");
  return labelled(parameter.name, meaning, control);
}

/** The body is JSON; required fields are there, and the others are named below. */
function bodyField(schema) {
  const control = element("textarea", "");
  control.name = "body";
  control.spellcheck = false;
  const properties = Object.entries(schema.properties ?? {});
  const needed = new Set(schema.required ?? []);
  const begin = properties.filter(([name]) => needed.has(name)).map(([name, one]) => [name, sample(resolved(one))]);
  control.value = JSON.stringify(Object.fromEntries(begin), null, 2);
  const label = labelled("Body (JSON)", "", control);
  const list = element("ul", "", "meaning");
  list.append(...properties.map(([name, one]) => element("li", described(name, resolved(one), needed.has(name)))));
  label.append(list);
  return label;
}

function described(name, schema, isNeeded) {
  const kind = schema.enum ? schema.enum.join(" | ") : schema.type ?? "any";
  return [`${name}: ${kind}${isNeeded ? ", required" : ""}`, schema.description].filter(Boolean).join(" · ");
}

function sample(schema) {
  if (schema.default !== undefined) return schema.default;
  if (schema.enum) return schema.enum[0];
  return { array: [], boolean: false, integer: 0, number: 0, object: {} }[schema.type] ?? "";
}

// ---- sending ---------------------------------------------------------------------------------------------

class Invalid extends Error {}

function made() {
  const headers = {};
  const query = new URLSearchParams();
  let { path } = chosen;
  let body;
  for (const control of byId("fields").querySelectorAll("[name]")) {
    const value = control.value.trim();
    if (control.name === "body") {
      body = checked(value);
      headers["Content-Type"] = "application/json";
    } else if (control.dataset.in === "path") path = path.replace(`{${control.name}}`, segment(control.name, value));
    else if (value !== "" && control.dataset.in === "query") query.set(control.name, value);
    else if (value !== "") headers[control.name] = value;
  }
  const search = query.toString();
  return [search ? `${path}?${search}` : path, { method: chosen.method, headers, body }];
}

/** Return a value as one part of a path. A browser would take `..` for another path, encoded or not. */
function segment(name, value) {
  if (value === "." || value === "..") throw new Invalid(`${name}: "${value}" cannot be a part of a path.`);
  return encodeURIComponent(value);
}

function checked(text) {
  try {
    return JSON.stringify(JSON.parse(text || "{}"));
  } catch (error) {
    throw new Invalid(`The body is not JSON: ${error.message}`);
  }
}

async function send() {
  request = new AbortController();
  const mine = request.signal;
  byId("notice").hidden = true;
  byId("answer").hidden = true;
  byId("send").disabled = true;
  byId("stop").hidden = false;
  try {
    const [path, options] = made();
    put(byId("status"), `${chosen.method} ${path}`);
    const begun = performance.now();
    const answer = await sendOwn(path, { ...options, signal: mine });
    const passed = `${answer.status} ${answer.statusText} · ${Math.round(performance.now() - begun)} ms`;
    put(byId("status"), `${chosen.method} ${path} · ${passed}`);
    await show(answer);
  } catch (error) {
    if (!mine.aborted) warn(error instanceof Invalid ? error.message : `Not sent: ${error.message}`);
  } finally {
    byId("send").disabled = false;
    byId("stop").hidden = true;
  }
}

function warn(text) {
  put(byId("notice"), text);
  byId("notice").hidden = false;
}

/** Show an answer as it arrives: a stream of events has no end. */
async function show(answer) {
  const isJson = (answer.headers.get("content-type") ?? "").startsWith("application/json");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  byId("answer").hidden = false;
  for (let piece = await reader.read(); !piece.done && text.length < SHOWN_CHARS_MAX; piece = await reader.read()) {
    text += piece.value;
    if (!isJson) put(byId("answer"), text);
  }
  await reader.cancel();
  put(byId("answer"), isJson ? indented(text) : text);
  if (text.length >= SHOWN_CHARS_MAX) warn("The answer is longer; its beginning is shown.");
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // cut, because it is too long
  }
}

document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", () => request?.abort());
load();
