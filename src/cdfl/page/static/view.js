// The panels of one run. `refresh` brings all of them up to a moment, one a frame; nothing else draws.

import { Bars, Curves } from "./charts.js";
import { ClientList, Glance } from "./clients.js";
import { clusterColor, make, say } from "./dom.js";
import { OUTCOMES, RATED, RECENT } from "./model.js";
import { count, gainWords, number, OUTCOME_WORDS, percent, reasonWords, SCORE_DASHES, SCORE_WORDS, sentence } from "./words.js";

const LINES = 40; // of the feed that are in the document
const SEARCHED = 3000; // of the feed that are looked through for notable ones
const FEWEST = 10; // uploads before shares of them are worth a warning;
const [MANY_REJECTED, MANY_STALE] = [0.1, 0.2]; // of the last RECENT uploads: more are, as in cdfl/report/findings.py
let views = 0;

export class RunView {
  constructor(run, openClient) {
    this.run = run;
    this.root = document.getElementById("run-template").content.firstElementChild.cloneNode(true);
    this.openClient = openClient;
    const id = `run-${views++}`;
    this.part(".run-title").id = `${id}-title`;
    this.root.setAttribute("aria-labelledby", `${id}-title`);
    this.root.querySelectorAll("section").forEach((section, place) => {
      const heading = section.querySelector("h3");
      heading.id = `${id}-${place}`;
      section.setAttribute("aria-labelledby", `${heading.id} ${id}-title`);
    });
    this.root.querySelector(".rows").id = `${id}-rows`;
    this.isBuilt = false;
  }

  part(selector) {
    return this.root.querySelector(selector);
  }

  // Make the panels, once the number of clusters is known.
  build() {
    const { run } = this;
    this.isBuilt = true;
    this.K = run.K;
    this.list = new ClientList(this.root, run, (number) => this.openClient(run, number));
    this.glance = new Glance(this.part(".glance"), run);
    const legend = run.clusterNames.map((name, k) => {
      const swatch = make("span", { class: "swatch" });
      swatch.style.background = `var(${clusterColor(k)})`;
      return make("li", {}, swatch, name);
    });
    this.part(".legend.clusters").replaceChildren(...legend);
    say(this.part(".clients .explain"), `A column of the strip and a row of the list are a client: the estimate from its last upload${run.simulated ? ", and the truth" : ""}. Click one for its history.`);
    if (run.simulated) this.part(".legend.clusters").append(mixtureKey());
    say(this.part(".columns .mixtures"), run.simulated ? "mixture (true, estimate)" : "mixture (estimate)");
    const metric = run.metric.name;
    this.replies = new Curves(this.part(".replies .chart"), { label: "Do new models help", y: metric });
    say(this.part(".replies .explain"), run.simulated
      ? `At each upload three models of the client are tested on held-out data like its newest: the old model, which it has; own training, which it makes of that and uploads; and the new model, which it is sent. Mean ${metric} of the last ${RECENT} uploads; ${run.metric.higher_is_better ? "higher" : "lower"} is better.`
      : `Clients report with an upload what the one before it did: the loss on the data that they trained on, with the old model and with the new one. Mean of the last ${RECENT} uploads; lower is better.`);
    this.fleet = new Curves(this.part(".fleet .chart"), { label: "Mean share of each cluster", y: "share", stacked: true, size: "low" });
    this.losses = new Curves(this.part(".losses .chart"), { label: "Cluster models", y: run.simulated ? metric : "loss" });
    this.uploads = new Curves(this.part(".uploads .chart"), { label: "Outcomes of uploads", y: "share", stacked: true, size: "low" });
    this.staleness = new Bars(this.part(".staleness .chart"), { label: "Staleness", x: "staleness (epochs)", y: "uploads", size: "low" });
    this.what = run.simulated ? "score" : "loss";
    this.buildChoice();
    this.part(".notable").addEventListener("change", () => this.feedLines());
    this.panels = [
      [
        (shown) => this.tiles(shown),
        (shown) => this.banner(shown),
        (shown) => this.replyCurves(shown),
        () => this.fleetCurves(),
        () => this.clusterCurves(),
        (shown) => this.matrices(shown),
        (shown) => this.outcomeCurves(shown),
        (shown) => this.stalenessBars(shown),
      ],
      [(shown) => this.clients(shown)],
      [(shown) => this.feedLines(shown)],
    ];
  }

  destroy() {
    for (const chart of this.charts()) chart?.remove();
    this.root.remove();
  }

  charts() {
    return [this.replies, this.fleet, this.losses, this.uploads, this.staleness];
  }

  // Write all numbers at once, so that they agree; then draw one chart a frame.
  *refresh(shown, ranges) {
    if (!this.run.columns) return;
    if (!this.isBuilt) this.build();
    this.ranges = ranges;
    this.shown = shown;
    this.at = shown < this.run.length ? shown : null;
    for (const panels of this.panels) {
      for (const panel of panels) panel(shown);
      yield;
    }
    for (const chart of this.charts()) if (chart.draw()) yield;
  }

  tiles(shown) {
    const { run } = this;
    say(this.part(".run-title"), this.ranges.several ? `${run.name}: ${run.title}` : run.title);
    say(this.part(".about"), run.about);
    const scores = run.scores(shown);
    const rate = run.rate(shown, run.state === "live" && this.at === null ? Date.now() / 1000 : undefined);
    const [applied, stale, rejected] = run.outcomes(shown);
    const last = run.clusterState(shown, "scores");
    const estimates = run.estimates(shown);
    const all = run.numberAt(shown).toLocaleString("en");
    const loaded = run.skipped ? `; this page has the last ${(run.numberAt(shown) - run.skipped).toLocaleString("en")}` : "";
    const tiles = [["uploads", all, run.planned ? `of ${run.planned.toLocaleString("en")}` : `all so far${loaded}`]];
    tiles.push(["clients", (run.simulated ? run.numUploaders(shown) : run.numClients).toLocaleString("en"),
      run.simulated ? `of ${run.numClients.toLocaleString("en")} have uploaded` : "have joined"]);
    const reply = scores[run.reply];
    if (!Number.isNaN(reply)) {
      const own = Number.isNaN(scores.before) ? "" : `, own training ${number(scores.before)}`;
      tiles.push([`${run.metric.name} of new models`, number(reply), `old models ${number(scores.held)}${own}`]);
    }
    if (last) tiles.push([`${run.metric.name} of cluster models`, number(mean(last.scores)), `worst ${number(extreme(run, last.scores, false))}, best ${number(extreme(run, last.scores, true))}`]);
    if (estimates) tiles.push(["largest share right", percent(estimates.right), `of the last ${Math.min(shown, RECENT)} estimates; mixture error (KL) ${number(estimates.error, 2)}, 0 is exact`]);
    tiles.push([run.simulated ? "uploads a virtual second" : "uploads a second", number(rate, 1), `in the last ${count(Math.min(shown, RATED), "upload")}`]);
    tiles.push(["uploads applied", applied.toLocaleString("en"), `${stale.toLocaleString("en")} too stale, ${rejected.toLocaleString("en")} rejected${loaded && ", of those"}`]);
    const box = this.part(".tiles");
    while (box.children.length > tiles.length) box.lastChild.remove();
    tiles.forEach(([name, value, more], place) => {
      let tile = box.children[place];
      if (!tile) {
        tile = make("div", {}, make("dt"), make("dd", {}, make("span"), make("small")));
        box.append(tile);
      }
      say(tile.children[0], name);
      say(tile.children[1].children[0], value);
      say(tile.children[1].children[1], more);
    });
  }

  // Say that many of the last uploads changed nothing, and what to do.
  banner(shown) {
    const { run } = this;
    const [, stale, rejected] = run.outcomes(shown, RECENT);
    const recent = Math.min(run.numberAt(shown) - run.skipped, RECENT);
    const parts = [];
    if (recent >= FEWEST && rejected > MANY_REJECTED * recent) {
      const [[why] = [""]] = run.reasons(shown, RECENT);
      parts.push(`${rejected} of the last ${count(recent, "upload")} were rejected (most often ${reasonWords(run, why).replace("it was told", "their clients were told")}). ${run.simulated
        ? "Look at what the defence refuses below, or change it."
        : "Order the clients by “rejected or too stale first”. Of one that you trust, check data, labels and learning rate; if nothing is wrong with them, --accept-all turns the guard off. Of one that you do not trust, revoke the token."}`);
    }
    if (recent >= FEWEST && stale > MANY_STALE * recent) {
      parts.push(`${stale} of the last ${count(recent, "upload")} were too stale and changed no cluster: raise max_staleness, or let clients upload sooner after they download.`);
    }
    const banner = this.part(".banner");
    say(banner, parts.join(" "));
    banner.hidden = !parts.length;
  }

  clients(shown) {
    const { run } = this;
    const glides = this.at === null; // under the slider, a bar jumps: gliding would lag behind
    this.part(".rows").classList.toggle("still", !glides);
    const isEstimated = !run.simulated || run.fleetBins.has(0) || !run.length;
    if (run.simulated) say(this.part(".key .words"), isEstimated ? "thick: estimate" : "no estimate: this algorithm makes none");
    this.list.update(shown);
    this.glance.update(shown, this.list.order, glides);
  }

  replyCurves(shown) {
    const { run } = this;
    const named = run.scoreNames();
    this.replies.nothing(named.length ? "" : run.simulated ? "No uploads yet." : "No client has reported yet. `cdfl join` reports by default, a Client with report=True.");
    const now = run.scores(shown);
    say(this.part(".replies .answer"), answer(run, now));
    if (!named.length) return;
    const curves = named.map(([name, i]) => ({
      label: SCORE_WORDS[name], points: run.scoreBins.points(i, RECENT), colorName: `--${name}`, dash: SCORE_DASHES[name],
      width: name === run.reply ? 3 : 2, value: number(now[name]),
    }));
    this.replies.update(curves, { ...this.moment(), range: this.ranges.scores });
  }

  fleetCurves() {
    const { run } = this;
    say(this.part(".fleet .explain"), run.skipped
      ? "Mean of the newest estimates of the clients whose uploads this page has."
      : "Mean of the newest estimates of all clients that have uploaded.");
    this.fleet.nothing(run.fleetBins.has(0) ? "" : run.length ? "This algorithm estimates no mixtures." : "No uploads yet.");
    if (!run.fleetBins.has(0)) return;
    const areas = run.clusterNames.map((name, k) => {
      const points = run.fleetBins.points(k);
      return { label: name, points, colorName: clusterColor(k), width: 1, value: percent(this.valueAt(points)) };
    });
    this.fleet.update(areas, this.moment());
  }

  buildChoice() {
    const box = this.part(".losses .choice");
    const options = this.run.simulated ? [["score", this.run.metric.name], ["loss", "loss"]] : [["loss", "loss"]];
    box.hidden = options.length < 2;
    box.replaceChildren(...options.map(([what, words]) => {
      const button = make("button", { type: "button", "aria-pressed": String(what === this.what) }, words);
      button.addEventListener("click", () => {
        this.what = what;
        this.losses.name("y", words);
        for (const other of box.children) other.setAttribute("aria-pressed", String(other === button));
        this.clusterCurves();
        this.losses.draw();
      });
      return button;
    }));
  }

  // The value of a curve at the moment that is shown.
  valueAt(points) {
    return (points.findLast((point) => point.x <= this.shown) ?? points[0])?.y;
  }

  // What all curves over uploads share.
  moment() {
    return { at: this.at, last: this.ranges.last, version: `${this.run.version} ${this.what}` };
  }

  clusterCurves() {
    const { run } = this;
    const bins = this.what === "score" ? run.clusterScoreBins : run.lossBins;
    say(this.part(".losses .explain"), this.what === "score"
      ? `Each cluster model on held-out data of its cluster: ${run.metric.name}, ${run.metric.higher_is_better ? "higher" : "lower"} is better.`
      : "Loss of each cluster model on the server's samples of its cluster, lower is better.");
    this.losses.nothing(bins.bins.length ? "" : "Nothing yet.");
    if (!bins.bins.length) return;
    const dashes = ["solid", "dashed", "dotted"];
    const curves = run.clusterNames.map((name, k) => {
      const points = bins.points(k);
      return { label: name, points, colorName: clusterColor(k), dash: dashes[Math.floor(k / 8) % 3], value: number(this.valueAt(points)) };
    });
    this.losses.update(curves, this.moment());
  }

  matrices(shown) {
    const { run } = this;
    const [losses, distances] = [run.clusterState(shown, "matrix"), run.clusterState(shown, "distances")];
    const seen = `${losses?.epoch} ${distances?.epoch}`;
    if (this.matricesSeen === seen) return;
    this.matricesSeen = seen;
    const box = this.part(".matrices");
    if (!losses && !distances) {
      say(this.part(".apart .explain"), "Not measured yet.");
      return;
    }
    say(this.part(".apart .explain"), apartWords(run, losses?.matrix));
    const tables = [];
    const when = ({ position }) => (position ? `after upload ${run.numberAt(position).toLocaleString("en")}` : "at the start");
    if (losses) tables.push(table(run, losses.matrix, `Loss of each model (row) on each cluster's samples (column), ${when(losses)}; framed: the lowest of its row`, { best: "row" }));
    if (distances) tables.push(table(run, distances.distances, `Distance between cluster models, ${when(distances)}`, {}));
    box.replaceChildren(...tables.map((each) => make("div", { class: "scroll", tabIndex: 0, role: "group", "aria-label": each.caption.textContent }, each)));
  }

  outcomeCurves(shown) {
    const { run } = this;
    const counts = run.outcomes(shown);
    this.uploads.nothing(run.length ? "" : "No uploads yet.");
    if (!run.length) return;
    const curves = OUTCOMES.map((name, i) => ({
      label: OUTCOME_WORDS[name], points: run.outcomeBins.points(i, RECENT), colorName: `--${name}`, width: 1, value: counts[i].toLocaleString("en"),
    }));
    this.uploads.update(curves, this.moment());
    say(this.part(".uploads .explain"), `The chart: shares among the last ${RECENT} uploads. The numbers: how many ${run.skipped ? "on this page" : "in all"}.`);
    const items = run.reasons(shown).slice(0, 5);
    const untold = counts[2] - run.reasons(shown).reduce((sum, [, times]) => sum + times, 0);
    this.part(".reasons").replaceChildren(...items.map(([why, times]) => make("li", {}, `${times.toLocaleString("en")} rejected: ${run.simulated ? why : `told “${why}”`}`)),
      ...(untold > 0 ? [make("li", {}, `${untold.toLocaleString("en")} rejected before: the server keeps the reason of each client's last one`)] : []));
  }

  stalenessBars(shown) {
    const bins = this.run.stalenessHistogram(shown);
    this.staleness.nothing(shown ? "" : "No uploads yet.");
    if (!shown) return;
    const labels = bins.map(({ low, high }) => (low === high ? `${low}` : `${low}–${high}`));
    this.staleness.update(labels, [{ label: "uploads", values: bins.map(({ count }) => count), colorName: "--quiet" }], { legend: false });
  }

  feedLines(shown = this.shown) {
    const { run } = this;
    const onlyNotable = this.part(".notable").checked;
    const box = this.part(".lines");
    const wanted = [];
    let looked = 0;
    for (let i = lastEntry(run.log, shown); i >= 0 && wanted.length < LINES && looked < SEARCHED; i--, looked++) {
      const said = sentence(run, run.log[i]);
      if (!onlyNotable || said.weight !== "usual") wanted.push([i, run.log[i], said]);
    }
    // Lines that are there already are kept: new ones come in above them.
    const kept = new Map([...box.children].map((line) => [line.dataset.key, line]));
    const lines = wanted.map(([i, entry, said]) => kept.get(`${i} ${said.words}`) ?? this.line(i, entry, said));
    const isSame = lines.length === box.children.length && lines.every((line, place) => line === box.children[place]);
    if (!isSame) box.replaceChildren(...lines);
  }

  line(i, entry, said) {
    const { run } = this;
    const when = run.numberAt(entry.position + (entry.kind === "upload" ? 1 : 0)).toLocaleString("en");
    const item = make("li", {}, make("span", { class: "when" }, when));
    item.dataset.key = `${i} ${said.words}`;
    if (said.client) {
      const button = make("button", { type: "button" }, said.client);
      button.addEventListener("click", () => this.openClient(run, entry.client));
      item.append(button, " ");
    }
    item.append(make("span", { class: said.weight }, said.words));
    return item;
  }
}

// The index of the last entry of the log that happened before `shown` uploads were over.
function lastEntry(log, shown) {
  let [low, high] = [0, log.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    const entry = log[middle];
    if (entry.kind === "upload" ? entry.position < shown : entry.position <= shown) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// How true and estimated mixtures are drawn everywhere: the truth thin and above, the estimate thick and below.
export function mixtureKey() {
  return make("li", { class: "key" }, make("i", { class: "thin" }), "thin: true", make("i"), make("span", { class: "words" }, "thick: estimate"));
}

export function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function extreme(run, scores, isBest) {
  return run.metric.higher_is_better === isBest ? Math.max(...scores) : Math.min(...scores);
}

// What the scores say, in one sentence.
function answer(run, scores) {
  const [now, old, own] = [scores[run.reply], scores.held, scores.before];
  if (Number.isNaN(now) || Number.isNaN(old)) return "";
  const better = (other) => (now - other) * (run.metric.higher_is_better ? 1 : -1);
  const against = (other, name) => `${gainWords(run, better(other))} than ${name}`.replace("as good than", "as good as");
  const parts = [against(old, "old ones")];
  if (!Number.isNaN(own)) parts.push(against(own, "own training"));
  return `${better(old) >= 5e-4 ? "Yes" : "No"}: new models are ${parts.join(", ")}.`;
}

function table(run, values, caption, { best }) {
  const finite = values.flat().filter((value) => value !== null && Number.isFinite(value));
  const most = Math.max(...finite, 1e-12);
  const head = make("tr", {}, make("td"), ...run.clusterNames.map((name) => make("th", { scope: "col" }, name)));
  const rows = values.map((row, k) => {
    const lowest = Math.min(...row.filter((value) => value !== null));
    const cells = row.map((value) => {
      const cell = make("td", {}, number(value, most < 10 ? 3 : 1));
      cell.style.background = `rgba(var(--heat), ${((value ?? 0) / most * 0.45).toFixed(3)})`;
      if (best === "row" && value === lowest) cell.className = "low";
      return cell;
    });
    return make("tr", {}, make("th", { scope: "row" }, run.clusterNames[k]), ...cells);
  });
  return make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...rows));
}

// One sentence: which clusters cannot be told apart.
function apartWords(run, matrix) {
  if (!matrix) return "";
  const close = [];
  for (let k = 0; k < matrix.length; k++) {
    for (let j = k + 1; j < matrix.length; j++) {
      const [own, other] = [matrix[k][k] + matrix[j][j], matrix[k][j] + matrix[j][k]];
      if (other < 1.1 * own) close.push(`${run.clusterNames[k]} and ${run.clusterNames[j]}`);
    }
  }
  if (!close.length) return "Every cluster's model is clearly better on its own samples than the other models.";
  return `These clusters can hardly be told apart: ${close.join("; ")}.`;
}
