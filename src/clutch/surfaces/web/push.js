// Notifications on this device: the service worker, the permission, and the subscription at the browser's push service.
// The gateway sends two generic texts and never a word of a task.

import { go } from "/web/address.js";
import { ask, post } from "/web/api.js";
import { connection } from "/web/connection.js";
import { button, h, put } from "/web/dom.js";

// Browsers offer both on loopback and over TLS only.
const isSupported = () => isSecureContext && "serviceWorker" in navigator && "PushManager" in window && "Notification" in window;

export function startWorker() {
  if (!isSecureContext || !("serviceWorker" in navigator)) return;
  navigator.serviceWorker.register("/sw.js", { updateViaCache: "none" }).catch(() => null); // a private window may refuse
  navigator.serviceWorker.addEventListener("message", ({ data }) => { if (data?.open === "inbox") go({ view: "inbox", task: "", tab: "activity" }); });
}

const TEXTS = {
  unsupported: "Not available here. Notifications need https (or localhost) and a browser with Web Push. On an iPhone, add this page to the home screen first.",
  blocked: "Blocked in the settings of this browser. Allow notifications for this address there, then reload.",
  on: "On: this device is notified when a task needs your decision and when all tasks of a conversation are finished. The text names no task.",
  off: "Off. This device can be notified when a task needs your decision and when all tasks of a conversation are finished. The text names no task.",
};
const state = h("p", { role: "status", class: "push-state" });
const said = h("p", { class: "said", role: "alert" });
const onButton = button("Turn on", () => act(turnOn), { class: "primary" });
const offButton = button("Turn off", () => act(turnOff));
const testButton = button("Send a test", () => act(test));

export const pushSection = () => [h("h2", { text: "Notifications" }), state, h("p", { class: "push-actions" }, onButton, testButton, offButton), said];

/** Show the state. `isKnown`: the gateway has a subscription of this device. */
export async function showPush(isKnown) {
  const now = await present(isKnown);
  state.dataset.state = now;
  put(state, TEXTS[now]);
  onButton.hidden = now !== "off";
  offButton.hidden = testButton.hidden = now !== "on";
}

async function present(isKnown) {
  if (!isSupported()) return "unsupported";
  if (Notification.permission === "denied") return "blocked";
  const worker = await navigator.serviceWorker.getRegistration("/");
  const subscription = await worker?.pushManager.getSubscription();
  return isKnown && subscription && Notification.permission === "granted" ? "on" : "off";
}

async function act(what) {
  for (const one of [onButton, offButton, testButton]) one.disabled = true;
  put(said, "");
  try {
    await what();
  } catch (error) {
    put(said, connection.failed(error));
  } finally {
    for (const one of [onButton, offButton, testButton]) one.disabled = false;
  }
}

const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (one) => one.charCodeAt(0));

async function turnOn() {
  if (await Notification.requestPermission() !== "granted") return showPush(false);
  const { publicKey } = await post("/v1/devices/push/key");
  const { pushManager } = await navigator.serviceWorker.ready;
  await (await pushManager.getSubscription())?.unsubscribe(); // it may be bound to the key of another gateway
  const made = await pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: bytes(publicKey) });
  const { endpoint, keys } = made.toJSON();
  await post("/v1/devices/push", { endpoint, p256dh: keys.p256dh, auth: keys.auth });
  return showPush(true);
}

async function turnOff() {
  await ask("/v1/devices/push", { method: "DELETE" });
  const worker = await navigator.serviceWorker.getRegistration("/");
  await (await worker?.pushManager.getSubscription())?.unsubscribe();
  return showPush(false);
}

async function test() {
  await post("/v1/devices/push/test");
  put(said, "Sent. The notification arrives within seconds.");
}
