// The two dialects of events, read in one place: those of a run folder (cdfl/run_events.py) and those of a server.

import { FORGOTTEN } from "./model.js";

// One line of events.jsonl.
export function readRunEvent(run, event) {
  switch (event.event) {
    case "started":
      run.start({
        title: `${event.algorithm} on ${event.scenario}`,
        about: `seed ${event.seed}, ${event.num_clients} clients, ${event.num_uploads} uploads`,
        clusters: namesOf(event.clusters, event.num_clusters),
        metric: event.metrics?.[0],
        simulated: true,
        planned: event.num_uploads,
        algorithm: event.algorithm,
      });
      run.registered = event.num_clients;
      break;
    case "uploaded":
      run.upload({
        epoch: event.epoch,
        time: event.time,
        client: `client ${event.client}`,
        outcome: event.outcome,
        why: event.outcome === "rejected" ? "refused by the defence" : "",
        staleness: event.staleness,
        mixture: event.mixture,
        truth: event.true_mixture,
        divergence: event.divergence,
        scores: { held: event.held, before: event.before, after: event.after, served: event.served },
        start: event.served_held ?? event.held,
        rates: event.rates,
      });
      break;
    case "diverged":
      run.diverged(`client ${event.client}`);
      break;
    case "clusters":
      run.clusters({
        epoch: event.epoch,
        scores: event.scores ?? event.accuracies,
        losses: event.losses?.map((row, k) => row[k]),
        matrix: event.losses,
        distances: event.distances,
      });
      break;
    case "separated": // before the first upload
      run.clusters({ epoch: 0, matrix: event.losses });
      for (const warning of event.warnings ?? []) run.note(warning);
      break;
    case "finished":
      run.finish(event);
      break;
  }
}

// The answers of /v1/status, /v1/clients and /v1/clusters.
export function readStatus(run, status, address) {
  run.start({
    title: `Server ${address}`,
    about: `${status.num_parameters.toLocaleString("en")} parameters, ${status.num_clusters} clusters`,
    clusters: namesOf(status.clusters, status.num_clusters),
    metric: { name: "loss", higher_is_better: false },
    simulated: false,
    planned: null,
  });
  run.registered = status.clients;
}

export function readClients(run, clients) {
  for (const client of clients) {
    run.known(client.client_id, {
      epoch: client.epoch, time: client.last_upload, outcome: client.outcome, staleness: null,
      mixture: client.mixture, truth: null, scores: {},
    });
  }
}

export function readClusters(run, clusters) {
  run.clusters({ epoch: clusters.epoch, matrix: clusters.losses, distances: clusters.distances });
}

// One event of /v1/events.
export function readServerEvent(run, event) {
  if (event.kind === "joined") {
    if (!run.numbers.has(event.client_id)) run.registered++;
    run.joined(event.client_id);
    return;
  }
  run.upload({
    number: event.number,
    epoch: event.epoch,
    time: event.received,
    client: event.client_id || FORGOTTEN,
    outcome: event.outcome,
    why: event.verdict?.reason ?? "",
    staleness: event.staleness,
    mixture: event.mixture?.length ? event.mixture : null,
    scores: event.report?.length === 2 ? { held: event.report[0], after: event.report[1] } : {},
    rates: event.rates,
    losses: event.cluster_losses,
  });
}

function namesOf(names, count) {
  return names?.length === count ? names : Array.from({ length: count }, (_, k) => `cluster ${k}`);
}
