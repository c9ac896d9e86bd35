"""Which configurations a study tries: points of its space, or what Optuna proposes, by ask and tell."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from etude.base import checks
from etude.base.errors import ConfigError, MissingExtra
from etude.base.seeding import generator
from etude.checkpoint.config_json import to_json
from etude.tuning.plan import StudyState
from etude.tuning.space import Choices, LogInterval
from etude.tuning.trial import Configuration


@dataclass(frozen=True)
class GridSearch:
    """Every combination of the values in lists, in order; fields that have a distribution are drawn for each."""

    def propose(self, number: int, state: StudyState) -> dict[str, Any]:
        """See `Search`."""
        points = state.space.grid()
        drawn = state.space.draw(generator(state.plan.seed, "random search", number))
        return {**points[number % len(points)], **drawn}


@dataclass(frozen=True)
class RandomSearch:
    """Independent draws; of a list, one of its values. Bergstra & Bengio 2012, JMLR 13."""

    def propose(self, number: int, state: StudyState) -> dict[str, Any]:
        """See `Search`."""
        rng = generator(state.plan.seed, "random search", number)
        return {name: state.space.draw_one(name, rng) for name in state.space.domains}


SAMPLERS = {"tpe": "TPESampler", "gp": "GPSampler", "random": "RandomSampler"}


@dataclass(frozen=True)
class OptunaSearch:
    """A sampler of Optuna proposes configurations by the scores of those before: "tpe" (Bergstra et al. 2011), "gp"
    (Gaussian processes) or "random". Needs the extra `optuna`.

    options: keyword arguments of the sampler. The sampler is told the score of every configuration that waits or is
    over, and is made anew for each proposal, so that a study goes on after it was killed. Proposals depend on the order
    in which trials end, unless one runs at a time.
    """

    sampler: str = "tpe"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.one_of(self, "sampler", tuple(SAMPLERS))
        to_json(dict(self.options))
        optuna = _optuna()
        try:
            getattr(optuna.samplers, SAMPLERS[self.sampler])(seed=0, **self.options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"OptunaSearch: options = {dict(self.options)!r}: {error}.") from error

    def propose(self, number: int, state: StudyState) -> dict[str, Any]:
        """See `Search`."""
        optuna = _optuna()
        seed = int(generator(state.plan.seed, "optuna", number).integers(2**31))
        sampler = getattr(optuna.samplers, SAMPLERS[self.sampler])(seed=seed, **self.options)
        distributions = {name: _distribution(optuna, state, name) for name in state.space.domains}
        with _quiet(optuna):
            study = optuna.create_study(direction="maximize", sampler=sampler)
            for each in state.configurations:
                if all(trial.over or trial.rests for trial in each.trials):
                    study.add_trial(_told(optuna, state, each, distributions))
            asked = study.ask(distributions).params
        return {name: _value(state, name, value) for name, value in asked.items()}


def _told(optuna: Any, state: StudyState, each: Configuration, distributions: Mapping[str, Any]) -> Any:
    """A configuration as a trial of Optuna."""
    values = state.space.values(each.trials[0].genome.config)
    params = {name: _index(state, name, value) for name, value in values.items()}
    if each.failed:
        return optuna.trial.create_trial(
            params=params, distributions=dict(distributions), state=optuna.trial.TrialState.FAIL
        )
    return optuna.trial.create_trial(params=params, distributions=dict(distributions), value=each.score())


def _distribution(optuna: Any, state: StudyState, name: str) -> Any:
    domain = state.space.domains[name]
    if isinstance(domain, Choices):
        return optuna.distributions.CategoricalDistribution(tuple(range(len(domain.values))))
    whole = isinstance(state.space.number(name, 0.0), int)
    kind = optuna.distributions.IntDistribution if whole else optuna.distributions.FloatDistribution
    ends = (state.space.number(name, 0.0), state.space.number(name, 1.0))
    return kind(*ends, log=isinstance(domain, LogInterval))


def _value(state: StudyState, name: str, value: Any) -> Any:
    domain = state.space.domains[name]
    return domain.values[value] if isinstance(domain, Choices) else value


def _index(state: StudyState, name: str, value: Any) -> Any:
    domain = state.space.domains[name]
    return domain.values.index(value) if isinstance(domain, Choices) else value


@contextlib.contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Let Optuna log warnings only, and then what it did before."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _optuna() -> Any:
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise MissingExtra("OptunaSearch", "optuna") from error
