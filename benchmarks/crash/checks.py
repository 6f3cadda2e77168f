"""Check that every acknowledged upload is in the store once, and that a replay gives the same models."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
from torch import Tensor

from benchmarks.crash.clients import Ledger, Ledgers
from benchmarks.crash.site import Site
from cdfl import wire
from cdfl.core import NEWCOMER, ClientMemory, Layout, Reply, ServerState, Settings, Upload, join, server_update
from cdfl.server.recorded_losses import Playback
from cdfl.server.store_records import Entry, tensor


@dataclass
class Report:
    """What a campaign counted, and what was not as it should be: one sentence each."""

    counts: dict[str, Any] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def expect(self, fine: bool, finding: str) -> None:
        """Note a finding unless all is fine."""
        if not fine:
            self.findings.append(finding)


def settle(site: Site, first: ServerState, report: Report) -> None:
    """End a campaign, when all clients have ended: repeat uploads, stop the server, check everything."""
    ledgers = Ledgers(site.folder)
    check_repeats(site, ledgers, report)
    report.expect(site.stop() == 0, "the server did not stop cleanly")
    check_answers(ledgers.read(), report)
    with site.open_store() as store:
        entries = list(store.all_entries(0))
        found = store.recover()
    assert found is not None
    check_journal(entries, ledgers.read(), report)
    replies = check_models(first, entries, ledgers, found.state, found.settings, found.layout, report)
    check_replies(replies, ledgers.read(), report)
    check_files(site, report)
    code, output = site.command("verify")
    report.expect(code == 0, f"cdfl verify: {output[-500:]}")
    report.counts |= {
        "uploads acknowledged": sum(
            len({line["answered"] for line in ledger.acknowledged}) for ledger in ledgers.read()
        ),
        "uploads in the journal": len(entries),
        "outcomes": dict(Counter(entry.outcome for entry in entries)),
        "times sent": sum(len(ledger.sent) for ledger in ledgers.read()),
    }


def check_files(site: Site, report: Report) -> None:
    """Check that the store has the files it names, and no others; a start may remove unnamed ones."""
    missing, left = site.files()
    kept = [name for name in left if name.startswith(("upload-", "base-", "reply-", "sent-"))]
    report.expect(not kept, f"files are left over: {kept}")
    if left:
        site.start()
        site.stop()
        missing, left = site.files()
    report.expect(not missing, f"files are missing: {missing}")
    report.expect(not left, f"files are left over, even after a start: {left}")


def check_repeats(site: Site, ledgers: Ledgers, report: Report) -> None:
    """The last upload of every client, sent once more, gives the bytes it gave."""
    for ledger in ledgers.read():
        if not ledger.replies:
            continue
        last = ledger.replies[-1]
        sent = next(line for line in ledger.sent if line["sent"] == last["reply"])
        headers = {
            wire.CLIENT: ledger.client_id,
            wire.KEY: sent["sent"],
            wire.BASE_EPOCH: str(sent["base_epoch"]),
            "Content-Type": wire.CONTENT_TYPE,
        }
        body = ledgers.body(sent["digest"])
        answer = httpx.post(f"{site.url}/v1/updates", content=body, headers=headers, timeout=30, verify=False)
        same = answer.status_code == 200 and hashlib.sha256(answer.content).hexdigest() == last["digest"]
        report.expect(same, f"the last upload of {ledger.client_id}, repeated, gave {answer.status_code}, other bytes")


def check_answers(ledgers: list[Ledger], report: Report) -> None:
    """Refusals asked to come again; a key always got the same answer."""
    refusals: Counter[str] = Counter()
    for ledger in ledgers:
        for answer in ledger.refusals:
            refusals[str(answer["status"])] += 1
            fine = answer["status"] in (409, 503) and answer["retry_after"] is not None
            report.expect(fine, f"{ledger.client_id} got {answer}; expected 503, or 409 while in progress: Retry-After")
        for name, lines in (("epoch", ledger.acknowledged), ("digest", ledger.replies), ("head", ledger.replies)):
            told: dict[str, set[Any]] = {}
            for line in lines:
                told.setdefault(line.get("answered") or line["reply"], set()).add(line[name])
            for key, values in told.items():
                report.expect(len(values) == 1, f"{ledger.client_id}, {key}: told {name} {values}; expected always one")
    report.counts["refusals"] = dict(refusals)


def check_journal(entries: list[Entry], ledgers: list[Ledger], report: Report) -> None:
    """Check the journal: no gap, no key twice, every acknowledged upload at its epoch, no other uploads.

    An upload that moved nothing has the epoch of the one before. The store deletes a rejected one once its client has
    a newer entry.
    """
    epochs = [entry.epoch for entry in entries]
    fine = all(
        after == before + 1 or (after == before and entry.outcome != "applied")
        for before, after, entry in zip([0, *epochs], epochs, entries, strict=False)
    )
    report.expect(fine, f"the epochs of the journal have gaps: {epochs}")
    kept = {(entry.client_id, entry.key): entry for entry in entries}
    report.expect(len(kept) == len(entries), "an upload was applied twice")
    sent = {(ledger.client_id, line["sent"]): line for ledger in ledgers for line in ledger.sent}
    for ledger in ledgers:
        for answer in ledger.acknowledged:
            entry = kept.get((ledger.client_id, answer["answered"]))
            if entry is None and _is_rejected(answer):
                continue
            where = None if entry is None else entry.reply_epoch
            told = f"{ledger.client_id} was told that {answer['answered']} is epoch {answer['epoch']}"
            report.expect(where == answer["epoch"], f"{told}; the journal has it at {where}")
    for place, entry in kept.items():
        line = sent.get(place, {})
        same = (line.get("digest"), line.get("base_epoch")) == (entry.digest, entry.base_epoch)
        report.expect(same, f"entry {entry.epoch} is not what {entry.client_id} sent: {line}")


def _is_rejected(answer: dict[str, Any]) -> bool:
    return answer.get("outcome") == "rejected"


def check_models(
    first: ServerState,
    entries: list[Entry],
    ledgers: Ledgers,
    stored: ServerState,
    settings: Settings,
    layout: Layout,
    report: Report,
) -> dict[tuple[str, str], str]:
    """Decide every upload again, from epoch 0 and what the clients say they sent; returns digests of the replies."""
    state, last, digests = first, dict[str, Reply](), {}
    asked = asked_for(entries)
    states = {0: first}  # at the epochs at which a client asked for a model
    rejected = {ledger.client_id for ledger in ledgers.read() for line in ledger.acknowledged if _is_rejected(line)}
    for entry in entries:
        model = wire.decode_model(ledgers.body(entry.digest), layout)
        before = last.get(entry.client_id)
        client = NEWCOMER if before is None else before.client
        if entry.client_id in rejected:  # of its entries some may be deleted, so what they left behind is not replayed
            client = entry.client_before
        if before is not None and before.epoch == entry.base_epoch:
            base_model = before.personal_model
        else:
            base_model = join(states[entry.base_epoch], settings, client).personal_model
        state, reply = decide(state, entry, model, settings, base_model, client)
        last[entry.client_id] = reply
        if entry.epoch in asked:
            states[entry.epoch] = state
        told = (entry.outcome, entry.mixture, entry.rates, entry.staleness)
        now = (reply.outcome, tuple(reply.mixture.tolist()), tuple(reply.rates.tolist()), reply.staleness)
        report.expect(told == now, f"entry {entry.epoch} says {told}; a replay gives {now}")
        body = wire.encode_model(reply.personal_model, layout)
        digests[entry.client_id, entry.key] = hashlib.sha256(body).hexdigest()
    for part in ("cluster_models", "cluster_losses", "cluster_epochs", "estimator_memory", "defence_memory"):
        same = getattr(state, part).numpy().tobytes() == getattr(stored, part).numpy().tobytes()
        report.expect(same, f"the stored {part} are not those of a replay")
    return digests


def asked_for(entries: list[Entry]) -> set[int]:
    """The epochs at which clients asked for a model, as newcomers or anew, and trained from that, not from a reply."""
    asked, replied = set(), dict[str, int]()
    for entry in entries:
        if replied.get(entry.client_id) != entry.base_epoch:
            asked.add(entry.base_epoch)
        replied[entry.client_id] = entry.reply_epoch
    return asked


def decide(
    state: ServerState,
    entry: Entry,
    model: Tensor,
    settings: Settings,
    base_model: Tensor,
    client: ClientMemory,
) -> tuple[ServerState, Reply]:
    """Replay one upload: losses and its time come from the journal, everything else is computed."""
    is_bounded = any(factor != 1 for factor in entry.verdict.bounds)  # then the losses are among those evaluated
    upload = Upload(
        model,
        entry.base_epoch,
        entry.client_id,
        losses=tensor(entry.losses) if entry.losses and not is_bounded else None,
        base_model=base_model,
        time=entry.received,
    )
    return server_update(state, upload, settings, Playback(entry.evaluated), client)


def check_replies(digests: dict[tuple[str, str], str], ledgers: list[Ledger], report: Report) -> None:
    """Every reply that ever arrived is, byte for byte, the one of the replay.

    Those to rejected uploads that the store has deleted are not replayed.
    """
    arrived = 0
    for ledger in ledgers:
        rejected = {answer["answered"] for answer in ledger.acknowledged if _is_rejected(answer)}
        for line in ledger.replies:
            if line["reply"] in rejected and (ledger.client_id, line["reply"]) not in digests:
                continue
            arrived += 1
            same = digests.get((ledger.client_id, line["reply"])) == line["digest"]
            report.expect(same, f"the reply to {ledger.client_id}, {line['reply']}, is not that of a replay")
    report.counts["replies compared"] = arrived
