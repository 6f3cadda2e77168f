"""A server that is killed, starved and cut off, under load: does it keep its word? `python -m benchmarks.crash`."""
