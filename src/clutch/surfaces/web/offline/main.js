// An exported page: the list of tasks, the panel and the timeline of the page, without what needs a gateway.

import { at, follow, link, onMove } from "/web/address.js";
import { data } from "/web/api.js";
import { connection } from "/web/connection.js";
import { put } from "/web/dom.js";
import { showNotice, showView, startFrame } from "/web/frame.js";
import { startPanel } from "/web/views/panel.js";
import { tasksView } from "/web/views/tasks.js";
import { timelineView } from "/web/views/timeline.js";

const VIEWS = [tasksView, timelineView];
let shown = null;

const viewOf = (address) => VIEWS.find((one) => one.name === address.view) ?? VIEWS[0];
const failed = (error) => showNotice("view", connection.failed(error));

function show() {
  const wanted = viewOf(at());
  if (wanted === shown) return;
  shown = wanted;
  showView(shown);
  shown.load().catch(failed);
}

document.addEventListener("click", follow);
startFrame([tasksView]);
document.getElementById("home").href = link({ view: "tasks", task: "", text: "", state: "" });
put(document.getElementById("connection"), `Exported on ${new Date(connection.now).toLocaleString()}; read-only`);
put(document.getElementById("notice"), "");
document.title = `Clutch: ${data.title}`;
onMove(show);
show();
startPanel();
