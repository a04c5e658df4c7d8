// The browsers and phones that are signed in, how to pair a phone, and signing a device out.

import { ask, post } from "/web/api.js";
import { connection } from "/web/connection.js";
import { button, h, put } from "/web/dom.js";
import { field, openDialog } from "/web/dialogs.js";
import { showNotice } from "/web/frame.js";
import { pushSection, showPush } from "/web/push.js";
import { moment } from "/web/format.js";

const list = h("ul", { class: "devices", "aria-label": "Devices" });
const said = h("p", { class: "said", role: "status" });

// An app on the home screen of an iPhone shares nothing with the browser, and no link opens in it: one is pasted here.
const pasted = h("input", { type: "url", autocomplete: "off", required: true, placeholder: "https://…/#…" });
const signIn = h("form", { class: "sign-in", hidden: true }, field("One-time link of `clutch open --phone`", pasted), h("button", { type: "submit", class: "primary", text: "Sign in" }));
signIn.addEventListener("submit", (event) => {
  event.preventDefault();
  location.hash = new URL(pasted.value).hash; // the connection starts with it, as with a link that was opened
  pasted.value = "";
});
const section = h("section", { class: "devices-view", "aria-labelledby": "devices-title" });
const mark = () => {
  const isOut = connection.state === "signed out";
  signIn.hidden = !isOut;
  section.hidden = isOut;
};
connection.onChange(mark);

export const devicesView = {
  name: "devices",
  title: "Devices",
  count: () => null,
  load,
  show(place) {
    mark();
    section.replaceChildren(
      h("h2", { id: "devices-title", text: "Signed-in devices" }),
      h("p", { class: "quiet", text: "Each browser and phone that can open this dashboard. Revoke one that you do not know or have lost." }),
      list, said, ...pushSection(),
      h("h2", { text: "Pair a phone" }),
      h("p", {}, "Run ", h("code", { text: "clutch open --phone" }), " in a terminal and scan the code. It works once, within 10 minutes."));
    place.append(signIn, section);
  },
};

async function load() {
  const found = await ask("/v1/devices");
  showNotice("view", "");
  list.replaceChildren(...found.devices.map(card));
  await showPush(found.devices.some((one) => one.isThis && one.hasPush));
  return null;
}

function card(device) {
  const title = h("p", { class: "device-name" }, h("strong", { text: device.name }), device.isThis ? h("span", { class: "badge", text: "This device" }) : null);
  const seen = device.isThis ? "now" : moment(device.seenAt);
  const about = h("p", { class: "quiet", text: `${device.isPhone ? "Paired" : "Signed in"} ${moment(device.pairedAt)} · last seen ${seen} · expires ${moment(device.expiresAt)}${device.hasPush ? " · notifications on" : ""}` });
  const revoke = button("Revoke…", () => confirmRevoke(device), { class: "danger-text", "aria-label": `Revoke ${device.name}, ${device.id}` });
  return h("li", { "data-device": device.id }, h("div", {}, title, about), revoke);
}

function confirmRevoke(device) {
  const effect = device.isThis ? "This page is signed out. Run `clutch open` to sign in again." : "Its page and its notifications end at once. To use it again, pair it again.";
  openDialog({
    title: `Revoke ${device.name}?`,
    confirm: "Revoke",
    danger: true,
    content: [h("p", { text: effect })],
    act: async () => {
      await post(`/v1/devices/${encodeURIComponent(device.id)}/revoke`);
      put(said, `Revoked ${device.name}.`);
      await load().catch((error) => showNotice("view", connection.failed(error)));
    },
  });
}
