"""How a server starts, with and without a past."""

import pytest
from torch import nn

from cdfl.core import Settings
from cdfl.server.engine_startup import in_service, open_engine
from cdfl.server.store import Store
from cdfl.user_code import SetupError

from .live import data, of_server, tiny_instance
from .toy import same_state

pytestmark = pytest.mark.slow
ALIKE = Settings(shared_epochs=1, separate_epochs=0)


def test_a_restart_does_not_pretrain_again(tmp_path):
    with Store.open(tmp_path) as store:
        first = open_engine(tiny_instance(), store)
        first.close()

    def never(message):
        raise AssertionError(message)

    with Store.open(tmp_path) as store:
        second = open_engine(tiny_instance(), store, progress=never)
        second.close()
    assert same_state(first.state, second.state)


@pytest.mark.parametrize("apart", [True, False])
def test_clusters_that_begin_equal_are_warned_of_while_it_helps(tmp_path, caplog, apart):
    instance = tiny_instance() if apart else tiny_instance(settings=ALIKE)
    for told in (not apart, False):
        caplog.clear()
        with Store.open(tmp_path) as store:
            open_engine(instance, store).close()
        assert ("all 3 clusters begin with the same weights" in caplog.text) == told
        assert ("pre-train them, and use a new --store" in caplog.text) == told


def test_one_cluster_needs_no_warning(tmp_path, caplog):
    one = of_server([data(0, 4)], [data(0, 4)])
    with Store.open(tmp_path) as store:
        open_engine(tiny_instance(clusters=one, settings=ALIKE), store).close()
    assert caplog.text == ""


def test_new_settings_are_kept(tmp_path):
    for rate in (0.1, 0.2):
        with Store.open(tmp_path) as store:
            open_engine(tiny_instance().with_settings(base_rate=rate), store).close()
            assert store.snapshots()[-1].settings.rates.base_rate == rate


def test_another_model_is_refused(tmp_path):
    with Store.open(tmp_path) as store:
        open_engine(tiny_instance(), store).close()
        other = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        with pytest.raises(
            SetupError, match=r"not the stored one: 0.bias, 0.weight, 1.bias differ; serve the stored model"
        ):
            open_engine(tiny_instance(model=other), store)


def test_another_number_of_clusters_is_refused(tmp_path):
    with Store.open(tmp_path) as store:
        open_engine(tiny_instance(), store).close()
        fewer = tiny_instance(clusters=of_server([data(0, 4)], [data(0, 4)]))
        with pytest.raises(SetupError, match="1 clusters, the store 3; serve as many, or use a new --store"):
            open_engine(fewer, store)


def test_uploads_are_judged_unless_all_are_accepted():
    assert in_service(Settings(), accept_all=False).guard
    assert not in_service(Settings(guard=True), accept_all=True).guard
