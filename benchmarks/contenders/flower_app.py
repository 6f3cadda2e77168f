"""What exchange_flower.py has Flower run: FedAvg over clients that send back what they get, changed a little."""

import json
from collections.abc import Iterable
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from work import Job, Rounds

client_app = ClientApp()  # Flower looks for such lines without running them
server_app = ServerApp()


@client_app.train()
def fit(message: Message, context: Context) -> Message:
    """Do not train."""
    state = message.content["arrays"].to_torch_state_dict()
    content = {
        "arrays": ArrayRecord({name: value + 1e-3 for name, value in state.items()}),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(content=RecordDict(content), reply_to=message)


class TimedFedAvg(FedAvg):
    """FedAvg over all clients in every round, without evaluation, that notes when a round is over."""

    def __init__(self, rounds: Rounds, clients: int) -> None:
        super().__init__(
            fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients, min_evaluate_nodes=0
        )
        self.rounds = rounds

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As FedAvg does it."""
        replies = list(replies)
        failed = [reply.error for reply in replies if reply.has_error()]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(replies)} clients failed: {failed[0]}")
        result = super().aggregate_train(server_round, replies)
        self.rounds.done()
        return result


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run, and write down when rounds were over."""
    job, rounds = Job.read(str(context.run_config["job"])), Rounds()
    strategy = TimedFedAvg(rounds, job.clients)
    strategy.start(grid, ArrayRecord(job.network().state_dict()), num_rounds=job.rounds + 1)
    done = Path(str(context.run_config["ends"]))
    done.with_suffix(".part").write_text(json.dumps(rounds.ends))
    done.with_suffix(".part").rename(done)
