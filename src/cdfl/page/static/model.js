// What is known of one run or server. Nothing here touches the page, so it can be tested on its own.
//
// Uploads are numbered by their position, 0, 1, 2, ... in the order they came. Everything that is shown at a moment is a
// function of a position: the slider only changes the position. A server's own numbers begin before the uploads that are
// loaded and have gaps: of a client's rejected uploads it keeps the last.

export const OUTCOMES = ["applied", "deprecated", "rejected"];
export const SCORES = ["held", "before", "after", "served"];
export const RECENT = 60; // uploads that a score is the mean of
export const RATED = 50; // uploads that a rate is measured over
export const FORGOTTEN = "a forgotten client"; // no client can have this name
const BINS = 120; // a curve has between this many points and twice as many

// Numbers that grow, in a typed array: 20,000 uploads are a few megabytes.
class Column {
  constructor(width = 1) {
    this.width = width;
    this.data = new Float64Array(width * 64);
    this.rows = 0;
  }

  push(values) {
    if ((this.rows + 1) * this.width > this.data.length) {
      const larger = new Float64Array(this.data.length * 2);
      larger.set(this.data);
      this.data = larger;
    }
    const start = this.rows * this.width;
    for (let i = 0; i < this.width; i++) {
      const value = this.width === 1 ? values : values?.[i];
      this.data[start + i] = value ?? NaN;
    }
    this.rows++;
  }

  at(row) {
    return this.data[row * this.width];
  }

  row(row) {
    return this.data.subarray(row * this.width, (row + 1) * this.width);
  }
}

// Means of consecutive values. When there are too many bins, neighbours are joined, so a value costs a constant.
export class Bins {
  constructor(width) {
    this.width = width;
    this.size = 1; // values in a full bin
    this.bins = []; // {first, last, counts, sums}
  }

  // Add one row of values at x; NaN and null are left out.
  add(x, values) {
    let bin = this.bins.at(-1);
    if (!bin || bin.rows >= this.size) {
      if (this.bins.length >= 2 * BINS) this.halve();
      bin = this.bins.at(-1);
      if (!bin || bin.rows >= this.size) {
        bin = { first: x, last: x, rows: 0, counts: new Array(this.width).fill(0), sums: new Array(this.width).fill(0) };
        this.bins.push(bin);
      }
    }
    bin.rows++;
    bin.last = x;
    for (let i = 0; i < this.width; i++) {
      const value = values[i];
      if (value !== null && value !== undefined && !Number.isNaN(value)) {
        bin.counts[i]++;
        bin.sums[i] += value;
      }
    }
  }

  halve() {
    const joined = [];
    for (let i = 0; i < this.bins.length; i += 2) {
      const [one, other] = [this.bins[i], this.bins[i + 1]];
      if (other) {
        one.last = other.last;
        one.rows += other.rows;
        for (let j = 0; j < this.width; j++) {
          one.counts[j] += other.counts[j];
          one.sums[j] += other.sums[j];
        }
      }
      joined.push(one);
    }
    this.bins = joined;
    this.size *= 2;
  }

  // The points of one curve; each is the mean of its bin and of those before it that hold the last `recent` values.
  points(column, recent = 1) {
    const bins = Math.max(1, Math.round(recent / this.size));
    const points = [];
    let [count, sum] = [0, 0];
    for (let i = 0; i < this.bins.length; i++) {
      const old = this.bins[i - bins];
      count += this.bins[i].counts[column] - (old ? old.counts[column] : 0);
      sum += this.bins[i].sums[column] - (old ? old.sums[column] : 0);
      if (count) points.push({ x: this.bins[i].last, y: sum / count });
    }
    return points;
  }

  has(column) {
    return this.bins.some((bin) => bin.counts[column] > 0);
  }
}

export class Run {
  constructor(name) {
    this.name = name;
    this.version = 0; // changes with every change
    this.reset();
  }

  reset() {
    this.title = this.name;
    this.about = "";
    this.clusterNames = [];
    this.metric = { name: "accuracy", higher_is_better: true };
    this.simulated = false;
    this.planned = null; // uploads, of a simulation
    this.skipped = 0; // uploads to a server before the first one that is loaded
    this.registered = 0; // clients that a server has sent a model, or that a simulation has
    this.algorithm = ""; // of a simulation
    this.isServed = false; // whether the reply is more than the one model that `after` scores
    this.state = "loading"; // loading | running | live | away | finished
    this.names = []; // of the clients
    this.numbers = new Map(); // name -> number
    this.uploadsOf = []; // number -> positions of its uploads
    this.early = new Map(); // number -> what was known of it before the first upload here
    this.columns = null;
    this.refusals = []; // [position, why] of uploads that were rejected
    this.log = []; // {position, kind, client, ...}: what happened, in order
    this.clusterStates = []; // {epoch, position, losses, scores, matrix, distances}
    this.summary = null;
    this.work = 0; // steps done for events; a test holds it to a constant an event
    this.version++;
  }

  // `meta`: title, about, clusters (names), metric, simulated, planned
  start(meta) {
    Object.assign(this, { title: meta.title, about: meta.about ?? "", simulated: meta.simulated, planned: meta.planned, algorithm: meta.algorithm ?? "" });
    if (meta.metric) this.metric = meta.metric;
    this.clusterNames = meta.clusters;
    const K = meta.clusters.length;
    this.columns = {
      epoch: new Column(), time: new Column(), client: new Column(), outcome: new Column(), staleness: new Column(),
      scores: new Column(SCORES.length), start: new Column(), mixture: new Column(K), truth: new Column(K), rates: new Column(K),
      divergence: new Column(), number: new Column(), gap: new Column(),
    };
    this.scoreBins = new Bins(SCORES.length);
    this.outcomeBins = new Bins(OUTCOMES.length);
    this.lossBins = new Bins(K);
    this.clusterScoreBins = new Bins(K);
    this.fleetBins = new Bins(2 * K); // mean mixture over clients: estimated, then true
    this.fleet = { estimated: new Float64Array(K), truth: new Float64Array(K), clients: 0, trueClients: 0 };
    if (this.state === "loading") this.state = "running";
    this.version++;
  }

  get K() {
    return this.clusterNames.length;
  }

  get length() {
    return this.columns ? this.columns.epoch.rows : 0;
  }

  clientNumber(name) {
    let number = this.numbers.get(name);
    if (number === undefined) {
      number = this.names.length;
      this.numbers.set(name, number);
      this.names.push(name);
      this.uploadsOf.push([]);
    }
    return number;
  }

  // What a server says of a client; it is shown until the client's first upload that is loaded.
  known(name, state) {
    this.early.set(this.clientNumber(name), state);
    this.version++;
  }

  // `upload`: number, epoch, time, client, outcome, why, staleness, mixture, truth, scores, rates, losses
  upload(upload) {
    const columns = this.columns;
    const position = columns.epoch.rows;
    const serial = upload.number ?? position + 1;
    if (!position) this.skipped = serial - 1;
    const gap = serial - this.numberAt(position) - 1;
    columns.number.push(serial);
    columns.gap.push(gap);
    for (let i = 0; i < Math.min(gap, RECENT); i++) this.outcomeBins.add(position, [0, 0, 1]);
    const number = this.clientNumber(upload.client);
    const before = this.lastUpload(number, position - 1);
    const outcome = Math.max(0, OUTCOMES.indexOf(upload.outcome));
    columns.epoch.push(upload.epoch);
    columns.time.push(upload.time);
    columns.client.push(number);
    columns.outcome.push(outcome);
    columns.staleness.push(upload.staleness);
    const scores = SCORES.map((name) => upload.scores?.[name]);
    columns.scores.push(scores);
    columns.start.push(upload.start ?? scores[0]);
    if (scores[3] !== undefined && scores[3] !== scores[2]) this.isServed = true;
    columns.mixture.push(upload.mixture);
    columns.truth.push(upload.truth);
    columns.rates.push(upload.rates);
    columns.divergence.push(upload.divergence);
    this.uploadsOf[number].push(position);
    if (upload.why) this.refusals.push([position, upload.why]);
    this.scoreBins.add(position + 1, scores);
    this.outcomeBins.add(position + 1, OUTCOMES.map((_, i) => (i === outcome ? 1 : 0)));
    if (upload.losses) this.lossBins.add(position + 1, upload.losses);
    this.addToFleet(number, before, position);
    this.log.push({ position, kind: "upload", client: number, previous: before, why: upload.why });
    this.work += 8 * this.K + 16;
    this.version++;
  }

  // Keep the mean mixture of all clients, from the last upload of each.
  addToFleet(number, before, position) {
    const { mixture, truth } = this.columns;
    const fleet = this.fleet;
    for (const [column, sums, count] of [[mixture, fleet.estimated, "clients"], [truth, fleet.truth, "trueClients"]]) {
      const now = column.row(position);
      if (Number.isNaN(now[0])) continue;
      const then = before >= 0 ? column.row(before) : null;
      const isNew = !then || Number.isNaN(then[0]);
      if (isNew) fleet[count]++;
      for (let k = 0; k < this.K; k++) sums[k] += now[k] - (isNew ? 0 : then[k]);
    }
    const row = [];
    for (let k = 0; k < this.K; k++) row.push(fleet.clients ? fleet.estimated[k] / fleet.clients : NaN);
    for (let k = 0; k < this.K; k++) row.push(fleet.trueClients ? fleet.truth[k] / fleet.trueClients : NaN);
    this.fleetBins.add(position + 1, row);
  }

  // `state`: epoch, losses (K), scores (K), matrix (K x K), distances (K x K); any may be missing
  clusters(state) {
    const position = this.length;
    this.clusterStates.push({ ...state, position });
    if (state.losses && this.simulated) this.lossBins.add(position, state.losses);
    if (state.scores) this.clusterScoreBins.add(position, state.scores);
    this.work += this.K;
    this.version++;
  }

  joined(name) {
    this.log.push({ position: this.length, kind: "joined", client: this.clientNumber(name) });
    this.version++;
  }

  diverged(name) {
    this.log.push({ position: this.length, kind: "diverged", client: this.clientNumber(name) });
    this.version++;
  }

  note(words) {
    this.log.push({ position: this.length, kind: "note", words });
    this.version++;
  }

  finish(summary) {
    this.summary = summary;
    this.state = "finished";
    this.version++;
  }

  // -- what is shown at a position: the number of uploads that have happened

  // The position of a client's last upload at or before a position; -1 if there is none.
  lastUpload(number, position) {
    const own = this.uploadsOf[number];
    let [low, high] = [0, own.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (own[middle] <= position) low = middle + 1;
      else high = middle;
    }
    return low ? own[low - 1] : -1;
  }

  // What is known of a client after `shown` uploads of all clients; null if it has not been seen by then.
  client(number, shown) {
    const at = this.lastUpload(number, shown - 1);
    const name = this.names[number];
    if (at < 0) {
      const early = this.before(number);
      return early ? { name, number, at, ...early } : null;
    }
    const columns = this.columns;
    const scores = columns.scores.row(at);
    return {
      name, number, at,
      epoch: columns.epoch.at(at),
      time: columns.time.at(at),
      outcome: OUTCOMES[columns.outcome.at(at)],
      staleness: columns.staleness.at(at),
      mixture: present(columns.mixture.row(at)),
      truth: present(columns.truth.row(at)),
      scores: Object.fromEntries(SCORES.map((key, i) => [key, scores[i]])),
    };
  }

  // What a server said of a client, as far as it is older than every upload that is loaded.
  before(number) {
    const early = this.early.get(number);
    if (!early) return null;
    const isLoaded = this.uploadsOf[number].length > 0 && (!this.skipped || early.epoch >= this.columns.epoch.at(0));
    return isLoaded ? { epoch: null, time: NaN, outcome: null, staleness: null, mixture: null, truth: null, scores: {} } : early;
  }

  // How many clients there are; one whose data were deleted on request has no name, and is none.
  get numClients() {
    return Math.max(this.registered, this.names.length - (this.numbers.has(FORGOTTEN) ? 1 : 0));
  }

  // How many clients have uploaded by then.
  numUploaders(shown) {
    return this.uploadsOf.reduce((sum, own) => sum + (own[0] < shown ? 1 : 0), 0);
  }

  // The mixtures of a client after `shown` uploads; null where one is not known.
  mixturesOf(number, shown) {
    const at = this.lastUpload(number, shown - 1);
    if (at < 0) return { mixture: this.before(number)?.mixture ?? null, truth: null };
    return { mixture: present(this.columns.mixture.row(at)), truth: present(this.columns.truth.row(at)) };
  }

  // How much better the new model is than the old one: in points if the metric is a share.
  gain(at) {
    const scores = this.columns.scores.row(at);
    const now = Number.isNaN(scores[3]) ? scores[2] : scores[3];
    return (now - this.columns.start.at(at)) * (this.metric.higher_is_better ? 1 : -1);
  }

  // The number of the last of the shown uploads, among all.
  numberAt(shown) {
    return shown ? this.columns.number.at(shown - 1) : this.skipped;
  }

  // Counts of outcomes among the shown uploads, or the `recent` last of them. Those in gaps were rejected.
  outcomes(shown, recent = Infinity) {
    const counts = [0, 0, 0];
    let left = recent;
    for (let i = shown - 1; i >= 0 && left > 0; i--) {
      counts[this.columns.outcome.at(i)]++;
      left--;
      const gone = Math.min(left, this.columns.gap.at(i));
      counts[OUTCOMES.indexOf("rejected")] += gone;
      left -= gone;
    }
    return counts;
  }

  // How good the estimates of the last `recent` shown uploads are; null if they or the truth are not known.
  estimates(shown, recent = RECENT) {
    let [known, right, sum, measured] = [0, 0, 0, 0];
    for (let i = Math.max(0, shown - recent); i < shown; i++) {
      const [mixture, truth] = [this.columns.mixture.row(i), this.columns.truth.row(i)];
      if (Number.isNaN(mixture[0]) || Number.isNaN(truth[0])) continue;
      known++;
      if (mainCluster(mixture) === mainCluster(truth)) right++;
      const divergence = this.columns.divergence.at(i);
      if (!Number.isNaN(divergence)) [sum, measured] = [sum + divergence, measured + 1];
    }
    return known ? { right: right / known, error: measured ? sum / measured : NaN } : null;
  }

  // The most frequent [reason, times] of rejections among the shown uploads, or the `recent` last of them.
  reasons(shown, recent = Infinity) {
    const reasons = new Map();
    for (const [position, why] of this.refusals) {
      if (position < shown && position >= shown - recent) reasons.set(why, (reasons.get(why) ?? 0) + 1);
    }
    return [...reasons].sort(([, one], [, other]) => other - one);
  }

  // Uploads a second (of the clock of the events), over the last `recent` of the shown uploads. `now` is the time of
  // that clock where it goes on: a server that gets no uploads is slow.
  rate(shown, now = -Infinity, recent = RATED) {
    const first = Math.max(0, shown - recent);
    if (shown - first < 2) return NaN;
    const seconds = Math.max(now, this.columns.time.at(shown - 1)) - this.columns.time.at(first);
    return seconds > 0 ? (shown - 1 - first) / seconds : NaN;
  }

  // The scores that are known, as [name, column]; `served` only where it is not the same as `after`.
  scoreNames(isKnown = (column) => this.scoreBins.has(column)) {
    return SCORES.map((name, i) => [name, i]).filter(([name, i]) => isKnown(i) && (name !== "served" || this.isServed));
  }

  // The name of the score of what clients get.
  get reply() {
    return this.isServed ? "served" : "after";
  }

  // Means of the scores over the last `recent` of the shown uploads.
  scores(shown, recent = RECENT) {
    const first = Math.max(0, shown - recent);
    const [sums, counts] = [new Array(SCORES.length).fill(0), new Array(SCORES.length).fill(0)];
    for (let i = first; i < shown; i++) {
      const row = this.columns.scores.row(i);
      for (let j = 0; j < SCORES.length; j++) {
        if (!Number.isNaN(row[j])) {
          sums[j] += row[j];
          counts[j]++;
        }
      }
    }
    return Object.fromEntries(SCORES.map((name, i) => [name, counts[i] ? sums[i] / counts[i] : NaN]));
  }

  // Counts of the staleness of the last `recent` of the shown uploads, in `most` bins or fewer.
  stalenessHistogram(shown, recent = 2000, most = 16) {
    const first = Math.max(0, shown - recent);
    let largest = 0;
    for (let i = first; i < shown; i++) largest = Math.max(largest, this.columns.staleness.at(i));
    const width = Math.max(1, Math.ceil((largest + 1) / most));
    const bins = new Array(Math.floor(largest / width) + 1).fill(0);
    for (let i = first; i < shown; i++) bins[Math.floor(this.columns.staleness.at(i) / width)]++;
    return bins.map((count, i) => ({ low: i * width, high: i * width + width - 1, count }));
  }

  // The last state of the clusters at or before a number of uploads that has a field; null if there is none.
  clusterState(shown, field) {
    for (let i = this.clusterStates.length - 1; i >= 0; i--) {
      const state = this.clusterStates[i];
      if (state.position <= shown && state[field]) return state;
    }
    return null;
  }
}

function present(row) {
  return row.length && !Number.isNaN(row[0]) ? row : null;
}

export function mainCluster(mixture) {
  let best = 0;
  for (let k = 1; k < mixture.length; k++) if (mixture[k] > mixture[best]) best = k;
  return best;
}
