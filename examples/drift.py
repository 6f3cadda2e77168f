"""Clients whose main cluster jumps; they upload always, or only when their loss on fresh data has risen."""

from dataclasses import replace

import cdfl
from cdfl.data import Sudden

digits = replace(cdfl.scenarios.load_scenario("digits-4"), drift=Sudden(every=4))
for policy in ("always", "loss-rises"):
    run = cdfl.run(digits, policy=policy, num_clients=8, num_uploads=32, local_epochs=2)
    turns = run.uploads[-1].time  # with the clock `uniform`, one turn a moment
    print(f"{policy}: {run.summary.uploads} uploads in {turns:.0f} turns, accuracy {run.summary.after:.3f}")
