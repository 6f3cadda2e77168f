"""A bare PyTorch loop, one client after the other; settings: `channels_last`, `threads`."""

import torch
from work import Job, Rounds, client_data, train


def main() -> None:
    """Train, average, again."""
    job, rounds = Job.read(), Rounds()
    torch.set_num_threads(job.setting.get("threads", torch.get_num_threads()))
    images, labels = client_data(job.data)
    model = job.network()
    layout = torch.channels_last if job.setting.get("channels_last") else torch.contiguous_format
    model.to(memory_format=layout)
    average = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(job.rounds + 1):
        total = {name: torch.zeros_like(value) for name, value in average.items()}
        for client in range(job.clients):
            model.load_state_dict(average)
            train(model, images[client].to(memory_format=layout), labels[client], job)
            for name, value in model.state_dict().items():
                total[name] += value / job.clients
        average = total
        rounds.done()
    rounds.report(job, threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
