// Requests to the gateway. A write carries a header that no form and no foreign page can send, and a key of its own, so
// that it is done once even if its answer is lost and it is sent again.

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

export async function ask(path, { method = "GET", body, headers = {}, signal } = {}) {
  const sent = { "X-Clutch-Page": "1", ...headers };
  if (body !== undefined) sent["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers: sent, signal, body: body === undefined ? undefined : JSON.stringify(body) })
    .catch((error) => { throw error.name === "AbortError" ? error : new Unreachable(error.message); });
  const said = await answer.json().catch(() => { throw new Unreachable("the answer was cut off"); });
  if (answer.ok) return said;
  throw new Refused(said.error?.message ? said.error : { message: String(said.error), code: said.code, field: said.field }, answer.status);
}

export const post = (path, body = {}, key = newKey()) =>
  ask(path, { method: "POST", body, headers: { "Idempotency-Key": key } });

export const taskPath = (taskId, rest = "") => `/v1/tasks/${encodeURIComponent(taskId)}${rest}`;

/** The one-time code stands behind the `#`, which no browser sends; it leaves the address before it is used. */
export async function signIn() {
  const code = location.hash.slice(1);
  if (!code) return;
  history.replaceState(history.state, "", location.pathname + location.search);
  await ask("/v1/browser/session", { method: "POST", body: {}, headers: { Authorization: `Code ${code}` } });
}
