"""Kill, starve and cut off a server under load, and check its store: `python -m benchmarks.crash`."""
