"""What a client gets from a stack on a CPU does not depend on the other rows, to the bit."""

import pytest
import torch

from cdfl.core import flatten
from cdfl.scenarios import load_scenario
from cdfl.sim.client_stack import Stack
from cdfl.sim.engine import Training, no_progress
from cdfl.sim.scenario_instance import ScenarioInstance


@pytest.fixture(scope="module")
def stack_and_trainings():
    scenario = load_scenario("digits-4")
    instance = ScenarioInstance(scenario, scenario.federation(0), scenario.all_settings)
    trainings = []
    for client in range(7):
        turn = instance.turn_data(client, 0)
        start = flatten(instance.model) + 1e-3 * client
        plan = turn.plan[: 2 + client % 4]
        trainings.append(Training(instance.federation, turn.draw.train, start, plan, turn.noise_seed))
    return Stack(instance.model, instance.loss, scenario.all_settings.training), trainings


@pytest.mark.parametrize("parts", [2, 3])
def test_stacks_of_two_and_more_give_the_same_bits(stack_and_trainings, parts):
    stack, trainings = stack_and_trainings
    together = stack.train(trainings)
    for part in range(parts):
        assert torch.equal(stack.train(trainings[part::parts]), together[part::parts])


def test_no_training_is_left_over_alone(stack_and_trainings):
    stack, trainings = stack_and_trainings
    together, width = stack.train(trainings), stack.width
    try:
        stack.width = 6  # of seven
        assert torch.equal(stack.train(trainings), together)
    finally:
        stack.width = width


def test_steps_are_counted_once(stack_and_trainings):
    stack, trainings = stack_and_trainings
    counted = []
    stack.on_step = counted.append
    try:
        stack.train(trainings)
    finally:
        stack.on_step = no_progress
    assert sum(counted) == sum(len(training.plan) for training in trainings)
