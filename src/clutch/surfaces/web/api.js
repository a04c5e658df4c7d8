// Requests to the gateway. Each carries a header that no form and no foreign page can send, and a write a key of its own,
// so that it is done once even if its answer is lost and it is sent again.
//
// The value of the header opens one process of the gateway, after that process has proved that it knows the key of this
// page: another program at the same port learns nothing that opens the gateway later, and is shown as no answer.

export class Refused extends Error {
  constructor(said, status) {
    super(said.remedy ? `${said.message} (${said.remedy})` : said.message);
    this.code = said.code;
    this.field = said.field;
    this.status = status;
  }
}

export class Unreachable extends Error {}

export const isSignedOut = (error) => error instanceof Refused && error.code === "unauthorized";

export function problemText(error) {
  if (isSignedOut(error)) return "This page is signed out. Run `clutch open` in a terminal to sign in again.";
  if (error instanceof Unreachable) return "The gateway does not answer. The page shows the last state it sent.";
  return String(error.message);
}

/** A random key. `crypto.randomUUID` exists on loopback and over TLS only. */
export const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, "0")).join("");

const KEY = "clutch.page-key";
let opening = null; // a promise of the header's value

/** Do not trust the present gateway any further: the next request asks for a proof again. */
export const forgetGateway = () => { opening = null; };

const hex = (bytes) => [...new Uint8Array(bytes)].map((one) => one.toString(16).padStart(2, "0")).join("");

async function mac(key, text) {
  const bytes = (one) => new TextEncoder().encode(one);
  const digest = bytes(hex(await crypto.subtle.digest("SHA-256", bytes(key))));
  const made = await crypto.subtle.importKey("raw", digest, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return hex(await crypto.subtle.sign("HMAC", made, bytes(text)));
}

async function proved() {
  const key = localStorage.getItem(KEY);
  if (key === null) throw new Refused({ message: "not signed in", code: "unauthorized" }, 401);
  if (!crypto.subtle) return key; // on other hosts without TLS, where every request can be read anyway
  const nonce = newKey();
  const said = await read(await reach(`/v1/browser/proof?nonce=${nonce}`, { headers: { "X-Clutch-Page": "1" } }));
  if (said.proof !== await mac(key, `gateway ${nonce} ${said.run}`)) throw new Unreachable("another program answers");
  return mac(key, `page ${said.run}`);
}

const reach = (path, options) => fetch(path, options)
  .catch((error) => { throw error.name === "AbortError" ? error : new Unreachable(error.message); });

async function read(answer) {
  const said = await answer.json().catch(() => { throw new Unreachable("the answer was cut off"); });
  if (answer.ok) return said;
  throw new Refused(said.error?.message ? said.error : { message: String(said.error), code: said.code, field: said.field }, answer.status);
}

/** Send a request with the proof of this page. A gateway that was restarted wants a new one. */
export async function send(path, options = {}, isAgain = false) {
  const mine = (opening ??= proved());
  const value = await mine.catch((error) => { if (opening === mine) opening = null; throw error; });
  const answer = await reach(path, { ...options, headers: { ...options.headers, "X-Clutch-Page": value } });
  if (answer.status !== 401 || isAgain) return answer;
  if (opening === mine) opening = null;
  return send(path, options, true);
}

export async function ask(path, { method = "GET", body, headers = {}, signal } = {}) {
  const sent = body === undefined ? headers : { "Content-Type": "application/json", ...headers };
  return read(await send(path, { method, headers: sent, signal, body: body === undefined ? undefined : JSON.stringify(body) }));
}

/** Follow a stream of events until it ends. An EventSource could not send the header. */
export async function follow(path, signal, receive) {
  const answer = await send(path, { signal });
  if (!answer.ok) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    const events = (text + piece.value).split("\n\n");
    text = events.pop();
    for (const event of events) receive(/^event: (.*)$/m.exec(event)?.[1], /^data: (.*)$/m.exec(event)?.[1]);
  }
}

export const post = (path, body = {}, key = newKey()) =>
  ask(path, { method: "POST", body, headers: { "Idempotency-Key": key } });

export const taskPath = (taskId, rest = "") => `/v1/tasks/${encodeURIComponent(taskId)}${rest}`;

/** The one-time code stands behind the `#`, which no browser sends; it leaves the address before it is used. */
export async function signIn() {
  const code = location.hash.slice(1);
  if (!code) return;
  history.replaceState(history.state, "", location.pathname + location.search);
  const headers = { "Content-Type": "application/json", Authorization: `Code ${code}` };
  const { pageKey } = await read(await reach("/v1/browser/session", { method: "POST", body: "{}", headers }));
  localStorage.setItem(KEY, pageKey);
  forgetGateway();
}
