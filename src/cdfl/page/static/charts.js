// Curves, bars and their legends, drawn by Chart.js. The legend is a list beside the chart, with the values at the moment
// that is shown; the same numbers can be opened as a table.

import { make, say } from "./dom.js";
import { number, percent } from "./words.js";

const charts = new Set();
const resolved = new Map(); // the colours of the present theme
const probe = make("span", { hidden: true });

// light-dark() and other functions are computed by the browser: ask it for the colour that it would use.
export function rgb(name) {
  if (!resolved.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(${name})`;
    resolved.set(name, getComputedStyle(probe).color);
  }
  return resolved.get(name);
}

export function themeChanged() {
  resolved.clear();
  for (const chart of charts) chart.restyle();
}

const DASHES = { solid: [], dashed: [6, 4], dotted: [2, 3] };

class Drawing {
  // `size`: low, thin or thick, as in style.css
  constructor(place, { label, size = "" }) {
    this.label = label;
    this.isDirty = false;
    this.plot = make("div", { class: `plot ${size}` });
    this.canvas = make("canvas", { role: "img", "aria-label": label });
    this.cursor = make("i", { class: "cursor", hidden: true }); // a line at the moment that is shown
    this.plot.append(this.canvas, this.cursor);
    this.side = make("ul", { class: "side" });
    this.empty = make("p", { class: "empty", hidden: true });
    this.numbers = make("details", {}, make("summary", {}, "Numbers"));
    this.numbers.addEventListener("toggle", () => this.fillTable());
    place.replaceChildren(this.plot, this.side, this.empty, this.numbers);
    this.curves = [];
    charts.add(this);
  }

  remove() {
    charts.delete(this);
    this.chart?.destroy();
  }

  restyle() {
    if (!this.chart) return;
    for (const scale of Object.values(this.chart.options.scales)) {
      scale.ticks.color = rgb("--quiet");
      scale.grid.color = rgb("--line");
      if (scale.title) scale.title.color = rgb("--quiet");
    }
    this.paint();
    this.chart.update("none");
  }

  axes(x, y) {
    const axis = (title, more) => ({
      ticks: { color: rgb("--quiet"), maxTicksLimit: 7, ...more?.ticks },
      grid: { color: rgb("--line") },
      title: { display: Boolean(title), text: title, color: rgb("--quiet") },
      ...more,
    });
    return { x: axis(x.title, x.more), y: axis(y.title, y.more) };
  }

  // Draw what the last update brought; return whether there was something to draw. Drawing is what costs time, so it
  // is apart from the update, which writes all numbers.
  draw() {
    const { isDirty } = this;
    this.isDirty = false;
    if (isDirty) this.chart.update("none");
    this.placeCursor();
    return isDirty;
  }

  placeCursor() {}

  // Name an axis, x or y.
  name(axis, words) {
    const { title } = this.chart.options.scales[axis];
    if (title.text !== words) this.isDirty = true;
    Object.assign(title, { text: words, display: Boolean(words) });
  }

  // Show a sentence in place of a chart that has nothing to draw.
  nothing(words) {
    say(this.empty, words);
    this.empty.hidden = !words;
    this.plot.hidden = this.side.hidden = this.numbers.hidden = Boolean(words);
  }

  legend(entries) {
    while (this.side.children.length > entries.length) this.side.lastChild.remove();
    entries.forEach(({ label, colorName, dash, value }, place) => {
      let item = this.side.children[place];
      if (!item) {
        item = make("li", {}, make("span", { class: "mark" }), make("span", { class: "label" }), make("span", { class: "value" }));
        this.side.append(item);
      }
      item.children[0].style.borderTopColor = `var(${colorName})`;
      item.children[0].style.borderTopStyle = dash ?? "solid";
      item.children[0].classList.toggle("area", Boolean(this.stacked));
      say(item.children[1], label);
      say(item.children[2], value ?? "");
    });
  }

  fillTable() {
    this.table?.remove();
    if (!this.numbers.open) return;
    this.table = this.tableOf();
    this.numbers.append(this.table);
  }
}

const AXIS = 62; // width in pixels of the y axes of charts that stand below one another
const WHOLE = { maxTicksLimit: 6, includeBounds: false, callback: (value) => (Number.isInteger(value) ? value : "") };
const SHARES = { stacked: true, min: 0, max: 1, ticks: { stepSize: 0.5, callback: (value) => percent(value) } };
const ALIGNED = { afterFit: (scale) => { scale.width = AXIS; } };

// Curves over the number of uploads. Stacked ones lie in the order of the legend: the first is on top.
export class Curves extends Drawing {
  constructor(place, { label, x = "uploads", y = "", size = "", stacked = false, range = null, aligned = false }) {
    super(place, { label, size });
    const more = { type: "linear", min: 0, ticks: { color: rgb("--quiet"), ...WHOLE } };
    const scales = this.axes({ title: x, more }, { title: y, more: { ...(stacked ? SHARES : {}), ...(aligned ? ALIGNED : {}) } });
    this.stacked = stacked;
    if (range) Object.assign(scales.y, { min: range[0], max: range[1] });
    this.chart = new Chart(this.canvas, {
      type: "line",
      data: { datasets: [] },
      options: {
        animation: false, responsive: true, maintainAspectRatio: false, parsing: false, normalized: true, scales,
        events: ["mousemove", "mouseout", "touchstart", "touchmove"],
        interaction: { mode: "nearest", axis: "x", intersect: false },
        elements: { point: { radius: 0, hitRadius: 6, hoverRadius: 3 } },
        plugins: {
          legend: { display: false },
          tooltip: { animation: false, callbacks: { label: (item) => ` ${item.dataset.label}: ${number(item.parsed.y)}`, title: (items) => `upload ${items[0]?.parsed.x ?? ""}` } },
        },
      },
    });
  }

  // `curves`: label, points, colorName, dash, width, value (in the legend); `at` is the moment that is shown, or null.
  // Where `version` is that of the last update, only the values and the moment are new, and nothing is drawn again.
  update(curves, { at = null, first = 0, last = null, range = null, version = null } = {}) {
    this.curves = curves;
    this.drawn = this.stacked ? [...curves].reverse() : curves;
    this.at = at;
    this.legend(curves);
    const seen = version === null ? null : `${version} ${first} ${last} ${range}`;
    if (seen !== null && seen === this.seen) return;
    this.seen = seen;
    const sets = this.chart.data.datasets;
    sets.length = curves.length;
    this.drawn.forEach((curve, place) => {
      sets[place] ??= {};
      Object.assign(sets[place], { label: curve.label, data: curve.points, borderWidth: this.stacked ? 0 : curve.width ?? 2 });
      sets[place].borderDash = DASHES[curve.dash ?? "solid"];
      sets[place].fill = this.stacked ? (place === 0 ? "origin" : "-1") : false;
    });
    this.paint();
    const { scales } = this.chart.options;
    scales.x.min = first;
    if (last !== null) scales.x.max = Math.max(last, 1);
    if (range) Object.assign(scales.y, { min: range[0], max: range[1] });
    const ends = curves.filter((curve) => curve.points.length).map((curve) => `${curve.label} ${number(curve.points.at(-1).y)}`);
    this.canvas.setAttribute("aria-label", `${this.label}. Latest: ${ends.join(", ") || "nothing yet"}.`);
    this.isDirty = true;
    if (this.numbers.open) this.fillTable();
  }

  placeCursor() {
    const isShown = this.at !== null && this.at !== undefined;
    this.cursor.hidden = !isShown;
    if (!isShown) return;
    const { top, bottom } = this.chart.chartArea;
    const x = this.chart.scales.x.getPixelForValue(this.at);
    Object.assign(this.cursor.style, { transform: `translate(${x}px, ${top}px)`, height: `${bottom - top}px` });
  }

  paint() {
    this.chart.data.datasets.forEach((set, place) => {
      const shade = rgb(this.drawn[place].colorName);
      set.borderColor = shade;
      set.backgroundColor = shade.replace("rgb(", "rgba(").replace(")", ", .8)");
      set.pointBackgroundColor = shade;
    });
  }

  tableOf() {
    const longest = this.curves.reduce((best, curve) => (curve.points.length > best.length ? curve.points : best), []);
    const step = Math.max(1, Math.ceil(longest.length / 12));
    const rows = longest.filter((_, i) => i % step === 0 || i === longest.length - 1);
    const head = make("tr", {}, make("th", { scope: "col" }, "uploads"), ...this.curves.map((curve) => make("th", { scope: "col" }, curve.label)));
    const body = rows.map(({ x }) =>
      make("tr", {}, make("th", { scope: "row" }, String(x)), ...this.curves.map((curve) => {
        const point = curve.points.findLast((one) => one.x <= x) ?? curve.points[0];
        return make("td", {}, number(point?.y));
      })),
    );
    return make("table", {}, make("caption", {}, this.label), make("thead", {}, head), make("tbody", {}, ...body));
  }
}

// Bars with names below them. `shares` are stacked in the order of the legend: the first is on top.
export class Bars extends Drawing {
  constructor(place, { label, x = "", y = "", size = "", shares = false, gapless = false }) {
    super(place, { label, size });
    const scales = this.axes({ title: x, more: { stacked: shares, ticks: { color: rgb("--quiet"), display: Boolean(x) } } },
      { title: y, more: shares ? { ...SHARES, ...ALIGNED } : { beginAtZero: true, ticks: { color: rgb("--quiet"), precision: 0, maxTicksLimit: 5 } } });
    this.width = gapless ? 1 : 0.8; // of a bar
    this.stacked = shares;
    this.chart = new Chart(this.canvas, {
      type: "bar",
      data: { labels: [], datasets: [] },
      options: {
        animation: false, responsive: true, maintainAspectRatio: false, scales,
        plugins: { legend: { display: false }, tooltip: { animation: false } },
      },
    });
  }

  // `sets`: label, values, colorName, value (in the legend)
  update(labels, sets, { legend = true } = {}) {
    this.curves = sets;
    this.drawn = this.stacked ? [...sets].reverse() : sets;
    this.legend(legend ? sets : []);
    this.side.hidden = !legend;
    this.chart.data.labels = labels;
    const held = this.chart.data.datasets;
    held.length = sets.length;
    this.drawn.forEach((set, place) => {
      held[place] ??= {};
      Object.assign(held[place], { label: set.label, data: set.values, categoryPercentage: 1, barPercentage: this.width });
    });
    this.paint();
    this.canvas.setAttribute("aria-label", `${this.label}: ${labels.length} columns.`);
    this.isDirty = true;
    if (this.numbers.open) this.fillTable();
  }

  paint() {
    this.chart.data.datasets.forEach((set, place) => {
      const shade = rgb(this.drawn[place].colorName);
      set.backgroundColor = shade;
      set.borderColor = rgb("--panel");
    });
  }

  tableOf() {
    const head = make("tr", {}, make("th", { scope: "col" }, ""), ...this.curves.map((set) => make("th", { scope: "col" }, set.label)));
    const body = this.chart.data.labels.map((label, i) =>
      make("tr", {}, make("th", { scope: "row" }, String(label)), ...this.curves.map((set) => make("td", {}, number(set.values[i], 2)))));
    return make("table", {}, make("caption", {}, this.label), make("thead", {}, head), make("tbody", {}, ...body));
  }
}
