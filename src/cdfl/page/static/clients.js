// The clients of a run: one bar each, as many rows in the document as fit on the screen; and all of them on one canvas.

import { clusterColor, make, say } from "./dom.js";
import { FORGOTTEN, mainCluster } from "./model.js";
import { ago, count, gainWords, isShare, mixtureWords, move, OUTCOME_WORDS } from "./words.js";

const ROW = 30; // pixels, as in style.css
const [THIN, GAP] = [0.3, 0.05]; // of the height of all clients: the true mixtures, and what is below them
const SPARE = 4; // rows above and below the visible ones
const BY_NAME = new Intl.Collator("en", { numeric: true });
const CALM = window.matchMedia("(prefers-reduced-motion: reduce)");

export class ClientList {
  constructor(root, run, open) {
    this.run = run;
    this.open = open;
    this.box = root.querySelector(".rows");
    this.find = root.querySelector(".find");
    this.orderBy = root.querySelector(".order");
    this.shownText = root.querySelector(".shown");
    this.space = make("div", { class: "space" });
    this.box.append(this.space);
    this.box.setAttribute("aria-label", "Clients");
    const [gain, old] = root.querySelectorAll(".columns .aside");
    say(gain, run.simulated ? `new − old${isShare(run.metric) ? ", points" : ""}` : "loss saved");
    gain.title = run.simulated ? "How much better the new model is than the old one" : "How much lower the loss of the new model is, as the client reports it";
    say(old, run.simulated ? "uploads ago" : "last upload");
    this.pool = [];
    this.order = []; // numbers of the clients that pass the filter
    this.byName = []; // numbers of all clients, by name
    this.selected = null;
    this.shown = 0; // uploads
    this.box.addEventListener("scroll", () => this.draw(), { passive: true });
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.find.addEventListener("input", () => this.update(this.shown, { sort: true }));
    this.orderBy.addEventListener("change", () => this.update(this.shown, { sort: true }));
  }

  update(shown, { sort = true } = {}) {
    this.shown = shown;
    if (sort) this.sort();
    this.draw();
  }

  sort() {
    const { run, shown } = this;
    const wanted = this.find.value.trim().toLowerCase();
    if (this.byName.length !== run.names.length) {
      this.byName = run.names.map((_, number) => number).sort((one, other) => BY_NAME.compare(run.names[one], run.names[other]));
    }
    const there = this.byName.filter((number) => {
      if (run.names[number] === FORGOTTEN) return false;
      if (wanted && !run.names[number].toLowerCase().includes(wanted)) return false;
      return (run.uploadsOf[number][0] ?? Infinity) < shown || run.early.has(number);
    });
    if (this.orderBy.value !== "name") {
      const keys = new Map(there.map((number) => [number, this.sortKey(number)]));
      there.sort((one, other) => keys.get(one) - keys.get(other)); // keeps the order of names where keys are equal
    }
    this.order = there;
    const all = count(run.numClients, "client");
    const isPart = there.length < run.numClients;
    say(this.shownText, wanted ? `${there.length} of ${all}` : isPart ? `${there.length.toLocaleString("en")} of ${all} ${run.simulated ? "so far" : "listed"}` : all);
    this.box.style.maxHeight = `${Math.max(4, run.names.length) * ROW + 2}px`; // no empty box for few clients
    this.space.style.height = `${this.order.length * ROW}px`;
  }

  sortKey(number) {
    const { run } = this;
    const client = run.client(number, this.shown);
    switch (this.orderBy.value) {
      case "recent": return -client.at;
      case "cluster": return client.mixture ? mainCluster(client.mixture) - 0.9 * Math.max(...client.mixture) : run.K;
      case "moved": return -this.lastMove(number);
      case "outcome": return { rejected: 0, deprecated: 1 }[client.outcome] ?? 2;
      default: return client.at < 0 || Number.isNaN(run.gain(client.at)) ? Number.MAX_VALUE : run.gain(client.at);
    }
  }

  lastMove(number) {
    const own = this.run.uploadsOf[number];
    for (let i = own.length - 1; i > 0; i--) {
      if (own[i] < this.shown && move(this.run, own[i], own[i - 1])) return own[i];
    }
    return -1;
  }

  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - SPARE);
    const last = Math.min(this.order.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW) + SPARE);
    const size = last - first;
    while (this.pool.length < size) this.pool.push(this.newRow());
    this.pool.forEach((row, slot) => {
      // A client keeps its row while it is visible, so that its bar moves instead of jumping.
      const index = first + ((slot - first) % this.pool.length + this.pool.length) % this.pool.length;
      row.root.hidden = index >= last;
      if (!row.root.hidden) this.fill(row, index);
    });
  }

  newRow() {
    const segments = (kind) => {
      const bar = make("span", { class: `bar ${kind}` });
      for (let k = 0; k < this.run.K; k++) {
        const part = make("i");
        part.style.background = `var(${clusterColor(k)})`;
        bar.append(part);
      }
      return bar;
    };
    const row = { who: make("span", { class: "who" }), estimated: segments("estimated"), truth: segments("true"), number: -1 };
    row.gain = make("span", { class: "aside" });
    row.old = make("span", { class: "aside old" });
    row.root = make("div", { class: "row", role: "option" }, row.who, make("span", { class: "what" }, row.truth, row.estimated), row.gain, row.old);
    row.root.addEventListener("click", () => this.choose(row.number));
    this.box.append(row.root);
    return row;
  }

  fill(row, index) {
    const { run } = this;
    const number = this.order[index];
    const client = run.client(number, this.shown);
    if (!client) return;
    const isNew = row.number !== number;
    row.number = number;
    row.root.classList.toggle("still", isNew);
    row.root.style.transform = `translateY(${index * ROW}px)`;
    row.root.id = `${this.box.id}-${number}`;
    row.root.setAttribute("aria-posinset", index + 1);
    row.root.setAttribute("aria-setsize", this.order.length);
    row.root.setAttribute("aria-selected", String(number === this.selected));
    say(row.who, client.name);
    row.estimated.hidden = !client.mixture;
    fillBar(row.estimated, client.mixture);
    row.truth.hidden = !client.truth;
    if (client.truth) fillBar(row.truth, client.truth);
    const gain = client.at >= 0 ? run.gain(client.at) : NaN;
    const isBad = client.outcome !== undefined && client.outcome !== null && client.outcome !== "applied";
    const words = isBad ? OUTCOME_WORDS[client.outcome] : Number.isNaN(gain) ? "" : gainWords(run, gain);
    say(row.gain, isBad ? words : signed(run, gain));
    row.gain.classList.toggle("bad", isBad);
    const age = this.age(client);
    say(row.old, age.replace(/ (epochs?|uploads?) ago$/, ""));
    const truth = client.truth ? `; true: ${mixtureWords(run, client.truth)}` : "";
    row.root.setAttribute("aria-label", `${client.name}: estimate: ${mixtureWords(run, client.mixture)}${truth}; ${words || "no score"}; ${age}`);
    row.root.title = `estimate: ${mixtureWords(run, client.mixture)}${truth}`;
  }

  age(client) {
    const { run } = this;
    if (client.at < 0 && !client.outcome) return "no upload";
    if (run.simulated) return `${count(this.shown - client.at - 1, "upload")} ago`;
    return ago(Date.now() / 1000 - client.time);
  }

  key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (this.selected !== null) this.open(this.selected);
    } else if (event.key in steps && this.order.length) {
      event.preventDefault();
      const now = this.order.indexOf(this.selected);
      const next = Math.min(this.order.length - 1, Math.max(0, (now < 0 ? -1 : now) + steps[event.key]));
      this.select(this.order[next], next);
    }
  }

  select(number, index) {
    this.selected = number;
    const [top, bottom] = [index * ROW, (index + 1) * ROW];
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    if (bottom > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = bottom - this.box.clientHeight;
    this.draw();
    this.box.setAttribute("aria-activedescendant", `${this.box.id}-${number}`);
  }

  choose(number) {
    this.select(number, this.order.indexOf(number));
    this.open(number);
  }
}

function signed(run, gain) {
  if (Number.isNaN(gain)) return "";
  const amount = isShare(run.metric) ? (100 * gain).toFixed(1) : gain.toPrecision(2);
  return Number(amount) > 0 ? `+${amount}` : amount.replace("-", "−");
}

function fillBar(bar, mixture) {
  let left = 0;
  for (let k = 0; k < bar.children.length; k++) {
    const share = mixture?.[k] ?? 0;
    bar.children[k].style.transform = `translateX(${(100 * left).toFixed(2)}%) scaleX(${share.toFixed(4)})`;
    left += share;
  }
}

// A colour such as "rgb(0, 114, 178)" as one pixel.
function packed(color) {
  const [red, green, blue] = color.match(/\d+/g).map(Number);
  return (255 << 24) | (blue << 16) | (green << 8) | red;
}

// All clients as columns of one canvas; shares glide to their new values.
export class Glance {
  constructor(canvas, run) {
    this.canvas = canvas;
    this.run = run;
    this.shares = new Float64Array(0); // of every client: the estimated mixture, then the true one
    this.targets = new Float64Array(0);
    this.isMoving = false;
  }

  update(shown, order, glides) {
    const { run } = this;
    const K = run.K;
    const size = order.length * 2 * K;
    this.hasTruth = run.simulated && run.fleet.trueClients > 0;
    if (this.targets.length !== size) {
      this.targets = new Float64Array(size);
      this.shares = new Float64Array(size);
    }
    const mains = new Array(K).fill(0);
    order.forEach((number, place) => {
      const { mixture, truth } = run.mixturesOf(number, shown);
      for (let k = 0; k < K; k++) {
        this.targets[2 * place * K + k] = mixture?.[k] ?? 0;
        this.targets[(2 * place + 1) * K + k] = truth?.[k] ?? 0;
      }
      if (mixture) mains[mainCluster(mixture)]++;
    });
    const words = mains.map((clients, k) => `${clients} mainly ${run.clusterNames[k]}`).join(", ");
    this.canvas.setAttribute("aria-label", `Mixtures of ${count(order.length, "client")}: ${words}.`);
    if (CALM.matches || !glides) this.shares.set(this.targets);
    this.isMoving = true;
  }

  // Draw one frame; return whether another one is needed.
  frame(colors, background) {
    if (!this.isMoving) return false;
    let far = 0;
    for (let i = 0; i < this.shares.length; i++) {
      const gap = this.targets[i] - this.shares[i];
      this.shares[i] += 0.2 * gap;
      far = Math.max(far, Math.abs(gap));
    }
    this.isMoving = far > 0.002;
    if (!this.isMoving) this.shares.set(this.targets);
    const { canvas } = this;
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(canvas.clientWidth * scale), Math.round(canvas.clientHeight * scale)];
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    if (!width || !height || !this.shares.length) return this.isMoving;
    this.paint(canvas.getContext("2d"), width, height, colors.map(packed), packed(background));
    return this.isMoving;
  }

  // Write pixels: thousands of rectangles a frame would be too slow without a graphics card.
  paint(pen, width, height, colors, background) {
    const K = this.run.K;
    const clients = this.shares.length / K / 2;
    const image = pen.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(background);
    const isWide = width / clients > 6; // then there is room for a gap
    const end = this.hasTruth ? Math.round(THIN * height) : 0;
    const begin = end ? end + Math.round(GAP * height) : 0;
    for (let x = 0; x < width; x++) {
      const place = Math.min(clients - 1, Math.floor((x * clients) / width));
      if (isWide && Math.floor(((x + 1) * clients) / width) !== place) continue;
      this.column(pixels, x, width, begin, height, 2 * place * K, colors);
      if (end) this.column(pixels, x, width, 0, end, (2 * place + 1) * K, colors);
    }
    pen.putImageData(image, 0, 0);
  }

  // One mixture, whose shares begin at `first`, from pixel `top` to `bottom`.
  column(pixels, x, width, top, bottom, first, colors) {
    let [y, share] = [top, 0];
    for (let k = 0; k < this.run.K; k++) {
      share += this.shares[first + k];
      const end = Math.min(bottom, top + Math.round(share * (bottom - top)));
      for (; y < end; y++) pixels[y * width + x] = colors[k];
    }
  }
}
