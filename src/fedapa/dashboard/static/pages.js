// The six pages. Each is made once in a root element and updated as often as something changes.
import { band, bars, colour, draw, graph, heat, isNarrow, line, literal, looks, short } from "./charts.js";
import {
  address, adjust, duration, empty, field, fill, get, go, h, here, number, select, signed, size, state, sureness, table, tile,
  trouble, whole,
} from "./dom.js";

const chart = (height, kind = "") => h("div", { class: `chart ${kind}`, style: `height:${height}px` });
const panel = (title, ...content) => h("section", { class: "panel" }, h("h2", {}, title), ...content);
const link = (page, changes, text, props = {}) => h("a", { href: address(page, changes, []), "data-in": "", ...props }, text);
// Scores: their name and unit, how many digits they have, and whether more is better.
const sign = (score) => (score.better === "lower" ? -1 : 1);
const unit = (score) => score?.unit || score?.name || "";
const valued = (score, value) => `${number(value, score.digits)}${score.unit ? ` ${score.unit}` : ""}`;
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const first = (score) => (score.better === "lower" ? "lowest" : "highest");
const points = (score) => (score.unit === "%" ? "points" : `${score.better === "lower" ? "less" : "more"} ${score.name}`);
const scoreAxis = (score) => ({ title: { text: `test ${score.name}${score.unit ? `, ${score.unit}` : ""}` }, rangemode: "normal" });
const better = (a, b) => sign(a.score) * (last(b) - last(a)); // best first
// Rounds are whole: steps of 1, 2 or 5 times a power of ten, at most eight of them.
export function roundAxis(rounds) {
  const span = Math.max(1, ...rounds) - Math.min(...rounds, Math.max(1, ...rounds));
  const rough = Math.max(1, span / (isNarrow() ? 5 : 8));
  const power = 10 ** Math.floor(Math.log10(rough));
  const dtick = Math.max(1, power * [1, 2, 5, 10].find((k) => k * power >= rough));
  return { title: { text: "round", standoff: 4 }, tickformat: "d", tick0: 0, dtick };
}
const all = (curves) => curves.flatMap((curve) => curve.rounds);

const PAGE = 50; // clients of a table that are shown at once
const PHASES = [["reported", "the one its paper reports"], ["before", "before local training"], ["after", "after local training"]];

// ---------------------------------------------------------------------------------------------------------- overview

export function overview(root) {
  const tiles = h("div", { class: "tiles" });
  const grid = h("div", {});
  const controls = h("div", { class: "controls" });
  const curves = chart(420, "tall");
  const notes = h("div", {});
  const methods = h("div", {});
  const heading = h("h2", {});
  const scores = h("section", { class: "panel" }, heading, controls, curves, notes);
  const comparison = panel("Methods", methods);
  const sites = h("div", {});
  const federation = panel("Sites", sites);
  fill(root, tiles, federation, panel("Runs", grid), scores, comparison);

  return (found) => {
    const { query } = here();
    const count = (word) => found.states[word] ?? 0;
    const open = ["running", "planned", "cut off"].map((word) => [count(word), word]).filter(([n]) => n);
    const scenario = found.scenarios.find((one) => one.title === query.get("scenario")) ?? busiest(found);
    fill(tiles,
      tile(`${count("finished")} of ${found.runs.length}`, "runs finished", open.map(([n, word]) => `${n} ${word}`).join(", ")),
      tile(found.rounds ? `${Math.floor((100 * found.rounds_done) / found.rounds)} %` : "–", "of all rounds", `${whole(found.rounds_done)} of ${whole(found.rounds)}`),
      tile(count("running") ? duration(found.seconds_left) : open.length ? "stopped" : "done", count("running") ? "left, about" : open.length ? "`fedapa resume` goes on" : "nothing left to do"),
      count("failed") + count("unreadable") ? tile(String(count("failed") + count("unreadable")), "failed or unreadable", "see Events") : null,
      ...bestTiles(scenario));
    federation.hidden = !found.sites.length;
    fill(sites, found.sites.length && found.sites.every((site) => ["unknown", "removed"].includes(site.state)) ? trouble("The SuperLink does not answer, so nobody knows who is online. `fedapa coordinator start` starts it.") : null, siteTable(found.sites));
    fill(grid, runGrid(found, query));
    scores.hidden = comparison.hidden = !scenario;
    if (!scenario) return;
    heading.textContent = capital(scenario.score.name);
    const phase = query.get("phase") ?? "reported";
    fill(controls,
      found.scenarios.length > 1 ? field("Scenario", select(found.scenarios.map((s) => [s.title, s.title]), scenario.title, (v) => adjust({ scenario: v }), { "data-key": "scenario" })) : null,
      field("Model", select(PHASES, phase, (v) => adjust({ phase: v === "reported" ? null : v }), { "data-key": "phase" })), zoomBox(scenario.score));
    fill(notes, scenario.notes.map((text) => h("p", { class: "quiet" }, text)));
    const ranked = [...scenario.methods].sort(better);
    const look = looks(ranked.map((row) => row.method));
    curves.style.height = `${Math.max(420, 19 * ranked.length + 70)}px`; // room for every name beside it
    draw(curves, () => ranked.flatMap((row) => {
      const curve = scenario.curves[row.method];
      const which = phase === "reported" ? row.evaluated : phase;
      const drawn = line(curve.rounds, curve[which], row.title, look[row.method], { legendgroup: row.method });
      return curve[`${which}_band`] ? [band(curve.rounds, ...curve[`${which}_band`], look[row.method], { legendgroup: row.method }), drawn] : [drawn];
    }), () => ({ xaxis: roundAxis(all(Object.values(scenario.curves))), yaxis: curveAxis(ranked), showlegend: ranked.length > 1 }), `${capital(scenario.score.name)} of ${ranked.length} methods over the rounds`);
    fill(methods, methodTable(ranked, query.get("sort"), (sort) => adjust({ sort })));
  };
}

// Where some methods end far below the rest, the top is worth a closer look.
function zoomBox(score) {
  if (score.unit !== "%") return null;
  const box = h("input", { type: "checkbox", "data-key": "zoom", checked: here().query.get("zoom") === "top", onchange: () => adjust({ zoom: box.checked ? "top" : null }) });
  return h("label", { class: "field" }, box, " only the top 8 points");
}

function curveAxis(rows) {
  const axis = scoreAxis(rows[0].score);
  const top = Math.max(...rows.map((row) => row[`${row.evaluated}_best`] ?? 0));
  return here().query.get("zoom") === "top" && rows[0].score.unit === "%" ? { ...axis, range: [top - 8, top + 0.5] } : axis;
}

const siteTable = (rows) => table([
  { key: "site", head: "site", text: true },
  { key: "state", head: "state", text: true, show: (r) => h("span", { class: `state ${{ online: "running", offline: "cut-off" }[r.state] ?? ""}` }, h("i", { "aria-hidden": "true" }, r.state === "online" ? "●" : "○"), r.state) },
  { key: "refusals", head: "refusals", show: (r) => h("span", { class: r.refusals ? "kind alarm" : null }, String(r.refusals)) },
  { key: "absent", head: "rounds absent" },
  { key: "MB", head: "moved", show: (r) => size((r.MB * 1e6) / 1024) },
  { key: "added", head: "since", text: true, show: (r) => r.added?.slice(0, 10) },
], rows, { caption: "Sites of the federation" });

const busiest = (found) => {
  const running = found.runs.find((run) => run.state === "running" && run.scenario)?.scenario;
  return found.scenarios.find((one) => one.title === running) ?? found.scenarios[0];
};
const last = (row) => row[`${row.evaluated}_last`] ?? -sign(row.score) * 1e300; // without a number: behind all others

function bestTiles(scenario) {
  if (!scenario) return [];
  const furthest = Math.max(...scenario.methods.map((row) => row.round));
  const level = scenario.methods.filter((row) => row.round === furthest); // methods at an earlier round are not compared
  const best = level.find((row) => row.standing === "best") ?? [...level].sort(better)[0];
  const { score } = scenario;
  const gain = level.filter((row) => row.gain_points != null && row.gain_round === furthest).sort((a, b) => b.gain_points - a.gain_points)[0];
  return [
    tile(valued(score, last(best)), `${best.title}: ${first(score)}${score.unit === "%" ? "" : ` ${score.name}`} in round ${furthest}`, `${best.evaluated} local training`),
    gain ? tile(signed(gain.gain_points, score.digits), `${points(score)}: ${gain.title} over Local`, `${gain.gain[0]} clients gain, ${gain.gain[2]} lose; ${sureness(gain.gain_p_adjusted) || gain.gain_note}`) : null,
  ];
}

function methodTable(rows, sort, onsort) {
  const { score } = rows[0];
  const spread = (row, phase) => [number(row[`${phase}_last`], score.digits), row[`${phase}_sd`] == null ? "" : ` ± ${number(row[`${phase}_sd`], score.digits)}`, row.evaluated === phase ? h("abbr", { title: "the paper of the method reports this one" }, "*") : null];
  return table([
    { key: "title", head: "method", text: true },
    { key: "allocations", head: "allocations" },
    { key: "rounds", head: "rounds", by: (r) => parseInt(r.rounds, 10) },
    { key: "before_last", head: `before ${unit(score)}`, show: (r) => h("span", {}, spread(r, "before")) },
    { key: "after_last", head: `after ${unit(score)}`, show: (r) => h("span", {}, spread(r, "after")) },
    { key: "best", head: `best ${unit(score)}`, show: (r) => number(r[`${r.evaluated}_best`], score.digits), by: (r) => r[`${r.evaluated}_best`] },
    { key: "worst_client", head: `worst client ${unit(score)}`, show: (r) => number(r.worst_client, score.is_share ? 1 : score.digits) },
    { key: "behind", head: `beside the ${first(score)}`, text: true, show: standing },
    { key: "gain_points", head: "over Local", show: (r) => r.gain_points == null ? "–" : h("span", { class: tone(r.gain_points), title: sureness(r.gain_p_adjusted) || r.gain_note }, signed(r.gain_points, score.digits), atRound(r)) },
    { key: "gain", head: "gain / equal / lose", by: (r) => r.gain?.[0], show: (r) => r.gain?.join(" / ") },
    { key: "kib", head: "per visit", show: (r) => size(r.kib) },
  ], rows, { sort, onsort, caption: "Methods of this scenario, last round" });
}

const standing = (row) => ({ best: `the ${first(row.score)}`, behind: `${number(row.behind, row.score.digits)} behind` })[row.standing] ?? row.standing;
const atRound = (row) => (row.gain_round == null || row.rounds.endsWith(`/${row.gain_round}`) ? "" : ` (round ${row.gain_round})`);

const tone = (value) => (value > 0 ? "up" : value < 0 ? "down" : null);

function progress(run) {
  const words = run.rounds ? `${run.done} / ${run.rounds}` : "–";
  return h("span", { class: "progress" }, h("progress", { value: run.done, max: run.rounds || 1, "aria-label": `rounds of ${run.name}` }), ` ${words}`);
}

// The unit of all runs; none where they differ.
function units(runs) {
  const found = new Set(runs.filter((run) => run.score).map((run) => unit(run.score)));
  return found.size === 1 ? [...found][0] : "";
}

// Many runs: one line per method with a cell per seed; few: a line per run.
function runGrid(found, query) {
  if (!found.runs.length) return empty("No run here yet. `fedapa run CONFIG --out DIR` makes some; this page will show them.");
  if (found.runs.length > 24 && query.get("runs") !== "list") {
    return [h("p", { class: "quiet" }, "Every square is a run (its seed); ", h("a", { href: "#", onclick: (e) => { e.preventDefault(); adjust({ runs: "list" }); } }, "show a list")), squares(found.runs)];
  }
  return table([
    { key: "name", head: "run", text: true, show: (r) => link("clients", { run: r.name }, r.name) },
    { key: "state", head: "state", text: true, show: (r) => h("span", { title: r.reason || null }, state(r.state)) },
    { key: "done", head: "rounds", show: progress },
    { key: "seconds_left", head: "left", show: (r) => duration(r.seconds_left) },
    { key: "before", head: `before ${units(found.runs)}`, show: (r) => number(r.before, r.score?.digits) },
    { key: "after", head: `after ${units(found.runs)}`, show: (r) => number(r.after, r.score?.digits) },
    { key: "mib", head: "moved", show: (r) => size(r.mib == null ? null : r.mib * 1024) },
  ], found.runs, { sort: query.get("by"), onsort: (by) => adjust({ by }), caption: "Runs of this folder" });
}

function squares(runs) {
  const groups = new Map();
  for (const run of runs) {
    const [folder, name] = run.name.includes("/") ? run.name.split(/\/(.*)/) : ["", run.name];
    const [, method, seed] = name.match(/^(.*?)(?:-seed(\d+))?$/);
    if (!groups.has(folder)) groups.set(folder, new Map());
    const methods = groups.get(folder);
    if (!methods.has(method)) methods.set(method, []);
    methods.get(method).push({ ...run, seed: seed ?? "·" });
  }
  const square = (run) => link("clients", { run: run.name }, [run.seed], {
    class: `square ${run.state.replace(" ", "-")}`, title: `${run.name}: ${run.state}, ${run.done} of ${run.rounds ?? "?"} rounds${run.reason ? `; ${run.reason}` : ""}`,
    "aria-label": `${run.name}: ${run.state}, ${run.done} of ${run.rounds ?? "?"} rounds`, style: `--share:${run.rounds ? Math.round((100 * run.done) / run.rounds) : 0}%`,
  });
  const legend = h("p", { class: "legend" }, ["finished", "running", "planned", "cut off", "failed", "unreadable"].filter((word) => runs.some((run) => run.state === word)).map(state));
  return [legend, ...[...groups].map(([folder, methods]) => h("div", { class: "grid" }, folder ? h("h3", {}, folder) : null,
    h("div", { class: "squares" }, [...methods].map(([method, mine]) => h("div", { class: "line" }, h("span", {}, method), h("span", { class: "cells" }, mine.map(square)))))))];
}

// ----------------------------------------------------------------------------------------------------- run picking

export function chosenRun(found, isFit = () => true) {
  const wanted = here().query.get("run");
  const runs = found.runs.filter(isFit);
  if (wanted) return found.runs.find((run) => run.name === wanted) ?? null;
  return runs.find((run) => run.state === "running") ?? runs.find((run) => run.label === "fedapa") ?? runs[0] ?? null;
}

function runPicker(found, run, isFit = () => true) {
  const options = found.runs.filter((one) => isFit(one) || one === run).map((one) => {
    const [folder, name] = one.name.includes("/") ? one.name.split(/\/(.*)/) : [null, one.name];
    return [one.name, `${name} · ${one.state}`, folder];
  });
  return field("Run", select(options, run?.name, (name) => adjust({ run: name, client: null, round: null }), { "data-key": "run", id: "run" }));
}

function noRun(found) {
  const wanted = here().query.get("run");
  return wanted ? trouble(`There is no run ${wanted} here.`) : empty("No run here yet.");
}

// ---------------------------------------------------------------------------------------------------------- clients

export function clients(root) {
  const controls = h("div", { class: "controls" });
  const list = h("div", {});
  const detail = h("div", { class: "detail", "aria-live": "polite" });
  const input = h("input", { type: "search", placeholder: "name", "aria-label": "Find a client", value: here().query.get("find") ?? "", oninput: () => adjust({ find: input.value, page: null }) });
  const count = h("span", { class: "quiet" });
  const search = h("div", { class: "controls" }, field("Find", input), count);
  const histogram = chart(190);
  const turnPage = h("div", { class: "controls pages" });
  fill(root, controls, h("div", { class: "split" }, panel("Clients", search, histogram, list, turnPage), detail));
  let shown = null;
  let charts = null;

  async function update(found) {
    const run = chosenRun(found);
    if (!run) return fill(list, noRun(found));
    fill(controls, runPicker(found, run), h("span", {}, state(run.state)), progress(run));
    const { query } = here();
    const chosen = query.has("client") ? Number(query.get("client")) : null;
    const closely = chosen ?? (isNarrow() ? null : 0);
    const [view, one] = await Promise.all([get("clients", { run: run.name }), closely == null ? null : get("client", { run: run.name, client: closely })]);
    if (view.trouble) { fill(detail); return fill(list, trouble(view.trouble)); }
    const wanted = (query.get("find") ?? "").toLowerCase();
    const matching = view.clients.filter((row) => row.name.toLowerCase().includes(wanted));
    update.rows = sorted(matching, query.get("sort"));
    const pages = Math.max(1, Math.ceil(update.rows.length / PAGE));
    const page = Math.min(Math.max(Number(query.get("page") ?? 1) || 1, 1), pages);
    search.hidden = view.clients.length <= PAGE;
    histogram.hidden = view.clients.length <= PAGE || !view.round;
    if (!histogram.hidden) draw(histogram, () => spread(view, run), () => ({ xaxis: { title: { text: `${run.evaluated ?? "after"} local training, ${unit(view.score)}` } }, yaxis: { title: { text: "clients" }, rangemode: "tozero" }, bargap: 0.04, margin: { l: 44, r: 8, t: 8, b: 40 } }), `How the ${view.score.name} of ${view.clients.length} clients is spread`);
    count.textContent = `${whole(update.rows.length)} of ${whole(view.clients.length)} clients`;
    fill(turnPage, pages < 2 ? null : [
      small("‹ before", () => adjust({ page: Math.max(1, page - 1) }), { "data-key": "page-before", disabled: page === 1 }), h("span", {}, ` page ${page} of ${pages} `),
      small("next ›", () => adjust({ page: Math.min(pages, page + 1) }), { "data-key": "page-next", disabled: page === pages })]);
    fill(list, view.clients.length ? h("p", { class: "quiet" }, view.round ? `After round ${view.round}. Choose a client to see it closely.` : "No evaluated round yet.") : empty("This run has not described its clients yet."),
      clientTable(view.clients, update.rows.slice((page - 1) * PAGE, page * PAGE), chosen, query.get("sort"), view.score));
    showClient(run, view.clients.length ? one : null);
  }
  update.step = (by) => {
    const rows = update.rows ?? [];
    const at = rows.findIndex((row) => String(row.client) === (here().query.get("client") ?? ""));
    const to = Math.min(Math.max(at + by, 0), rows.length - 1);
    if (rows[to]) adjust({ client: rows[to].client, page: to < PAGE ? null : Math.floor(to / PAGE) + 1 });
  };

  function showClient(run, one) {
    if (!one) { shown = null; return fill(detail); }
    if (one.trouble) { shown = null; return fill(detail, trouble(one.trouble)); }
    if (shown !== `${run.name} ${one.client}`) {
      charts = { title: h("h2", {}), score: h("h3", {}), what: h("h3", {}), facts: h("p", { class: "quiet" }), curve: chart(230), labels: chart(180), weights: chart(240), bytes: chart(170), none: h("p", { class: "empty" }), soon: h("p", { class: "empty" }, "No round yet."), still: h("p", { class: "empty" }, "Nothing yet.") };
      fill(detail, h("section", { class: "panel" }, charts.title, charts.facts,
        charts.score, charts.curve, charts.soon, charts.what, charts.labels,
        h("h3", {}, "Whose model it takes, round by round"), charts.weights, charts.none, h("h3", {}, "Sent and received"), charts.bytes, charts.still));
      shown = `${run.name} ${one.client}`;
      if (isNarrow() && here().query.has("client")) detail.scrollIntoView({ block: "start" });
    }
    charts.title.textContent = `Client ${one.name}`;
    charts.score.textContent = capital(one.score.name);
    charts.facts.textContent = `${whole(one.train)} train and ${whole(one.test)} test samples`;
    charts.soon.hidden = !(charts.curve.hidden = !one.rounds.length);
    charts.still.hidden = !(charts.bytes.hidden = !one.bytes.rounds.length);
    if (one.rounds.length) draw(charts.curve, () => [
      line(one.rounds, one.before, "before local training", ["two", "dash"]), line(one.rounds, one.after, "after local training", ["one", "solid"]),
    ], () => ({ xaxis: roundAxis(one.rounds), yaxis: scoreAxis(one.score), legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, entrywidth: 125 }, margin: { l: 44, r: 8, t: 26, b: 34 } }), `${capital(one.score.name)} of client ${one.name}`);
    const names = one.labels.map((_, k) => one.classes[k] ?? String(k));
    const isDeclared = one.labels.every((n) => n <= 1) && one.labels.reduce((a, b) => a + b, 0) < one.train; // sites do not count
    charts.what.textContent = isDeclared ? "Classes that it declared" : "Train samples of every class";
    draw(charts.labels, () => [{ type: "bar", x: names.map(literal), y: one.labels, marker: { color: colour("one") }, hovertemplate: isDeclared ? "%{x}<extra></extra>" : "%{x}: %{y}<extra></extra>" }],
      () => ({ xaxis: { type: "category", tickangle: names.length > 6 ? -45 : 0 }, yaxis: isDeclared ? { showticklabels: false, showgrid: false } : { title: { text: "samples" } } }), `${charts.what.textContent}, client ${one.name}`);
    charts.weights.hidden = !one.weights;
    charts.none.hidden = Boolean(one.weights);
    charts.none.textContent = "This method keeps no matrix of weights (FedAPA and FedAMP do).";
    if (one.weights) {
      const styles = [["one", "solid"], ["two", "dash"], ["three", "dashdot"], ["four", "dot"], ["five", "12px,3px,3px,3px,3px,3px"], ["ink", "longdashdot"]];
      draw(charts.weights, () => one.weights.lines.map((w, k) => line(one.weights.rounds, w.values, w.client === one.client ? "itself" : w.client == null ? w.name : `client ${w.name}`, w.client == null ? ["other", "solid"] : styles[k], { hovertemplate: `${literal(w.name)}<br>round %{x}: %{y:.4f}<extra></extra>` })),
        () => ({ xaxis: roundAxis(one.weights.rounds), yaxis: { title: { text: "weight" }, rangemode: "tozero" } }), `Weights of client ${one.name} over the rounds`);
    }
    if (one.bytes.rounds.length) draw(charts.bytes, () => [line(one.bytes.rounds, one.bytes.down, "received", ["three", "dash"], { hovertemplate: "received by round %{x}: %{y:,.0f} KiB<extra></extra>" }), line(one.bytes.rounds, one.bytes.up, "sent", ["four", "solid"], { hovertemplate: "sent by round %{x}: %{y:,.0f} KiB<extra></extra>" })],
      () => ({ xaxis: roundAxis(one.bytes.rounds), yaxis: { title: { text: "KiB, all rounds" }, rangemode: "tozero" }, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, margin: { l: 44, r: 8, t: 26, b: 34 } }), `Bytes of client ${one.name}`);
  }

  return update;
}

function clientColumns(score) {
  const digits = score?.is_share ? 1 : score?.digits;
  return [
    { key: "name", head: "client", text: true, show: (r) => h("a", { href: address("clients", { client: r.client }, ["run", "sort"]), "data-in": "", "data-key": `client-${r.client}` }, r.name) },
    { key: "train", head: "train", show: (r) => whole(r.train) },
    { key: "classes", head: "classes" },
    { key: "before", head: `before ${unit(score)}`, show: (r) => number(r.before, digits) },
    { key: "after", head: `after ${unit(score)}`, show: (r) => number(r.after, digits) },
    { key: "interval", head: "95 % interval", by: (r) => r.interval?.[0], show: (r) => h("span", { title: `exact, of ${whole(r.test)} test samples` }, r.interval ? `${number(r.interval[0], 0)} – ${number(r.interval[1], 0)}` : "–") },
    { key: "gain", head: "over Local", show: (r) => h("span", { class: tone(r.gain) }, signed(r.gain, digits)) },
    { key: "own", head: "own weight", show: (r) => number(r.own, 3) },
    { key: "visits", head: "visits" },
    { key: "kib", head: "moved", show: (r) => size(r.kib) },
    { key: "marks", head: "events", text: true, by: (r) => Object.values(r.marks).reduce((a, b) => a + b, 0), show: (r) => Object.entries(r.marks).map(([kind, n]) => `${n} × ${kind}`).join(", ") },
  ];
}

function sorted(rows, sort) {
  const key = (sort ?? "").replace(/^-/, "");
  const column = clientColumns().find((one) => one.key === key);
  if (!column) return rows;
  const value = column.by ?? ((one) => one[key]);
  const order = [...rows].sort((a, b) => (typeof value(a) === "string" ? value(a).localeCompare(value(b), "en", { numeric: true }) : (value(a) ?? Infinity) - (value(b) ?? Infinity)));
  return sort.startsWith("-") ? order.reverse() : order;
}

// How a score is spread over many clients: a bar per range.
function spread(view, run) {
  const values = view.clients.map((row) => row[run.evaluated ?? "after"]).filter((value) => value != null);
  return [{ type: "histogram", x: values, nbinsx: 20, marker: { color: colour("one") }, hovertemplate: "%{x}: %{y} clients<extra></extra>" }];
}

function clientTable(everybody, rows, chosen, sort, score) {
  const kept = clientColumns(score).filter((one) => one.key === "name" || everybody.some((r) => (one.key === "marks" ? Object.keys(r.marks).length : r[one.key] != null)));
  return table(kept, rows, {
    sort, onsort: (by) => adjust({ sort: by }), caption: "Clients",
    row: (r) => ({ class: r.client === chosen ? "chosen" : null, onclick: (e) => { if (!e.target.closest("a")) adjust({ client: r.client }); } }),
  });
}

// ---------------------------------------------------------------------------------------------------- collaboration

export function collaboration(root) {
  const controls = h("div", { class: "controls" });
  const slider = h("input", { type: "range", min: "0", max: "0", step: "1", id: "round", "aria-label": "Round" });
  const shownRound = h("output", { for: "round" });
  const play = h("button", { type: "button", "aria-pressed": "false" }, "▶ Play");
  const bar = h("div", { class: "controls" }, play, slider, shownRound);
  const message = h("div", {});
  const who = h("span", {});
  const maps = { A: chart(430, "even"), similar: chart(430, "even"), graph: chart(430, "even"), course: chart(430, "even"), partners: chart(260), moved: chart(260) };
  const grouped = h("p", {});
  const box = (title, text, node) => h("figure", { class: "panel" }, h("h2", {}, title), node, h("figcaption", { class: "quiet" }, text));
  const figures = h("div", { class: "pair" },
    box("Who learns from whom", "Row: a client. Column: whose model it takes, and how much. Its own weight is left out.", maps.A),
    box("Labels in common", "The share of labels that two clients have in common. Does the left look like the right?", maps.similar),
    box("As a graph", "Every client with the three that it takes most from (of many clients: the one); bright: keeps more of its own. Choose a client to follow it.", maps.graph),
    box("Over the rounds", "Own weight (mean; band: least to most), and how far weights follow similar labels (rank correlation).", maps.course),
    box("With how many others", "The effective number of others in every client's mixture: one where all comes from one other client, the more the more evenly it comes. Groups give each other more than 1.5 times an even share.", h("div", {}, maps.partners, grouped)),
    box("How it changes", "The effective number of others (mean over clients), and the share of all weight that went from one client to another since the round before.", maps.moved));
  fill(root, controls, message, bar, figures);
  let rounds = [];
  let timer = null;
  let view = null;
  let follow = null;
  let likeness = null; // the same in every round: sent once
  let shownLikeness = null;
  const cache = new Map();

  const hasWeights = (run) => run.has_weights;

  async function update(found) {
    const run = chosenRun(found, hasWeights) ?? chosenRun(found);
    if (!run) { figures.hidden = bar.hidden = true; return fill(message, noRun(found)); }
    fill(controls, runPicker(found, run, hasWeights), h("span", {}, state(run.state)),
      field("Order", select([["labels", "similar labels together"], ["number", "by number"]], here().query.get("order") ?? "labels", (v) => adjust({ order: v === "labels" ? null : v }), { "data-key": "order" })), who);
    const wanted = here().query.get("round");
    view = await moment(run, wanted, found.version);
    const hidden = view.trouble || !view.rounds.length;
    figures.hidden = bar.hidden = Boolean(hidden);
    if (hidden) return fill(message, view.trouble ? trouble(view.trouble) : empty("This method keeps no matrix of weights; FedAPA and FedAMP do. Choose one of their runs."));
    fill(message, view.blocks ? h("p", { class: "quiet" }, `${whole(view.blocks)} clients in ${view.names.length} blocks, similar labels together: a square is what a client of the row's block takes from all others of the column's block, on average. The page of clients shows one closely.`) : null);
    follow = here().query.has("client") && !view.blocks ? Number(here().query.get("client")) : null;
    fill(who, view.blocks ? null : field("Follow", select([["", "nobody"], ...view.names.map((name, i) => [String(i), short(name)])], String(follow ?? ""), (v) => adjust({ client: v }), { "data-key": "who" })));
    rounds = view.rounds;
    slider.max = String(rounds.length - 1);
    slider.value = String(rounds.indexOf(view.round));
    slider.setAttribute("aria-valuetext", `round ${view.round}`);
    const newest = rounds[rounds.length - 1];
    shownRound.textContent = `round ${view.round} of ${newest}${wanted ? "" : " (newest)"}`;
    show();
    const course = await get("course", { run: run.name });
    if (course.rounds?.length) {
      const band = [...course.rounds, ...[...course.rounds].reverse()];
      draw(maps.course, () => [
        { type: "scatter", x: band, y: [...course.most, ...[...course.least].reverse()], mode: "none", fill: "toself", fillcolor: colour("band"), hoverinfo: "skip", showlegend: false },
        line(course.rounds, course.mean, "own weight", ["one", "solid"], { hovertemplate: "own weight, round %{x}: %{y:.3f}<extra></extra>" }),
        ...(course.follows.length ? [line(course.rounds, course.follows, "follows labels", ["two", "dash"], { hovertemplate: "rank correlation, round %{x}: %{y:.3f}<extra></extra>" })] : []),
      ], () => ({ xaxis: roundAxis(course.rounds), yaxis: { range: [Math.min(0, ...course.follows.filter((v) => v != null)) - 0.03, 1.03] }, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, margin: { l: 44, r: 8, t: 26, b: 34 } }), "Own weights and rank correlation over the rounds");
      draw(maps.moved, () => [
        line(course.rounds, course.partners, "effective others", ["one", "solid"], { hovertemplate: "effective others, round %{x}: %{y:.1f}<extra></extra>" }),
        line(course.rounds, course.moved.map((v) => (v == null ? null : 100 * v)), "weight moved, %", ["two", "dash"], { yaxis: "y2", hovertemplate: "weight moved, round %{x}: %{y:.2f} %<extra></extra>" }),
      ], () => ({ xaxis: roundAxis(course.rounds), yaxis: { rangemode: "tozero" }, yaxis2: { overlaying: "y", side: "right", tickmode: "auto", nticks: 5, rangemode: "tozero", showgrid: false, automargin: true, fixedrange: true, tickfont: { size: 11 }, ticksuffix: " %" }, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, margin: { l: 40, r: 44, t: 26, b: 34 } }), "Effective number of others and weight moved over the rounds");
    }
  }

  // A round that is past does not change; the newest is asked for again.
  async function moment(run, wanted, version) {
    const key = `${run.name} ${wanted ?? `newest ${version}`}`;
    if (cache.size > 60) cache.clear();
    if (!cache.has(key) || cache.get(key).version !== version) {
      const found = await get("weights", { run: run.name, round: wanted, like: likeness?.like });
      if (found.order) likeness = { like: found.like, similar: found.similar, order: found.order };
      cache.set(key, { ...likeness, ...found, version });
    }
    return cache.get(key);
  }

  function show() {
    const order = here().query.get("order") === "number" ? view.order.map((_, k) => k).sort((a, b) => a - b) : view.order;
    const now = view;
    draw(maps.A, () => heat(now.A, order, now.names, now.low, now.top, "weight", Boolean(now.blocks)), null, `Weights of round ${now.round}`);
    const which = `${now.like} ${order}`;
    maps.similar.parentElement.hidden = !now.similar;
    if (now.similar && which !== shownLikeness) draw(maps.similar, () => heat(now.similar, order, now.names, 0, 1, "labels in common"), null, "Labels that clients have in common");
    shownLikeness = which;
    draw(maps.partners, () => bars(now.partners, order, now.names, now.groups), null, `Effective number of others of every client, round ${now.round}`);
    const alone = now.names.length - now.groups.flat().length;
    const told = now.groups.map((members) => members.map((i) => now.names[i]).join(", ")).join(" · ");
    grouped.textContent = now.groups.length ? `Groups in round ${now.round}: ${short(told, 600)}.${alone ? ` In none: ${whole(alone)} clients.` : ""}` : now.blocks ? "" : `No groups in round ${now.round}.`;
    draw(maps.graph, () => graph(now.A, order, now.names, now.low, now.top, follow), null, `Graph of the strongest weights of round ${now.round}`).then(() => {
      if (maps.graph.on && !maps.graph.dataset.heard) {
        maps.graph.dataset.heard = "yes";
        maps.graph.on("plotly_click", (event) => {
          const i = event.points.find((point) => point.customdata != null)?.customdata;
          if (i != null) adjust({ client: i === follow ? null : i });
        });
      }
    });
  }

  const stop = () => { clearInterval(timer); timer = null; play.textContent = "▶ Play"; play.setAttribute("aria-pressed", "false"); };
  const toRound = (k) => adjust({ round: k >= rounds.length - 1 ? null : rounds[Math.max(k, 0)] });
  slider.addEventListener("input", () => toRound(Number(slider.value)));
  play.addEventListener("click", () => {
    if (timer) return stop();
    play.textContent = "‖ Pause";
    play.setAttribute("aria-pressed", "true");
    let at = Number(slider.value) >= rounds.length - 1 ? 0 : Number(slider.value);
    toRound(at);
    timer = setInterval(() => {
      if (!root.isConnected || at >= rounds.length - 1) return stop();
      at = Math.min(at + Math.max(1, Math.round(rounds.length / 60)), rounds.length - 1);
      toRound(at);
    }, 400);
  });
  update.turn = (by) => toRound(Number(slider.value) + by);
  update.play = () => play.click();
  update.leave = stop;
  return update;
}

// ---------------------------------------------------------------------------------------------------------- compare

export function compare(root) {
  const picker = h("div", { class: "picker" });
  const controls = h("div", { class: "controls" });
  const curves = chart(420, "tall");
  const result = h("div", {});
  const picked = panel("Curves", controls, curves);
  const statistics = panel("Statistics", result);
  fill(root, h("details", { class: "panel", open: !isNarrow() || here().query.getAll("with").length === 0 }, h("summary", {}, h("h2", {}, "Runs")), picker), picked, statistics);

  return async (found) => {
    const { query } = here();
    const usable = found.runs.filter((run) => run.scenario);
    const given = query.getAll("with");
    const names = given.length ? given : usable.filter((run) => run.scenario === usable[0].scenario && ["fedapa", "local", "fedavg"].includes(run.label)).map((run) => run.name);
    const chosen = new Set(names.length ? names : usable.slice(0, 4).map((run) => run.name));
    fill(picker, usable.length ? groups(usable).map(([title, runs]) => h("fieldset", {}, h("legend", {}, title, " ",
      small("all", () => adjust({ with: [...new Set([...chosen, ...runs.map((r) => r.name)])] })), " ", small("none", () => adjust({ with: [...chosen].filter((n) => !runs.some((r) => r.name === n)) }))),
      runs.map((run) => {
        const box = h("input", { type: "checkbox", checked: chosen.has(run.name), "data-key": run.name, onchange: () => {
          if (box.checked) chosen.add(run.name); else chosen.delete(run.name);
          adjust({ with: [...chosen] });
        } });
        return h("label", {}, box, ` ${run.title} ${run.seed}`);
      }))) : empty("No run has an evaluated round yet."));
    const valid = [...chosen].filter((name) => found.runs.some((run) => run.name === name));
    picked.hidden = statistics.hidden = !valid.length;
    if (!valid.length) return;
    const against = query.get("against") ?? "local";
    const phase = query.get("phase") ?? "reported";
    const view = await get("compare", { run: valid, against });
    const labels = [...new Set(view.curves.map((c) => c.label))];
    const ranked = [...view.rows].sort(better).map((row) => row.method);
    const { score } = view.rows[0];
    const look = looks([...new Set(ranked)]);
    fill(controls, field("Model", select(PHASES, phase, (v) => adjust({ phase: v === "reported" ? null : v }), { "data-key": "phase" })),
      field("Against", select(labels.map((label) => [label, view.curves.find((c) => c.label === label).title]), against, (v) => adjust({ against: v }), { "data-key": "against" })), zoomBox(score));
    const named = (label) => view.rows.find((row) => row.method === label)?.title ?? label;
    const several = new Set(view.curves.map((c) => c.scenario)).size > 1;
    draw(curves, () => view.curves.map((c) => line(c.rounds, c[phase === "reported" ? c.evaluated : phase], `${c.title}, seed ${c.seed}${several ? `, ${c.scenario}` : ""}`, look[c.label])),
      () => ({ xaxis: roundAxis(all(view.curves)), yaxis: curveAxis(view.rows) }), `Curves of ${view.curves.length} runs`);
    fill(result, view.without_results.length ? h("p", { class: "quiet" }, `Without results yet: ${view.without_results.join(", ")}.`) : null,
      table([
        { key: "title", head: "method", text: true },
        ...(several ? [{ key: "scenario", head: "scenario", text: true }] : []),
        { key: "allocations", head: "allocations" },
        { key: "round", head: "round" },
        { key: "last", head: `last ${unit(score)}`, show: (r) => number(last(r), score.digits), by: last },
        { key: "interval", head: "95 % interval", by: (r) => r[`${r.evaluated}_low`], show: (r) => (r[`${r.evaluated}_low`] == null ? "–" : `${number(r[`${r.evaluated}_low`], score.is_share ? 1 : score.digits)} – ${number(r[`${r.evaluated}_high`], score.is_share ? 1 : score.digits)}`) },
        { key: "tail", head: `last five ${unit(score)}`, show: (r) => number(r[`${r.evaluated}_tail`], score.digits), by: (r) => r[`${r.evaluated}_tail`] },
        { key: "best", head: `best ${unit(score)}`, show: (r) => number(r[`${r.evaluated}_best`], score.digits), by: (r) => r[`${r.evaluated}_best`] },
        { key: "worst_tenth", head: `worst tenth ${unit(score)}`, show: (r) => number(r.worst_tenth, score.is_share ? 1 : score.digits) },
        { key: "behind", head: `beside the ${first(score)}`, text: true, show: standing },
        { key: "gain_points", head: `over ${named(against)}`, by: (r) => r.gain_points, show: (r) => r.gain_points == null ? "–" : h("span", { class: tone(r.gain_points) }, signed(r.gain_points, score.digits), atRound(r)) },
        { key: "gain_low", head: "95 % interval", show: (r) => (r.gain_low == null ? "–" : `${signed(r.gain_low, score.digits)} – ${signed(r.gain_high, score.digits)}`) },
        { key: "gain", head: "gain / equal / lose", by: (r) => r.gain?.[0], show: (r) => r.gain?.join(" / ") },
        { key: "gain_p_adjusted", head: "paired t, Holm", show: (r) => sureness(r.gain_p_adjusted) || (r.gain_note ? h("span", { class: "quiet" }, r.gain_note) : "–") },
        { key: "seconds", head: "time", show: (r) => duration(r.seconds) },
      ], view.rows, { sort: query.get("sort") ?? (score.better === "lower" ? "last" : "-last"), onsort: (sort) => adjust({ sort }), caption: "Statistics of the chosen runs" }),
      h("p", { class: "quiet" }, "Intervals and tests are over allocations, at least three; clients of one allocation are counted, not tested. p is adjusted over the methods of a scenario (Holm)."),
      view.ranks ? h("p", { class: "quiet" }, `Mean ranks over the scenarios, ${view.ranks.allocations} of the allocations each: ${Object.entries(view.ranks.mean_rank).sort((a, b) => a[1] - b[1]).map(([m, r]) => `${named(m)} ${r.toFixed(1)}`).join(", ")}${view.ranks.p == null ? "" : `; Friedman ${sureness(view.ranks.p)}`}${view.ranks.difference == null ? "" : `; less than ${view.ranks.difference.toFixed(1)} apart: not told apart (Nemenyi)`}.`) : null);
  };
}

const small = (text, onclick, props = {}) => h("button", { type: "button", class: "small", onclick, ...props }, text);

function groups(runs) {
  const found = new Map();
  for (const run of runs) found.set(run.scenario, [...(found.get(run.scenario) ?? []), run]);
  return [...found];
}

// --------------------------------------------------------------------------------------------------- events, config

export function events(root) {
  const controls = h("div", { class: "controls" });
  const list = h("div", {});
  fill(root, controls, panel("Events", list));
  return async (found) => {
    const { query } = here();
    const run = query.get("run");
    const view = await get("events", { run });
    const kinds = [...new Set(view.events.map((event) => event.kind))].sort();
    const kind = query.get("kind") ?? "";
    fill(controls,
      field("Run", select([["", "all runs"], ...found.runs.map((one) => [one.name, one.name])], run ?? "", (v) => adjust({ run: v }), { "data-key": "run" })),
      field("Kind", select([["", "all kinds"], ...kinds.map((word) => [word, word])], kind, (v) => adjust({ kind: v }), { "data-key": "kind" })));
    const rows = view.events.filter((event) => !kind || event.kind === kind);
    if (!rows.length) return fill(list, empty("Nothing happened that is worth a line."));
    const columns = [
      { key: "kind", head: "what", text: true, show: (e) => h("span", { class: `kind ${["failed", "refused", "unreadable", "warning", "cut off"].includes(e.kind) ? "alarm" : ""}` }, e.kind) },
      { key: "run", head: "run", text: true, show: (e) => link("clients", { run: e.run }, e.run) },
      { key: "round", head: "round" },
      { key: "client", head: "client", text: true },
      { key: "text", head: "", text: true, show: (e) => h("span", { class: "long" }, e.text) },
      { key: "when", head: "when", text: true, show: (e) => (e.when ? e.when.slice(0, 19).replace("T", " ") : null) },
    ];
    if (isNarrow()) columns.splice(1, 0, ...columns.splice(columns.findIndex((one) => one.key === "text"), 1)); // what happened is seen without scrolling
    fill(list, table(columns.filter((one) => rows.some((row) => row[one.key] != null)), rows, { sort: query.get("sort"), onsort: (sort) => adjust({ sort }), caption: "Events" }), view.left_out ? h("p", { class: "quiet" }, `${whole(view.left_out)} more are in the run.db files.`) : null);
  };
}

export function config(root) {
  const controls = h("div", { class: "controls" });
  const body = h("div", {});
  fill(root, controls, body);
  return async (found) => {
    const run = chosenRun(found);
    if (!run) return fill(body, noRun(found));
    fill(controls, runPicker(found, run), h("span", {}, state(run.state)));
    const view = await get("config", { run: run.name });
    const facts = (entries) => h("dl", { class: "facts" }, entries.map(([key, value]) => h("div", {}, h("dt", {}, breakable(key)), h("dd", {}, words(value)))));
    const flat = ([name, value]) => (isTable(value) ? Object.entries(value).map(([key, one]) => [`${name}.${key}`, one]) : [[name, value]]);
    const about = Object.entries(view.about ?? {}).filter(([key, value]) => value && key !== "status");
    fill(body, view.trouble ? trouble(view.trouble) : null,
      h("div", { class: "pair" },
        panel("Config", facts(Object.entries(view.tables).flatMap(flat)), h("details", {}, h("summary", {}, "config.toml"), h("pre", {}, view.text))),
        h("div", {}, panel("What run.db says of itself", about.length ? facts(about) : empty("Nothing yet.")),
          panel("Where it ran", Object.keys(view.environment).length ? facts(Object.entries(view.environment).flatMap(flat)) : empty("Not noted.")))));
  };
}

const breakable = (key) => key.split(/(?<=[._])/).flatMap((part) => [h("wbr", {}), part]);
const isTable = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const words = (value) => (Array.isArray(value) ? value.map(words).join(", ") : isTable(value) ? JSON.stringify(value) : String(value));
