"""Two front ends on one PostgreSQL, behind a load balancer: kill either, pause the one that applies the uploads."""

import random
import signal
import time
from collections import Counter

import httpx

from benchmarks.crash.checks import Report, settle
from benchmarks.crash.clients import Load, wait_for
from benchmarks.crash.kills import LONGEST_RUN
from benchmarks.crash.site import Site, any_retention
from cdfl.server.database_engine import LEASE_SECONDS

UNREADY = 0.3  # of all kills come before the one that was killed last is ready again
TOOK_OVER = "this server applies the uploads now"


def kill_either(sites: list[Site], kills: int, pauses: int, clients: int, chance: random.Random) -> Report:
    """Kill one of several front ends, again and again, while clients upload to all of them; then check everything."""
    report, counts = Report(), Counter[str]()
    site = sites[0]
    for each in sites:
        each.start("--snapshot-every", "1000")
    first, _ = site.recovered()
    load = Load(site, clients, ports=[each.port for each in sites])
    load.wait_for_uploads(each=1)
    events = ["kill"] * kills + ["pause"] * pauses
    chance.shuffle(events)
    for event in events:
        time.sleep(chance.uniform(0, LONGEST_RUN))
        load.alarm()
        if event == "pause":
            counts["pauses of the owner"] += 1
            _pause(sites, chance, report)
            continue
        chosen = chance.choice(sites)
        counts[f"{_role(chosen)} killed"] += 1
        under_way = {(ledger.client_id, ledger.under_way) for ledger in load.ledgers() if ledger.under_way}
        assert chosen.server is not None
        code = chosen.server.kill()
        said = chosen.log.read_text()[-500:]
        report.expect(code == -signal.SIGKILL, f"a server had ended by itself, with {code}; it said: {said}")
        counts["with an upload applied, its answer lost"] += bool(under_way & site.remains().keys)
        chosen.begin(*any_retention(chance))
        if chance.random() > UNREADY:
            chosen.wait_until_ready()
    for each in sites:
        each.wait_until_ready()
    report.counts["slowest client at the end, seconds"] = round(load.wait_for_uploads(each=1), 1)
    load.finish()
    counts["takeovers"] = sum(each.log.read_text().count(TOOK_OVER) for each in sites)
    for each in sites[1:]:
        report.expect(each.stop() == 0, "a front end did not stop cleanly")
    report.counts |= {"kills": kills, **dict(sorted(counts.items()))}
    report.counts["left over before a start alone"] = len(site.files()[1])
    site.stop()
    site.start()  # alone: it deletes what those that were killed have left
    settle(site, first, report)
    return report


def _pause(sites: list[Site], chance: random.Random, report: Report) -> None:
    """Stop the process of the owner until another one has taken over, and then uploads for a while."""
    for each in sites:
        each.wait_until_ready()
    wait_for(lambda: any(_role(each) == "owner" for each in sites), 3 * LEASE_SECONDS)
    owner = next(each for each in sites if _role(each) == "owner")
    others = [each for each in sites if each is not owner]
    assert owner.server is not None
    owner.server.send(signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 3 * LEASE_SECONDS
        while not any(_role(each) == "owner" for each in others):
            if time.monotonic() > deadline:
                report.expect(False, "nobody took over from an owner that was paused")
                break
            time.sleep(0.1)
        time.sleep(chance.uniform(0, LONGEST_RUN))  # clients whose requests did not go to the paused one go on
    finally:
        owner.server.send(signal.SIGCONT)
    owner.wait_until_ready()
    deadline = time.monotonic() + LEASE_SECONDS
    while _role(owner) == "owner" and time.monotonic() < deadline:  # until it finds out that it has been replaced
        time.sleep(0.1)
    report.expect(sum(_role(each) == "owner" for each in sites) == 1, "there is not one owner after a pause")


def _role(site: Site) -> str:
    """Return whether a server says that it applies the uploads."""
    try:
        page = httpx.get(f"{site.url}/metrics", timeout=5).text
    except httpx.TransportError:
        return "one that starts"
    if "\ncdfl_owner " not in page:
        return "one that starts"
    return "owner" if "\ncdfl_owner 1.0" in page else "other"
