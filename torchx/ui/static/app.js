// Keeps the runs up to date with the server, and shows the page of the current address.

import { back, el, stream } from "/parts.js";
import { showRuns } from "/list.js";
import { showRun } from "/run.js";
import { showUsage } from "/usage.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const rows = new Map();
let page = null;

function go(url, replace = false) {
  history[replace ? "replaceState" : "pushState"](null, "", url);
  route();
}

function route() {
  page?.close?.();
  main.replaceChildren();
  const query = new URLSearchParams(location.search);
  if (location.pathname === "/run") page = showRun(main, query.get("handle") ?? "", rows, go);
  else page = location.pathname === "/usage" ? showUsage(main, go) : showRuns(main, rows, go);
  page.update();
}

addEventListener("popstate", route);
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='/']");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(link.getAttribute("href"));
  main.focus({ preventScroll: true });
});
document.addEventListener("keydown", (event) => {
  if (event.target.closest?.("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  if (page?.key?.(event.key)) event.preventDefault();
  else if (event.key === "Escape" && location.pathname !== "/") go(back.list);
});

function say(text, state) {
  live.textContent = text;
  live.dataset.state = state;
}

async function follow() {
  for (;;) {
    try {
      await stream("events", {}, undefined, ({ rows: news, problems }) => {
        for (const row of news) row.gone ? rows.delete(row.handle) : rows.set(row.handle, { ...rows.get(row.handle), ...row });
        const [name, why] = Object.entries(problems)[0] ?? [];
        name ? say(`${name} cannot be asked: ${why}`, "wait") : say("live", "on");
        page?.update();
      });
      say("torchx ui has ended", "off");
    } catch (error) {
      const refused = /token/.test(error.message);
      say(refused ? "not signed in" : "torchx ui has ended", "off");
      if (refused) main.replaceChildren(el("p", { class: "empty" }, `${error.message}.`));
      if (refused) return;
    }
    await new Promise((done) => setTimeout(done, 2000));
  }
}

setInterval(() => page?.tick?.(), 1000);
route();
follow();
