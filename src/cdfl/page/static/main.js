// The page: reads where events come from, keeps the moment that is shown, and draws.

import { Bars, Curves, rgb, themeChanged } from "./charts.js";
import { clusterColor, make, runColors, say } from "./dom.js";
import { OUTCOMES, RECENT, SCORES } from "./model.js";
import { ServerSource, watchRuns } from "./source.js";
import { mixtureKey, RunView } from "./view.js";
import { count, gainWords, mixtureWords, number, OUTCOME_WORDS, percent, SCORE_DASHES, SCORE_WORDS } from "./words.js";

const REFRESH_MS = 400; // between two refreshes while events come
const IDLE_MS = 5000; // and while none come from a server: times since uploads grow
const PLAY_SECONDS = 30; // to play a whole run
const MOST_OPEN = 4; // runs that are shown side by side without being asked
const HISTORY_BARS = 40; // uploads in the chart of one client
const HISTORY_ROWS = 100;

const byId = (id) => document.getElementById(id);
const runs = [];
const views = new Map(); // run -> RunView
const page = { shown: null, isPlaying: false, seen: -1, client: null, frames: 0, longest: 0 };

// -- the moment that is shown

const slider = byId("slider");
const longest = () => runs.reduce((most, run) => Math.max(most, run.length), 0);
const shownOf = (run) => (page.shown === null ? run.length : Math.min(page.shown, run.length));

function setMoment(value) {
  page.shown = value >= longest() ? null : value;
  page.seen = -1; // draw now
  showMoment();
}

function showMoment() {
  const end = longest();
  slider.max = end;
  if (page.shown === null) slider.value = end;
  else if (Number(slider.value) !== page.shown) slider.value = page.shown;
  const now = page.shown ?? end;
  const serial = (at) => (runs.length === 1 && runs[0].columns ? runs[0].numberAt(at) : at).toLocaleString("en");
  const words = `upload ${serial(now)} of ${serial(end)}`;
  say(byId("moment"), words);
  slider.setAttribute("aria-valuetext", words);
  byId("latest").disabled = page.shown === null;
  byId("time").hidden = end === 0;
}

slider.addEventListener("input", () => {
  play(false);
  setMoment(Number(slider.value));
});
byId("latest").addEventListener("click", () => {
  play(false);
  setMoment(Infinity);
});
byId("play").addEventListener("click", () => play(!page.isPlaying));

function play(isPlaying) {
  page.isPlaying = isPlaying;
  const button = byId("play");
  button.setAttribute("aria-pressed", String(isPlaying));
  say(button, isPlaying ? "Pause" : "Play");
  if (isPlaying && page.shown === null) setMoment(0);
}

// -- theme

byId("theme").addEventListener("change", (event) => {
  const theme = event.target.value;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  repaint();
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

function repaint() {
  themeChanged();
  for (const view of views.values()) if (view.glance) view.glance.isMoving = true;
}

// -- drawing

let pending = null; // the rest of a refresh: one panel a frame
let nextRefresh = 0;
let lastFrame = 0;

function frame(now) {
  page.frames++;
  if (page.isPlaying) advance(now - lastFrame);
  lastFrame = now;
  const version = runs.reduce((sum, run) => sum + run.version, 0);
  const isOld = now >= nextRefresh + IDLE_MS && runs.some((run) => run.state === "live");
  if (!pending && (isOld || (version !== page.seen && (page.seen === -1 || now >= nextRefresh)))) {
    page.seen = version;
    nextRefresh = now + REFRESH_MS;
    pending = refresh();
  }
  if (pending?.next().done) pending = null;
  for (const view of views.values()) {
    if (view.glance) view.glance.frame(Array.from({ length: view.K }, (_, k) => rgb(clusterColor(k))), rgb("--line"));
  }
  requestAnimationFrame(frame);
}

function advance(milliseconds) {
  const step = (longest() / PLAY_SECONDS / 1000) * milliseconds;
  page.exact = Math.max(page.exact ?? 0, page.shown ?? 0) + step;
  if (Math.abs(page.exact - (page.shown ?? 0)) > 2 * step + 1) page.exact = (page.shown ?? 0) + step;
  if (page.exact >= longest()) {
    play(false);
    setMoment(Infinity);
  } else if (Math.floor(page.exact) !== page.shown && !pending) setMoment(Math.floor(page.exact));
}

function* refresh() {
  showState();
  showMoment();
  const ranges = { last: longest(), scores: scoreRange(), several: runs.length > 1 };
  for (const [run, view] of views) {
    if (view.isBuilt && view.K !== run.K) rebuild(run, view); // the run was begun again with other clusters
    yield* views.get(run).refresh(shownOf(run), ranges);
  }
  showTogether(ranges);
  if (page.client) showClient();
}

// All runs share one range, so that they can be compared.
function scoreRange() {
  let [low, high] = [Infinity, -Infinity];
  for (const run of views.keys()) {
    if (!run.columns) continue;
    for (const [, i] of run.scoreNames()) {
      for (const { y } of run.scoreBins.points(i, RECENT)) [low, high] = [Math.min(low, y), Math.max(high, y)];
    }
  }
  if (!(high >= low)) return null;
  const step = 10 ** Math.floor(Math.log10(high - low || Math.abs(high) || 1)) / 2;
  return [Math.floor(low / step) * step, Math.ceil(high / step) * step].map((value) => Number(value.toPrecision(6)));
}

function rebuild(run, view) {
  const fresh = new RunView(run, openClient);
  view.root.before(fresh.root);
  view.destroy();
  views.set(run, fresh);
}

function showState() {
  const states = new Set(runs.map((run) => run.state));
  const state = ["away", "loading", "running", "live", "finished"].find((each) => states.has(each)) ?? "loading";
  const words = { away: "waiting", loading: "loading", running: "running", live: "live", finished: "finished" }[state];
  const element = byId("state");
  element.dataset.state = state;
  say(element, words);
  const title = runs.length === 1 ? runs[0].title : `${runs.length} runs`;
  say(byId("title"), title);
  document.title = `${title} · cdfl`;
}

let together = null;

function showTogether(ranges) {
  const drawn = [...views.keys()].filter((run) => run.columns);
  byId("together").hidden = drawn.length < 2;
  if (drawn.length < 2) return;
  const metric = drawn[0].metric;
  together ??= new Curves(byId("together-chart"), { label: `Mean ${metric.name} of new models`, y: metric.name });
  say(byId("together-explain"), `${metric.name[0].toUpperCase()}${metric.name.slice(1)} of new models on held-out data, mean of the last ${RECENT} uploads; ${metric.higher_is_better ? "higher" : "lower"} is better.`);
  const dashes = ["solid", "dashed", "dotted"];
  const colors = runColors(drawn.map((run) => run.algorithm));
  const curves = drawn.map((run, place) => ({
    label: run.name, points: run.scoreBins.points(SCORES.indexOf(run.reply), RECENT), colorName: colors[place],
    dash: dashes[place % 3], value: number(run.scores(shownOf(run))[run.reply]),
  }));
  together.update(curves, { at: page.shown, last: ranges.last });
  together.draw();
}

// -- one client

const dialog = byId("client");
let clientCharts = null;

function openClient(run, number) {
  page.client = { run, number };
  page.clientSeen = "";
  clientCharts ??= {
    truth: new Bars(byId("client-truth"), { label: "True mixture at each upload", y: "true", size: "thin", shares: true, gapless: true }),
    mixtures: new Bars(byId("client-mixtures"), { label: "Estimate at each upload", x: "its uploads, in order", y: "estimate", size: "thick", shares: true }),
    scores: new Curves(byId("client-scores"), { label: "Scores at each upload", x: "its uploads, in order", y: run.metric.name, size: "low", aligned: true }),
  };
  showClient();
  if (!dialog.open) dialog.showModal();
}

dialog.addEventListener("close", () => { page.client = null; });

function showClient() {
  const { run, number: which } = page.client;
  const shown = shownOf(run);
  const client = run.client(which, shown);
  const all = run.uploadsOf[which].filter((position) => position < shown);
  const seen = `${run.name} ${which} ${all.length} ${run.version > 0 && all.at(-1)}`;
  if (page.clientSeen === seen) return;
  page.clientSeen = seen;
  say(byId("client-title"), run.names[which]);
  const nowWords = client && `Estimate: ${mixtureWords(run, client.mixture)}. ${client.truth ? `Truth: ${mixtureWords(run, client.truth)}. ` : ""}`;
  say(byId("client-now"), client ? `${nowWords}${count(all.length, "upload")}${run.skipped ? " on this page" : ""}.` : "It has not uploaded yet.");
  byId("client-legend").replaceChildren(...(client?.truth ? [mixtureKey()] : []));
  const recent = all.slice(-HISTORY_BARS);
  const first = all.length - recent.length + 1; // the place of the first one that is drawn
  say(byId("client-mixtures-title"), recent.length < all.length ? `Mixture at its last ${recent.length} uploads` : "Mixture at each upload");
  for (const [chart, column] of [[clientCharts.truth, run.columns.truth], [clientCharts.mixtures, run.columns.mixture]]) {
    const isKnown = recent.some((at) => !Number.isNaN(column.row(at)[0]));
    chart.nothing(isKnown ? "" : chart === clientCharts.truth ? " " : "No mixture is estimated.");
    if (!isKnown) continue;
    const sets = run.clusterNames.map((name, k) => ({ label: name, values: recent.map((at) => column.row(at)[k]), colorName: clusterColor(k), value: percent(column.row(recent.at(-1))[k]) }));
    chart.update(recent.map((_, place) => first + place), sets);
    chart.draw();
  }
  byId("client-truth").hidden = !run.simulated;
  const named = run.scoreNames((i) => all.some((at) => !Number.isNaN(run.columns.scores.row(at)[i])));
  clientCharts.scores.name("y", run.metric.name);
  say(byId("client-scores-title"), run.simulated ? `Its ${run.metric.name} on held-out data` : "What it reports: loss on its own data");
  say(byId("client-scores-explain"), run.simulated
    ? `Three models at each upload, tested on data like its newest: old model, own training, new model; ${run.metric.higher_is_better ? "higher" : "lower"} is better.`
    : "At each upload: what the one before it did, from the old model to the new one; lower is better.");
  clientCharts.scores.nothing(named.length ? "" : "It has not reported.");
  if (named.length) {
    clientCharts.scores.update(named.map(([name, i]) => {
      const points = recent.map((at, place) => ({ x: first + place, y: run.columns.scores.row(at)[i] })).filter(({ y }) => !Number.isNaN(y));
      return { label: SCORE_WORDS[name], points, colorName: `--${name}`, dash: SCORE_DASHES[name], value: number(points.at(-1)?.y) };
    }), { first: first - 0.5, last: all.length + 0.5 });
    clientCharts.scores.draw();
  }
  const head = ["its upload", "upload of all", "outcome", "staleness (epochs)", "estimate", run.simulated ? "new model against old" : "its upload before: new model against old"];
  const rows = all.slice(-HISTORY_ROWS).reverse().map((at, back) => {
    const gain = run.gain(at);
    const cells = [run.numberAt(at + 1).toLocaleString("en"), OUTCOME_WORDS[OUTCOMES[run.columns.outcome.at(at)]], String(run.columns.staleness.at(at)),
      mixtureWords(run, Number.isNaN(run.columns.mixture.row(at)[0]) ? null : run.columns.mixture.row(at)), Number.isNaN(gain) ? "–" : gainWords(run, gain)];
    return make("tr", {}, make("th", { scope: "row" }, String(all.length - back)), ...cells.map((text) => make("td", {}, text)));
  });
  byId("client-uploads").replaceChildren(
    make("caption", {}, "Newest first"),
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...rows),
  );
}

// -- where events come from

function sayWhy(words) {
  say(byId("message"), words && `${words[0].toUpperCase()}${words.slice(1)}.`.replace(/\.\.$/, "."));
  byId("message").hidden = !words;
}

function askForToken(refused) {
  const signIn = byId("sign-in");
  say(byId("sign-in-refused"), refused);
  byId("token").value = "";
  if (!signIn.open) signIn.showModal();
  return new Promise((resolve) => {
    byId("sign-in-form").onsubmit = (event) => {
      event.preventDefault();
      const token = byId("token").value.trim();
      byId("token").value = "";
      signIn.close();
      resolve(token);
    };
    signIn.oncancel = (event) => event.preventDefault(); // there is nothing to show without it
  });
}

// Show these runs, in their order; the others keep reading.
function setViews(chosen) {
  for (const [run, view] of views) {
    if (!chosen.includes(run)) {
      view.destroy();
      views.delete(run);
    }
  }
  const kept = new Map(views);
  views.clear();
  for (const run of chosen) views.set(run, kept.get(run) ?? new RunView(run, openClient));
  byId("runs").append(...[...views.values()].map((view) => view.root));
  byId("runs").classList.toggle("one", views.size === 1);
  pending = null;
  page.seen = -1;
}

function buildPicker() {
  const picker = byId("picker");
  picker.hidden = runs.length < 2;
  const boxes = runs.map((run, place) => make("input", { type: "checkbox", checked: place < MOST_OPEN }));
  boxes.forEach((box, place) => {
    box.addEventListener("change", () => setViews(runs.filter((_, other) => boxes[other].checked)));
    picker.append(make("label", {}, box, ` ${runs[place].name}`));
  });
}

async function begin() {
  const config = await (await fetch("page/config.json")).json();
  byId("docs-link").hidden = config.kind !== "server";
  if (config.kind === "server") new ServerSource(askForToken, sayWhy).watch(runs);
  else watchRuns(config, runs);
  buildPicker();
  setViews(runs.slice(0, MOST_OPEN));
  requestAnimationFrame(frame);
}

// For tests and benchmarks.
const isSettled = () => !pending && page.seen === runs.reduce((sum, run) => sum + run.version, 0);
window.cdfl = { runs, views, page, setMoment, isSettled };
begin();
