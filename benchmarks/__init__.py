"""Speed, load, durability and attacks: `python -m benchmarks.NAME --help`, with NAME one of these.

digits_accuracy: digits-4, for the README. default_preset: the values of the preset `default`.
speed, populations, peers: the simulator. conv_floor, kernels: its GPU code. data_drawing: a client's data.
load: the server with many clients. crash: the server killed under load. poison: clients that attack.

Each stores its numbers in `benchmarks/results`; `benchmarks.write_tables` writes the tables of the documentation.
"""
