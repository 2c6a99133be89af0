// Elements, numbers and addresses. Text is always set as text, never as markup.

export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value == null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null));
  return node;
}

// A form element keeps the focus and what it shows while the rest of the page is filled again.
export function fill(node, ...children) {
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  node.replaceChildren(...children.flat(Infinity).filter((child) => child != null));
  if (focused !== undefined) [...node.querySelectorAll("[data-key]")].find((n) => n.dataset.key === focused)?.focus();
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
// Thousands have no decimals: nobody reads 35286.918.
const fixed = (value, digits) =>
  Math.abs(value) >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : value.toFixed(digits);
export const number = (value, digits = 2) => (isNumber(value) ? fixed(value, digits) : "–");
export const whole = (value) => (isNumber(value) ? String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ",") : "–");
export const signed = (value, digits = 2) =>
  isNumber(value) ? (value > 0 ? "+" : value < 0 ? "−" : "±") + fixed(Math.abs(value), digits) : "–";
export const sureness = (p) => (!isNumber(p) ? "" : p < 0.001 ? "p < 0.001" : `p ${p.toFixed(3)}`);

export function size(kib) {
  if (!isNumber(kib)) return "–";
  if (kib < 1024) return `${kib.toFixed(kib < 10 ? 1 : 0)} KiB`;
  return kib < 1024 ** 2 ? `${(kib / 1024).toFixed(1)} MiB` : `${(kib / 1024 ** 2).toFixed(1)} GiB`;
}

export function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

// ------------------------------------------------------------------------------------------------------- addresses

export const PAGES = ["overview", "clients", "collaboration", "compare", "events", "config"];

export function here() {
  const page = location.pathname.slice(1);
  return { page: PAGES.includes(page) ? page : "overview", query: new URLSearchParams(location.search) };
}

export function address(page, changes = {}, kept = ["run"]) {
  const query = new URLSearchParams();
  const now = here().query;
  for (const key of kept) for (const value of now.getAll(key)) query.append(key, value);
  for (const [key, value] of Object.entries(changes)) {
    query.delete(key);
    for (const one of Array.isArray(value) ? value : [value]) if (one != null && one !== "") query.append(key, one);
  }
  const words = query.toString();
  return words ? `/${page}?${words}` : `/${page}`;
}

// Every state has an address; going somewhere is an event that the app hears.
export function go(to, replace = false) {
  if (to !== location.pathname + location.search) history[replace ? "replaceState" : "pushState"](null, "", to);
  window.dispatchEvent(new Event("moved"));
}

export function adjust(changes) {
  const { page, query } = here();
  go(address(page, changes, [...new Set(query.keys())]), true);
}

// ------------------------------------------------------------------------------------------------------------ data

export class Gone extends Error {}

export async function get(name, query = {}) {
  const words = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one != null) words.append(key, one);
  }
  let answer;
  try {
    answer = await fetch(`/api/${name}?${words}`);
  } catch {
    throw new Gone("The server does not answer. Is `fedapa watch` still running?");
  }
  const found = await answer.json().catch(() => ({ error: `The server answered ${answer.status}.` }));
  if (found.error) throw new Error([found.error, found.hint].filter(Boolean).join("; "));
  return found;
}

// ---------------------------------------------------------------------------------------------------------- pieces

const SIGNS = { finished: "✓", running: "▶", planned: "○", failed: "✕", "cut off": "‖", unreadable: "⚠" };

export const state = (word) =>
  h("span", { class: `state ${word.replace(" ", "-")}` }, h("i", { "aria-hidden": "true" }, SIGNS[word] ?? "•"), word);

export const tile = (value, label, note) =>
  h("div", { class: "tile" }, h("b", {}, value), h("span", {}, label), note ? h("small", {}, note) : null);

export const trouble = (text) => h("p", { class: "trouble", role: "alert" }, text);
export const empty = (text) => h("p", { class: "empty" }, text);

export function field(label, control) {
  return h("label", { class: "field" }, h("span", {}, label), control);
}

export function select(options, chosen, onchange, props = {}) {
  const make = ([value, text]) => h("option", { value, selected: value === chosen }, text);
  const node = h("select", { ...props, onchange: () => onchange(node.value) });
  const groups = new Map();
  for (const option of options) {
    if (!option[2]) node.append(make(option));
    else {
      if (!groups.has(option[2])) node.append(groups.set(option[2], h("optgroup", { label: option[2] })).get(option[2]));
      groups.get(option[2]).append(make(option));
    }
  }
  return node;
}

// A table whose heads sort it; `columns`: {key, head, show, text, by}. `row` may give attributes of a row.
export function table(columns, rows, { sort, onsort, row, caption } = {}) {
  const [key, down] = sort ? [sort.replace(/^-/, ""), sort.startsWith("-")] : [null, false];
  const column = columns.find((one) => one.key === key);
  if (column) {
    const value = column.by ?? ((one) => one[key]);
    rows = [...rows].sort((a, b) => compare(value(a), value(b)) * (down ? -1 : 1));
  }
  const head = (one) => {
    const isSorted = one.key === key;
    const order = isSorted ? (down ? "descending" : "ascending") : null;
    const next = isSorted ? (down ? one.key : `-${one.key}`) : one.text ? one.key : `-${one.key}`;
    const label = [one.head, isSorted ? (down ? " ▼" : " ▲") : ""].join("");
    return h("th", { scope: "col", class: one.text ? "text" : null, "aria-sort": order },
      onsort && one.key ? h("button", { type: "button", "data-key": `sort-${one.key}`, onclick: () => onsort(next) }, label) : label);
  };
  const cell = (one, item, k) => {
    const found = one.show ? one.show(item) : item[one.key];
    return k ? h("td", { class: one.text ? "text" : null }, found ?? "–") : h("th", { scope: "row" }, found ?? "–");
  };
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, caption ? h("caption", { class: "hidden" }, caption) : null,
      h("thead", {}, h("tr", {}, columns.map(head))),
      h("tbody", {}, rows.map((item) => h("tr", row?.(item) ?? {}, columns.map((one, k) => cell(one, item, k)))))));
}

function compare(a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
}
