// Numbers and events in plain words.

import { mainCluster, OUTCOMES } from "./model.js";

// Which model of a client is tested, in the order of time; cdfl/run_series.py has the same words.
export const SCORE_WORDS = { held: "old model", before: "own training", after: "new model", served: "new model, with experts" };
export const SCORE_DASHES = { held: "dotted", before: "dashed", after: "solid", served: "solid" };
export const OUTCOME_WORDS = { applied: "applied", deprecated: "too stale", rejected: "rejected" };

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value !== 0 && Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  if (value !== 0 && Math.abs(value) < 10 ** -digits) return value.toExponential(1);
  return value.toFixed(digits);
}

export function percent(share, digits = 0) {
  return Number.isNaN(share) ? "–" : `${(100 * share).toFixed(digits)} %`;
}

// A difference of scores: shares differ by points, other metrics by their own unit.
export function gainWords(run, gain) {
  const amount = isShare(run.metric) ? `${(100 * Math.abs(gain)).toFixed(1)} points` : number(Math.abs(gain));
  if (Math.abs(gain) < 5e-4) return "as good";
  return `${amount} ${gain > 0 ? "better" : "worse"}`;
}

export function isShare(metric) {
  return ["accuracy", "precision", "recall", "f1", "auc"].includes(metric.name.toLowerCase());
}

export function mixtureWords(run, mixture) {
  if (!mixture) return "no mixture";
  return Array.from(mixture, (share, k) => [share, k])
    .filter(([share]) => share >= 0.05)
    .sort(([one], [other]) => other - one)
    .map(([share, k]) => `${run.clusterNames[k]} ${percent(share)}`.replaceAll(" ", "\u00a0"))
    .join(", ");
}

// Whether the largest estimated share of a client changed with an upload: [from, to], or null.
export function move(run, position, previous) {
  if (previous < 0) return null;
  const [then, now] = [run.columns.mixture.row(previous), run.columns.mixture.row(position)];
  if (Number.isNaN(then[0]) || Number.isNaN(now[0])) return null;
  const [from, to] = [mainCluster(then), mainCluster(now)];
  return from === to ? null : [from, to];
}

// One line of the feed: the client, the words, and how much it matters: usual, moved or trouble.
export function sentence(run, entry) {
  const client = entry.client === undefined ? "" : run.names[entry.client];
  if (entry.kind === "joined") return { client, words: "joined", weight: "usual" };
  if (entry.kind === "diverged") {
    return { client, words: "its training diverged; the upload was refused and nothing changed", weight: "trouble" };
  }
  if (entry.kind === "note") return { client, words: entry.words, weight: "trouble" };
  const { position, previous } = entry;
  const outcome = OUTCOMES[run.columns.outcome.at(position)];
  const staleness = run.columns.staleness.at(position);
  if (outcome === "rejected") {
    return { client, words: `its upload was rejected: ${reasonWords(run, entry.why)}`, weight: "trouble" };
  }
  if (outcome === "deprecated") {
    return { client, words: `its upload was too stale, ${count(staleness, "epoch")} old, and changed no cluster`, weight: "trouble" };
  }
  const moved = move(run, position, previous);
  const names = run.clusterNames;
  const mixture = run.columns.mixture.row(position);
  let words = "uploaded";
  if (moved) words = `moved from ${names[moved[0]]} to ${names[moved[1]]} (${percent(mixture[moved[1]])})`;
  else if (!Number.isNaN(mixture[0])) {
    const main = mainCluster(mixture);
    words = `${previous < 0 ? "estimated" : "stays"} mostly ${names[main]} (${percent(mixture[main])})`;
  }
  const gain = run.gain(position);
  if (!Number.isNaN(gain)) {
    words += run.simulated
      ? `; its new model is ${gainWords(run, gain)} than the old one`.replace("as good than", "as good as")
      : `; it reports ${reported(run, position)}`;
  }
  return { client, words, weight: moved ? "moved" : "usual" };
}

// The first part of a reason; the rest is advice to the client, to whom a server says it.
export function reasonWords(run, why) {
  const words = (why || "refused by the defence").split(";")[0];
  return run.simulated ? words : `it was told “${words}”`;
}

function reported(run, position) {
  const [held, , after] = run.columns.scores.row(position);
  return `that its upload before this one took its loss from ${number(held)} (old model) to ${number(after)} (new model)`;
}

export function count(value, thing) {
  return `${value.toLocaleString("en")} ${thing}${value === 1 ? "" : "s"}`;
}

// Seconds since a moment, in words.
export function ago(seconds) {
  if (!(seconds >= 0)) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}
