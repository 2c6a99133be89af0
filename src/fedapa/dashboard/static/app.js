// Which page is shown, when it is filled again, keys and theme.
import { fetchAhead, purge, redraw, settled } from "./charts.js";
import { Gone, PAGES, address, adjust, empty, fill, get, go, h, here, trouble } from "./dom.js";
import * as pages from "./pages.js";

const root = document.getElementById("page");
const tabs = document.getElementById("tabs");
const chip = document.getElementById("link");
const keys = document.getElementById("keys");
let shown = null; // name of the page in the root
let update = null;
let found = null; // the overview, which every page starts from
let turn = 0; // a late answer to an old question is thrown away

function showTabs() {
  const { page } = here();
  fill(tabs, PAGES.map((name, k) => h("a", { href: address(name), "data-in": "", "data-key": name, "aria-current": name === page ? "page" : null, title: `key ${k + 1}` }, name[0].toUpperCase() + name.slice(1))));
  const current = tabs.querySelector("[aria-current]");
  tabs.scrollLeft = current.offsetLeft + current.offsetWidth - tabs.clientWidth;
}

async function show(isNews = false) {
  const mine = ++turn;
  const { page } = here();
  showTabs();
  try {
    if (isNews || !found) found = await get("overview");
    if (mine !== turn) return;
    document.getElementById("folder").textContent = found.folder.split("/").slice(-2).join("/");
    document.getElementById("folder").title = found.folder;
    document.title = `${page} · ${found.folder.split("/").pop()} · fedapa`;
    if (shown !== page || !update) {
      update?.leave?.();
      purge(root);
      root.replaceChildren();
      root.className = page;
      update = pages[page](root);
      shown = page;
    }
    await update(found);
    if (mine === turn) document.querySelector(".toast")?.remove();
    if (!root.dataset.version) performance.mark("filled");
    root.dataset.version = found.version;
  } catch (error) {
    if (mine !== turn) return;
    if (found && update && error instanceof Gone) return toast(error.message);
    update?.leave?.();
    update = shown = null;
    purge(root);
    fill(root, trouble(error.message), empty("The page fills itself as soon as there is something to show."));
  }
}

function toast(text) {
  document.querySelector(".toast")?.remove();
  document.body.append(h("p", { class: "toast", role: "alert" }, text));
}

// ------------------------------------------------------------------------------------------------------------- news

const LINK = { live: "● live", lost: "○ no connection", loading: "loading" };
function say(word) {
  chip.textContent = LINK[word];
  chip.className = `chip ${word}`;
}

// News arrive faster than pages can be filled: one filling at a time, and one more if something came meanwhile.
let isFilling = false;
let isWaiting = false;
let told = null; // the version that the server spoke of last
let isOutdated = false; // what is shown comes from a server that went: another one may count from one again
async function refresh() {
  if (isFilling || (document.hidden && found)) { isWaiting = true; return; } // nobody looks: later is soon enough
  isFilling = true;
  try {
    do {
      isWaiting = isOutdated = false;
      const isFirst = !found;
      const began = performance.now();
      await show(true);
      await settled();
      if (!isFirst) await rest(performance.now() - began);
    } while (isWaiting && (isOutdated || found?.version !== told));
  } finally {
    isFilling = false;
  }
}

// A page that takes long to draw is drawn less often: it may be the machine that trains.
const rest = (spent) => new Promise((go) => setTimeout(go, spent > 150 ? Math.min(20 * spent, 10_000) : 0));

function listen() {
  const stream = new EventSource("/api/stream");
  let isLost = false;
  stream.onopen = () => say("live");
  stream.onmessage = ({ data }) => {
    say("live");
    told = Number(data);
    if (isLost) isOutdated = true;
    isLost = false;
    if (isOutdated || found?.version !== told) refresh();
  };
  stream.onerror = () => {
    say("lost");
    isLost = true;
    told = null;
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 2000);
  };
  addEventListener("pagehide", () => stream.close());
}

document.addEventListener("visibilitychange", () => { if (!document.hidden && isWaiting && !isFilling) refresh(); });

// ----------------------------------------------------------------------------------------------------- moving about

addEventListener("moved", () => show());
addEventListener("popstate", () => show());
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-in], a[data-page]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input:not([type=checkbox]), select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
  if (event.key === "?") return keys.showModal();
  if (isTyping) return;
  const { page } = here();
  if (event.key >= "1" && event.key <= "6") go(address(PAGES[event.key - 1]));
  else if (event.key === "t") nextTheme();
  else if (event.key === "[" || event.key === "]") stepRun(event.key === "]" ? 1 : -1);
  else if (page === "clients" && (event.key === "j" || event.key === "k")) update?.step?.(event.key === "j" ? 1 : -1);
  else if (page === "collaboration" && (event.key === "ArrowLeft" || event.key === "ArrowRight")) update?.turn?.(event.key === "ArrowRight" ? 1 : -1);
  else if (page === "collaboration" && event.key === " " && event.target.tagName !== "BUTTON") update?.play?.();
  else return;
  event.preventDefault();
});

function stepRun(by) {
  const names = found?.runs.map((run) => run.name) ?? [];
  const at = names.indexOf(here().query.get("run") ?? pages.chosenRun(found)?.name);
  const next = names[Math.min(Math.max(at + by, 0), names.length - 1)];
  if (next) adjust({ run: next, client: null, round: null });
}

document.getElementById("help").addEventListener("click", () => keys.showModal());
document.getElementById("close").addEventListener("click", () => keys.close());

// ------------------------------------------------------------------------------------------------------------ theme

const THEMES = ["system", "light", "dark"];
const theme = () => { try { return localStorage.getItem("theme") ?? "system"; } catch { return "system"; } };
function wear(word) {
  document.documentElement.dataset.theme = word;
  document.getElementById("theme").textContent = { system: "◐ auto", light: "☀ light", dark: "☾ dark" }[word];
}
function nextTheme() {
  const word = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  try { localStorage.setItem("theme", word); } catch { /* a browser without storage forgets */ }
  wear(word);
  redraw();
}
document.getElementById("theme").addEventListener("click", nextTheme);
for (const query of ["(prefers-color-scheme: dark)", "(max-width: 699px)"]) matchMedia(query).addEventListener("change", redraw);

wear(theme());
showTabs();
refresh();
listen();
if (!["events", "config"].includes(here().page)) fetchAhead();
