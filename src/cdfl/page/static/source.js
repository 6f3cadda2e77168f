// Where events come from: run folders that `cdfl watch` serves, or the server that serves this page.

import { readClients, readClusters, readRunEvent, readServerEvent, readStatus } from "./read_events.js";
import { Run } from "./model.js";

const SLICE_MS = 8; // events are read in slices, so that the page stays responsive
const HISTORY = 5000; // uploads of a server that are loaded from before the page was opened
const MOST_PAGES = 10; // of the list of clients, each of a thousand
const CLUSTERS_SECONDS = 10; // between two requests for the matrices
const LONGEST_WAIT = 15; // seconds between two attempts to reach a server

const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

class Slices {
  constructor() {
    this.until = performance.now() + SLICE_MS;
  }

  // Let the page draw if the slice is used up.
  async rest() {
    if (performance.now() < this.until) return;
    await sleep(0);
    this.until = performance.now() + SLICE_MS;
  }
}

// Yield the lines of a response as they come.
async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const slices = new Slices();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n");
    held = parts.pop();
    for (const line of parts) {
      yield line;
      await slices.rest();
    }
  }
}

// -- run folders

export async function watchRuns(config, runs) {
  for (const given of config.runs) runs.push(new Run(given.name));
  let wait = 1;
  for (;;) {
    try {
      const response = await fetch("runs/events");
      if (!response.ok) throw new Error(`${response.status}`);
      for (const run of runs) if (run.length || run.state !== "loading") run.reset(); // a new stream starts from the beginning
      for await (const line of lines(response)) {
        wait = 1;
        const tab = line.indexOf("\t");
        if (tab < 0) continue; // a sign of life
        const run = runs[Number(line.slice(0, tab))];
        const text = line.slice(tab + 1);
        if (text === "reset") run.reset();
        else readRunEvent(run, parse(text));
      }
      if (runs.every((run) => run.state === "finished")) return;
    } catch (error) {
      if (error instanceof SyntaxError) throw error;
    }
    for (const run of runs) if (run.state !== "finished") run.state = "away";
    await sleep(wait);
    wait = Math.min(2 * wait, LONGEST_WAIT);
  }
}

// Python writes NaN and Infinity for numbers that are not finite, which is no JSON.
function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return JSON.parse(text.replace(/-?\b(NaN|Infinity)\b/g, "null"));
  }
}

// -- a server

export class ServerSource {
  // `ask(reason)` returns a promise of an operator's token; `say(words)` shows why nothing comes.
  constructor(ask, say) {
    this.ask = ask;
    this.say = say;
    this.token = null; // in memory only: it is gone when the page is closed
  }

  async get(path, headers = {}) {
    for (;;) {
      if (this.token !== null) headers = { ...headers, Authorization: `Bearer ${this.token}` };
      let response;
      try {
        response = await fetch(path, { headers, cache: "no-store", credentials: "omit" });
      } catch {
        throw new Away("the server does not answer");
      }
      if (response.ok) return response;
      const detail = await response.json().then((body) => String(body.detail), () => response.statusText);
      if (response.status === 401 || response.status === 403) {
        this.token = await this.ask(this.token === null ? "" : "That token was not accepted.");
        continue;
      }
      throw new Away(detail, Number(response.headers.get("Retry-After")) || null);
    }
  }

  async json(path) {
    return (await this.get(path)).json();
  }

  async watch(runs) {
    const run = new Run(location.host);
    runs.push(run);
    let wait = 1;
    let last = null; // the number of the last event
    let epoch = 0; // of the last event
    for (;;) {
      try {
        const status = await this.json("v1/status");
        if (last === null || status.uploads < last || status.epoch < epoch) {
          run.reset();
          readStatus(run, status, location.host);
          await this.readAllClients(run);
          last = run.skipped = Math.max(0, status.uploads - HISTORY);
        }
        this.say("");
        run.state = "live";
        run.version++;
        const events = await this.get("v1/events", { "Last-Event-ID": String(last), Accept: "text/event-stream" });
        const matrices = this.watchClusters(run);
        try {
          for await (const event of serverSentEvents(events)) {
            wait = 1;
            readServerEvent(run, event);
            if (event.number !== undefined) ({ number: last, epoch } = event);
          }
        } finally {
          matrices.stop();
        }
        throw new Away("the server has stopped; waiting for it");
      } catch (error) {
        if (error instanceof SyntaxError) throw error;
        const away = error instanceof Away ? error : new Away("the server does not answer; waiting for it");
        this.say(away.message);
        run.state = "away";
        run.version++;
        await sleep(Math.min(away.seconds ?? wait, LONGEST_WAIT));
        wait = Math.min(2 * wait, LONGEST_WAIT);
      }
    }
  }

  async readAllClients(run) {
    let after = "";
    for (let page = 0; page < MOST_PAGES; page++) {
      const { clients, more } = await this.json(`v1/clients?after=${after}`);
      readClients(run, clients);
      if (!more) return;
      after = clients.at(-1).client_id;
    }
  }

  // Ask for the matrices now and then, while somebody looks.
  watchClusters(run) {
    let isOver = false;
    let seen = -1;
    const look = async () => {
      while (!isOver) {
        if (!document.hidden && (seen < 0 || run.columns.epoch.rows > 0)) {
          try {
            const clusters = await this.json("v1/clusters");
            if (clusters.epoch !== seen && !isOver) readClusters(run, clusters);
            seen = clusters.epoch;
          } catch (error) {
            if (!(error instanceof Away)) throw error;
          }
        }
        await sleep(CLUSTERS_SECONDS);
      }
    };
    look();
    return { stop: () => { isOver = true; } };
  }
}

class Away extends Error {
  constructor(message, seconds = null) {
    super(message);
    this.seconds = seconds;
  }
}

// Yield the data of server-sent events; an EventSource could not send the token.
export async function* serverSentEvents(response) {
  let kind = "message";
  let data = "";
  for await (const line of lines(response)) {
    const text = line.replace(/\r$/, "");
    if (text === "") {
      if (data) yield { kind, ...JSON.parse(data) };
      kind = "message";
      data = "";
    } else if (text.startsWith("event:")) kind = text.slice(6).trim();
    else if (text.startsWith("data:")) data += text.slice(5).trimStart();
  }
}
