from cdfl import algorithms
from cdfl.run_events import Finished, Uploaded, only
from cdfl.sim.runner import compare_events
from experiments.harness import RunKey, resolve
from experiments.harness.fedbuff_int8 import FedBuffInt8, known


def test_one_model_in_int8_is_a_quarter_of_the_bytes_and_learns_as_well():
    configs = [resolve(RunKey("digits-4", "default", name), "cpu", smoke=True) for name in ("fedbuff", "fedbuff-int8")]
    events = list(compare_events(configs))
    plain, rounded = (only([event for own, event in events if own == which], Finished)[0] for which in (0, 1))
    assert 0.2 < rounded.bytes_down / plain.bytes_down < 0.35
    assert rounded.bytes_up == plain.bytes_up
    assert rounded.cluster != plain.cluster
    assert abs(rounded.after - plain.after) < 0.1
    assert not any(upload.routed for upload in only([event for _, event in events], Uploaded))


def test_it_is_known_only_where_the_study_asks_for_it():
    assert FedBuffInt8.name not in algorithms.ALGORITHMS
    assert algorithms.ALGORITHMS[known(FedBuffInt8.name)] is FedBuffInt8
    assert known("fedbuff") == "fedbuff"
