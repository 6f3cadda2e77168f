"""Which uploads are evaluated before their turn comes."""

import torch

from cdfl.core import Settings, defence_of
from cdfl.server.metrics import Metrics
from cdfl.server.submission import Submission
from cdfl.server.upload_losses import Evaluation

from .scheduled import Proxy
from .toy import LAYOUT, TARGETS, first_state

GUARDED = Settings(guard=True)


def test_an_upload_is_evaluated_although_its_base_is_not_known_yet():
    """What stands for the base must not make the defence refuse it."""
    evaluation = Evaluation(None, GUARDED, defence_of(GUARDED), Proxy(), Metrics())
    model = TARGETS[1] + torch.linspace(-0.1, 0.1, LAYOUT.size)
    submission = Submission("car-7", "key", 0, "", model, "", None)
    evaluation.run([submission], first_state())
    assert submission.losses is not None
