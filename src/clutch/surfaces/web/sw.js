// The service worker: it receives notifications while no page is open. It answers no request and caches nothing, so a new
// release is never shown stale, and no data of the gateway stays in the browser.

const OPENS = "/?view=inbox";

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

// The gateway sends a text without any word of a task. The tag makes a second notification replace the first.
self.addEventListener("push", (event) => {
  const said = event.data?.json() ?? {};
  const options = { tag: said.tag ?? "clutch", icon: "/web/app-192.png", badge: "/web/app-192.png" };
  event.waitUntil(self.registration.showNotification(said.text ?? "Clutch", options));
});

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(openInbox());
});

async function openInbox() {
  const pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const own = pages.find((one) => new URL(one.url).pathname === "/");
  if (!own) return self.clients.openWindow(OPENS);
  own.postMessage({ open: "inbox" });
  return own.focus();
}
