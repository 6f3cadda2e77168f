"""One problem: simulated first, then served to clients over HTTP, without changing a line of it."""

import cdfl

problem = cdfl.scenarios.load_scenario("digits-4")  # or a cdfl.Problem of yours
print(cdfl.run(problem, num_uploads=20))

with cdfl.serve(problem) as server:  # for real clients: cdfl serve FILE.py
    fresh = problem.federation()  # stands for what the clients see
    for number, name in enumerate(("car-1", "car-2")):
        with server.client(name) as client:  # on a device: cdfl.Client(url, net, name)
            client.join()
            for turn in range(3):
                reply = client.update(fresh.ready(fresh.draw(number, turn).train))
            print(name, reply.outcome, "epoch", reply.epoch, "mixture", [round(share, 2) for share in reply.mixture])
    print(server, list(server.cluster_models))
