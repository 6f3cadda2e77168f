"""Speed, load, durability and attacks: `python -m benchmarks.NAME --help`, with NAME one of these.

digits: accuracy on digits-4, for the README. default: the values of the preset `default`.
speed, populations, peers: the simulator. floor, kernels: its GPU code. draw: drawing data.
load: the server with many clients. crash: the server killed under load. poison: clients that attack.

Each stores its numbers in `benchmarks/results`; `benchmarks.tables` turns them into the tables of the documentation.
"""
