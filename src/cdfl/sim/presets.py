"""Presets: named settings for a scenario, each with a time model."""

from collections.abc import Callable
from dataclasses import dataclass

from cdfl.argument_checks import did_you_mean
from cdfl.core import EXPERTS, Settings, paper, reading
from cdfl.scenarios import Scenario
from cdfl.sim.time_models import FewActive, TimeModel, Uniform


@dataclass(frozen=True)
class Preset:
    """Settings under a name."""

    name: str
    summary: str
    settings: Callable[[Scenario], Settings]
    time_model: TimeModel  # unless the run names another


def _ours(scenario: Scenario) -> Settings:
    return scenario.all_settings


def _experts(scenario: Scenario) -> Settings:
    if isinstance(scenario.settings, Settings):
        return scenario.settings.replace(reply="experts")
    return EXPERTS.replace(**dict(scenario.settings))


def _printed(row: Callable[[str], Settings]) -> Callable[[Scenario], Settings]:
    def of(scenario: Scenario) -> Settings:
        if scenario.paper_row is None:
            raise ValueError(f"the paper does not run {scenario.name}; use preset 'default'")
        return row(scenario.paper_row).replace(max_staleness=scenario.num_clients)  # tau_0 is the number of clients

    return of


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("default", "ours; replies are one model", _ours, Uniform()),
        Preset("experts", "replies are all clusters, served behind a router", _experts, Uniform()),
        Preset("paper", "the printed values, literally", _printed(paper), Uniform()),
        Preset("paper-reading", "a reading of what is not printed", _printed(reading), FewActive()),
    )
}


def find_preset(name: str) -> Preset:
    """Return a preset by its name.

    >>> find_preset("paper-reading").time_model
    FewActive(active=4, turns_each=5)
    """
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}{did_you_mean(name, PRESETS)}")
    return PRESETS[name]


def preset_for(scenario: Scenario, preset: str) -> Settings:
    """Return a preset's settings for a scenario."""
    return find_preset(preset).settings(scenario)
