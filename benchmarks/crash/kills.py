"""Kill the server at random moments: while it starts, recovers, takes uploads, writes and deletes snapshots."""

import math
import random
import signal
import time
from collections import Counter

from benchmarks.crash.checks import Report, settle
from benchmarks.crash.clients import Load
from benchmarks.crash.site import Site, any_retention

STARTING = 0.35  # of all starts are killed on their way
LONGEST_RUN = 0.8  # seconds from the first sign that a server is ready to its end
OF_NOTHING = 0.05  # as many kills come before the store was begun
AT_WORK, STARTING_UP = "at work", "while starting"


class Killer:
    """Start a server, kill it, and count what is left; repeat."""

    def __init__(self, site: Site, chance: random.Random) -> None:
        self.site, self.chance = site, chance
        self.report = Report()
        self.counts: Counter[str] = Counter()
        self.start_seconds = 0.5  # what a start takes, as far as is known

    def kill_while_starting(self, *options: str) -> None:
        """Kill a server while it starts."""
        self.site.begin(*options)
        time.sleep(self.chance.uniform(0, 1.2 * self.start_seconds))
        self._kill(STARTING_UP)

    def kill_at_work(self, load: Load, *options: str) -> None:
        """Kill a server that takes uploads; count the uploads in progress and the files left over."""
        begun = time.monotonic()
        self.site.start(*options)
        self.start_seconds = time.monotonic() - begun
        time.sleep(self.chance.uniform(0, LONGEST_RUN))
        load.alarm()
        under_way = {(ledger.client_id, ledger.under_way) for ledger in load.ledgers() if ledger.under_way}
        self._kill(AT_WORK)
        remains = self.site.remains()
        self.counts["with uploads on their way"] += bool(under_way)
        self.counts["with an upload applied, its answer lost"] += bool(under_way & remains.keys)
        for kind in remains.debris:
            self.counts[f"with a file left over: {kind}"] += 1

    def _kill(self, when: str) -> None:
        assert self.site.server is not None
        code = self.site.server.kill()
        self.counts[when] += 1
        said = self.site.log.read_text()[-500:]
        self.report.expect(code == -signal.SIGKILL, f"the server had ended by itself, with {code}; it said: {said}")


def kill_often(site: Site, kills: int, clients: int, chance: random.Random) -> Report:
    """Kill servers at work and while they start, while clients upload; then check everything."""
    killer = Killer(site, chance)
    for _ in range(math.ceil(OF_NOTHING * kills)):
        killer.kill_while_starting()
    site.start("--snapshot-every", "1000")
    first, _ = site.recovered()
    load = Load(site, clients)
    load.wait_for_uploads(each=1)
    site.stop()
    while killer.counts[AT_WORK] < kills:
        options = any_retention(chance)
        if chance.random() < STARTING:
            killer.kill_while_starting(*options)
        else:
            killer.kill_at_work(load, *options)
    site.start()
    load.wait_for_uploads(each=1)
    load.finish()
    kinds = dict(sorted(killer.counts.items()))
    killer.report.counts |= {"kills": kinds[AT_WORK] + kinds.get(STARTING_UP, 0), **kinds}
    settle(site, first, killer.report)
    return killer.report
