"""An algorithm of your own: CDFL that moves all clusters equally for the first uploads."""

from dataclasses import replace

import torch

import cdfl
from cdfl.algorithms import CDFL, check_algorithm
from cdfl.core import estimator_of


class Patient:
    """An estimator that is undecided for a while, then CDFL's."""

    needs_measures = True

    def __init__(self, settings, until):
        self.usual, self.until = estimator_of(settings), until

    def begin(self, num_clusters):
        return self.usual.begin(num_clusters)

    def __call__(self, upload, measures, memory, epoch):
        mixture, memory = self.usual(upload, measures, memory, epoch)
        return (torch.full_like(mixture, 1 / len(mixture)) if epoch <= self.until else mixture), memory


class PatientCDFL(CDFL):
    """CDFL with that estimator."""

    name = "patient"

    def __init__(self, settings):
        super().__init__(settings, estimator=Patient(settings, until=8))


check_algorithm(PatientCDFL(cdfl.Settings()))  # says what an algorithm does wrong
digits = replace(cdfl.scenarios.load_scenario("digits-4"), num_clients=8, num_uploads=24)
print(cdfl.compare(digits, algorithms=["cdfl", PatientCDFL], seeds=2, local_epochs=2))
