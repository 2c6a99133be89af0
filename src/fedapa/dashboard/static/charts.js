// Charts with plotly.js; loaded after the words and tables are there. Colours follow the page's theme.

const LIBRARY = "/static/plotly.js";

// Brought into the browser's cache early, run late: running it holds everything else up for a while.
export const fetchAhead = () => fetch(LIBRARY, { priority: "low" }).then((answer) => answer.arrayBuffer()).catch(() => {});

let loading;
function library() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = LIBRARY;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("plotly.js did not load"));
    document.head.append(script);
  });
  return loading;
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
// Plotly reads a few tags in text; a name must stay a name.
export const literal = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
export const short = (text, most = 22) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);
export const isNarrow = () => window.innerWidth < 700;

let turn = Promise.resolve();
const drawn = new Map(); // element: what it shows, to draw it again in another theme

// Traces and layout, or functions that make them for the theme of the moment; `traces` may make both at once.
export async function draw(node, traces, layout, words) {
  drawn.set(node, [traces, layout, words]);
  if (node.dataset.drawn && node.dataset.seen === "no") { stale.add(node); return; }
  const plotly = await library();
  await (turn = turn.then(() => new Promise((next) => setTimeout(next)))); // what is drawn is seen before the next one is
  if (!node.isConnected || drawn.get(node)?.[0] !== traces) return;
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", words);
  const made = typeof traces === "function" ? traces() : traces;
  const given = typeof layout === "function" ? layout() : layout;
  await plotly.react(node, made.traces ?? made, dressed(given ?? made.layout), {
    displayModeBar: false, responsive: true, showTips: false,
  });
  if (!node.dataset.drawn) {
    performance.mark("drawn");
    sight.observe(node);
  }
  node.dataset.drawn = String(Number(node.dataset.drawn ?? 0) + 1);
}

// What is out of sight is drawn once; what changes in it, when somebody scrolls there.
const stale = new Set();
const sight = new IntersectionObserver((changes) => {
  for (const { target, isIntersecting } of changes) {
    target.dataset.seen = isIntersecting ? "yes" : "no";
    if (isIntersecting && stale.delete(target)) draw(target, ...drawn.get(target));
  }
});

export const settled = () => turn;

export function redraw() {
  for (const [node, given] of drawn) if (node.isConnected) draw(node, ...given);
}

export function purge(root) {
  for (const node of drawn.keys()) {
    if (root.contains(node) || !node.isConnected) {
      window.Plotly?.purge(node);
      sight.unobserve(node);
      stale.delete(node);
      drawn.delete(node);
    }
  }
}

function dressed(layout) {
  const axis = {
    gridcolor: colour("grid"), linecolor: colour("line"), zerolinecolor: colour("line"), automargin: true,
    tickfont: { size: 11 }, title: { font: { size: 12 } }, fixedrange: true,
  };
  const legend = isNarrow()
    ? { orientation: "h", y: -0.2, yanchor: "top", x: 0, font: { size: 10 }, entrywidth: 88 }
    : { font: { size: 11 }, tracegroupgap: 2 };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, hovermode: "closest",
    font: { family: "system-ui, sans-serif", color: colour("ink"), size: 12 },
    margin: { l: 44, r: 12, t: 10, b: 36 },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } },
    ...layout,
    legend: { ...legend, ...layout.legend },
    xaxis: { ...axis, ...layout.xaxis },
    yaxis: { ...axis, ...layout.yaxis },
  };
}

// FedAPA, Local and FedAvg look the same everywhere; colours and dashes are told apart with any colour vision.
const LANDMARKS = { fedapa: ["one", "solid"], local: ["two", "dash"], fedavg: ["three", "dashdot"] };
const REST = [["four", "dot"], ["five", "12px,3px,3px,3px,3px,3px"], ["ink", "longdashdot"]];

export function looks(labels) {
  const found = {};
  let k = 0;
  for (const label of labels) {
    if (LANDMARKS[label]) found[label] = LANDMARKS[label];
    else found[label] = k < REST.length ? REST[k++] : ["other", "solid"];
  }
  return found;
}

export function line(x, y, name, [tone, dash], extra = {}) {
  return {
    type: "scatter", mode: x.length > 1 ? "lines" : "markers", x, y, name: literal(short(name)),
    line: { color: colour(tone), dash, width: tone === "other" ? 1.2 : 2 }, marker: { color: colour(tone), size: 7 },
    hovertemplate: `${literal(name)}<br>round %{x}: %{y:.2f}<extra></extra>`, ...extra,
  };
}

// From the least to the most, behind a line of the same look.
export function band(x, low, high, [tone], extra = {}) {
  return {
    type: "scatter", mode: "none", x: [...x, ...[...x].reverse()], y: [...high, ...[...low].reverse()], fill: "toself",
    fillcolor: `${colour(tone)}26`, hoverinfo: "skip", showlegend: false, ...extra,
  };
}

// Cividis: dark to light in order, for every kind of colour vision and in grey.
export const HEAT = "Cividis";

export function heat(matrix, order, names, low, top, what, withOwn = false) {
  const texts = order.map((i) => literal(short(names[i], 8)));
  const whole = order.map((i) => literal(names[i]));
  const room = 14 + 5.5 * Math.max(...order.map((i) => short(names[i], 8).length));
  const z = order.map((i) => order.map((j) => (i === j && !withOwn ? null : matrix[i][j])));
  const own = order.map((i) => matrix[i][i]);
  const text = order.map((i, a) => order.map((j, b) => `${whole[a]} ← ${whole[b]}: ${(a === b ? own[a] : matrix[i][j])?.toFixed(3)}`));
  return {
    traces: [{
      type: "heatmap", z, text, hovertemplate: `%{text}<extra>${what}</extra>`, zmin: low, zmax: top > low ? top : low + 1, colorscale: HEAT,
      xgap: order.length <= 40 ? 1 : 0, ygap: order.length <= 40 ? 1 : 0, showscale: true,
      colorbar: { thickness: 10, len: 0.9, outlinewidth: 0, tickfont: { size: 10 } },
    }],
    layout: {
      xaxis: ticks(texts, { side: "bottom", constrain: "domain", showgrid: false, zeroline: false, tickangle: -90 }),
      yaxis: ticks(texts, { autorange: "reversed", scaleanchor: "x", constrain: "domain", showgrid: false, zeroline: false }),
      margin: { l: room, r: 8, t: 6, b: room },
    },
  };
}

function ticks(texts, extra) {
  const step = Math.ceil(texts.length / (isNarrow() ? 14 : 25));
  const tickvals = texts.map((_, k) => k).filter((k) => k % step === 0);
  return { ...extra, tickvals, ticktext: tickvals.map((k) => texts[k]), tickfont: { size: 9 }, automargin: false };
}

// A bar for every client; those of one group have one colour.
export function bars(values, order, names, groups) {
  const tones = ["one", "two", "three", "four", "five"];
  const group = new Map(groups.flatMap((members, k) => members.map((i) => [i, k])));
  const where = (i) => (group.has(i) ? `group ${group.get(i) + 1}` : "in no group");
  return {
    traces: [{
      type: "bar", x: order.map((_, k) => k), y: order.map((i) => values[i]), hovertemplate: "%{text}<extra></extra>", textposition: "none",
      text: order.map((i) => `${literal(names[i])}: ${values[i]?.toFixed(1)} others, ${where(i)}`),
      marker: { color: order.map((i) => colour(group.has(i) ? tones[group.get(i) % tones.length] : "other")) },
    }],
    layout: { xaxis: ticks(order.map((i) => literal(short(names[i], 8))), { tickangle: -90, showgrid: false }), yaxis: { rangemode: "tozero" }, margin: { l: 36, r: 8, t: 8, b: 10 }, bargap: 0.2 },
  };
}

// Clients on a circle, similar ones side by side; the strongest weights of each as lines, thicker for more.
export function graph(matrix, order, names, low, top, chosen) {
  const n = order.length;
  const place = order.map((_, k) => [Math.sin((2 * Math.PI * k) / n), Math.cos((2 * Math.PI * k) / n)]);
  const at = new Map(order.map((i, k) => [i, place[k]]));
  const edges = [];
  for (const i of order) {
    const others = order.filter((j) => j !== i && matrix[i][j] > 0).sort((a, b) => matrix[i][b] - matrix[i][a]);
    for (const j of others.slice(0, chosen === i ? 8 : n <= 40 ? 3 : 1)) edges.push([i, j, matrix[i][j]]);
  }
  const share = (weight) => (weight - low) / Math.max(top - low, 1e-9);
  const buckets = [0.25, 0.5, 0.75, Infinity].map((limit, k) => ({
    type: "scatter", mode: "lines", x: [], y: [], hoverinfo: "skip", showlegend: false, limit, opacity: 0.2 + 0.2 * k,
    line: { width: (n <= 40 ? 1 : 0.4) * (0.6 + 1.1 * k), color: colour(k > 1 ? "one" : "muted") },
  }));
  const strong = { ...buckets[3], x: [], y: [], opacity: 1, line: { width: 2.6, color: colour("two") } };
  for (const [i, j, weight] of edges) {
    const bucket = i === chosen ? strong : buckets.find((one) => share(weight) <= one.limit);
    const [a, b] = [at.get(j), at.get(i)];
    for (let s = 0; s <= 12; s++) { // a bend towards the middle, so that lines of neighbours can be seen
      const t = s / 12, ends = [(1 - t) ** 2 + 0.3 * t * (1 - t), t ** 2 + 0.3 * t * (1 - t)];
      bucket.x.push(a[0] * ends[0] + b[0] * ends[1]);
      bucket.y.push(a[1] * ends[0] + b[1] * ends[1]);
    }
    bucket.x.push(null);
    bucket.y.push(null);
  }
  const own = order.map((i) => matrix[i][i]);
  const sources = order.map((i) => edges.filter((e) => e[0] === i).map((e) => `${literal(short(names[e[1]], 18))} ${e[2].toFixed(3)}`));
  const nodes = {
    type: "scatter", mode: n <= 40 ? "markers+text" : "markers", showlegend: false, x: place.map((p) => p[0]), y: place.map((p) => p[1]),
    customdata: order, text: order.map((i) => literal(short(names[i], 8))), textposition: place.map(([x, y]) => outside(x, y)), textfont: { size: 10 },
    marker: { size: n <= 40 ? 13 : 8, color: own, colorscale: HEAT, cmin: 0, cmax: 1, line: { width: order.map((i) => (i === chosen ? 3 : 1)), color: order.map((i) => colour(i === chosen ? "two" : "ink")) } },
    hovertext: order.map((i, k) => `<b>${literal(names[i])}</b> keeps ${own[k].toFixed(3)}<br>takes from ${sources[k].join(", ") || "nobody"}`),
    hovertemplate: "%{hovertext}<extra></extra>",
  };
  const bare = { visible: false, range: [-1.28, 1.28], automargin: false };
  return {
    traces: [...buckets, strong, nodes].map(({ limit, ...trace }) => trace),
    layout: { xaxis: bare, yaxis: { ...bare, scaleanchor: "x" }, margin: { l: 0, r: 0, t: 0, b: 0 }, showlegend: false },
  };
}

function outside(x, y) {
  const side = x > 0.3 ? " right" : x < -0.3 ? " left" : " center";
  return (y > 0.3 ? "top" : y < -0.3 ? "bottom" : "middle") + side;
}
