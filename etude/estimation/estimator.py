"""What to estimate; and from a run and recorded episodes, as arrays [E, T] filled up with zeros, to estimates."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from etude.base import checks
from etude.base.data import LOG_PROB, Episode, Estimate
from etude.base.errors import CallbackError, ConfigError, DataError, NumericalError
from etude.base.events import Estimated, Warned
from etude.base.other_libraries import explain
from etude.base.seeding import generator
from etude.base.spaces import Box, Space
from etude.envs import action_space_of
from etude.envs.faults import explain_error
from etude.estimation.estimators import (
    METHODS,
    SIMULATION,
    check_confidence,
    chosen,
    discounted,
    effective_size,
    estimate_of,
)
from etude.estimation.fqe import FQEConfig, Values, fitted_values
from etude.estimation.target import TargetPolicy, observations_of
from etude.explore.values import Softened
from etude.offline import Dataset
from etude.offline.loading import CheckpointedData, load_data
from etude.training.description import Execution
from etude.training.recording import play


@dataclass(frozen=True)
class EstimateRequest:
    """What `etude.estimate` estimates.

    data: recorded episodes: the path of a file, a `Dataset` of `etude.offline`, or canonical episodes. None takes those
        that the run learns from, where it learns from recorded data alone.
    methods: names of `estimation.METHODS`, and "simulation", which plays episodes of the run's environment.
    explore: as in training at the run's present step.
    explorer: estimate the policy of this explorer on the agent's output instead, such as `etude.explore.Boltzmann(1)`.
    softened: of Discrete actions, a random one with this probability; of Box actions, Gaussian noise with this standard
        deviation (actions are in [-1, 1]).
    model: what "dm", "dr" and "wdr" take values from: an `FQEConfig`; or an object with `q(observation, action)` and
        `v(observation)`, the values [M] of recorded steps under the target, in NumPy. None: `FQEConfig()`. "fqe" is the
        direct method with values of FQE.
    """

    data: Any = None
    methods: str | Iterable[str] = ("wis",)
    confidence: float = 0.95  # of the intervals
    gamma: float | None = None  # discount factor; None: the run's
    explore: bool = False  # estimate the policy that explores as in training, not the best actions
    explorer: Any = None
    softened: float | None = None  # estimate the best actions, softened: random with this probability (Box: Gaussian)
    model: Any = None
    episodes: int = 100  # of the simulation
    seed: int | None = None  # of resampling, critic and simulation; None: the run's

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", chosen(self.methods))
        check_confidence(self.confidence)
        if self.gamma is not None and not 0 <= self.gamma <= 1:
            raise ConfigError(f"gamma = {self.gamma!r}; expected a number from 0 to 1, or None for the run's.")
        given = [name for name in ("explore", "explorer", "softened") if getattr(self, name) not in (None, False)]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} each say which policy is estimated. Give one of them.")
        if self.softened is not None and not self.softened > 0:
            raise ConfigError(f"softened = {self.softened!r}; expected a positive number, such as 0.1.")
        checks.whole_number("episodes", self.episodes)
        if self.model is not None and not isinstance(self.model, FQEConfig):
            missing = [name for name in ("q", "v") if not callable(getattr(self.model, name, None))]
            if missing:
                raise ConfigError(
                    f"model = {self.model!r} has no {' and no '.join(missing)}. Expected an FQEConfig, or an object "
                    "with q(observation, action) and v(observation)."
                )

    @classmethod
    def of(cls, given: Any) -> EstimateRequest:
        """From a dict of arguments, as `train(estimate=)` takes them; ConfigError for other names."""
        if isinstance(given, EstimateRequest):
            return given
        if given is not None and not isinstance(given, dict):
            raise ConfigError(f"estimate = {given!r}; expected a dict of arguments of etude.estimate, such as data.")
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in given or () if name not in known]:
            raise ConfigError(explain("estimate", unknown, known))
        return cls(**(given or {}))


LARGEST_LOG = 300.0  # of a weight: the square of a larger one may be no float64
ROUNDING = 1e-3  # how far above 0 the log of a probability may be that was rounded


class _EpisodeTable(NamedTuple):
    """What estimators read, [E, T]; see `importance`."""

    reward: np.ndarray
    log_ratio: np.ndarray
    q: np.ndarray
    v: np.ndarray

    @property
    def log_weight(self) -> np.ndarray:
        """[E] of the whole episodes."""
        return self.log_ratio.sum(1)


def filled(lengths: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[E, T] float64 from the values of all steps, one episode after the other: [sum of lengths]."""
    table = np.zeros((len(lengths), lengths.max()))
    table[np.arange(lengths.max()) < lengths[:, None]] = values
    return table


def _rewards_of(episodes: Sequence[Episode]) -> np.ndarray:
    """The rewards of all steps [sum of L]. DataError for one that is not finite."""
    for i, episode in enumerate(episodes):
        if not np.isfinite(episode.reward).all():
            step = int(np.argmin(np.isfinite(episode.reward)))
            raise DataError(
                f"Episode {i}: the reward of step {step} is {episode.reward[step]}; expected a finite number. Record "
                "the data again, or leave this episode out."
            )
    return np.concatenate([episode.reward for episode in episodes]).astype(np.float64)


def behaviour_of(episodes: Sequence[Episode], actions: Space, methods: str) -> np.ndarray:
    """The recorded log probabilities of all actions [sum of L]. methods: those that need them, for errors.

    Raises DataError where there are none, and for what no log probability can be.
    """
    for i, episode in enumerate(episodes):
        if LOG_PROB not in episode.extras:
            raise DataError(
                f"{methods} divide by the probabilities with which the recorded actions were taken, and episode {i} of "
                f"the data has no {LOG_PROB!r}; it has {sorted(episode.extras) or 'no extras'}. Record it with an "
                "explorer whose probabilities are known, such as EpsilonGreedy, GaussianNoise of a standard deviation "
                "above 0, or a sampled policy: etude.record(env, episodes, run=run, explore=True). Best actions alone, "
                "and noise that is correlated in time, have none. Or estimate by fqe or dm, which need none."
            )
        log_prob = np.asarray(episode.extras[LOG_PROB])
        if log_prob.shape != (len(episode.reward),):
            raise DataError(
                f"Episode {i}: {LOG_PROB!r} has the shape {list(log_prob.shape)}; expected one number for each of its "
                f"{len(episode.reward)} steps."
            )
        bad = ~np.isfinite(log_prob)
        if not isinstance(actions, Box):
            bad |= log_prob > ROUNDING
        if bad.any():
            step = int(np.argmax(bad))
            raise DataError(
                f"Episode {i}: the {LOG_PROB!r} of step {step} is {log_prob[step]}; expected the natural log of the "
                "probability of the action that was taken, a finite number"
                + ("." if isinstance(actions, Box) else " of at most 0.")
            )
    return np.concatenate([episode.extras[LOG_PROB] for episode in episodes]).astype(np.float64)


def check_weights(log_ratio: np.ndarray) -> None:
    """Raise DataError where weights are too large to compute with."""
    largest = np.cumsum(log_ratio, 1).max()
    if largest > LARGEST_LOG:
        raise DataError(
            f"An episode's importance weight is e^{largest:.0f}: the target is too far from the behaviour to reweight "
            "its episodes. Estimate by fqe, or record episodes with a policy that is closer to the target."
        )


FEW = 10.0  # effective episodes below which an estimate by ratios is hardly one


class Estimates(dict[str, Estimate]):
    """Estimates by method. notes: why they may be far off."""

    notes: tuple[str, ...] = ()

    @property
    def behaviour(self) -> float:
        """The mean discounted return of the recorded episodes."""
        return next(iter(self.values())).behaviour

    def rows(self) -> list[tuple[str, ...]]:
        """A table of text, with its heading."""
        table: list[tuple[str, ...]] = [("method", "value", "interval", "gain", "effective episodes", "largest weight")]
        for each in self.values():
            interval = f"{each.low:.4g} to {each.high:.4g}"
            counts = f"{each.effective_episodes:.1f}", f"{each.largest_weight:.3g}"
            table.append((each.method, f"{each.value:.4g}", interval, f"{each.gain:.3g}", *counts))
        return table

    def __str__(self) -> str:
        table = self.rows()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        lines.append(f"The behaviour's own value is {self.behaviour:.4g}.")
        return "\n".join([*(line.rstrip() for line in lines), *self.notes])


def estimate(run: Any, data: Any = None, methods: str | Iterable[str] = ("wis",), **options: Any) -> Estimates:
    """What the policy of a run would earn in an episode, estimated from episodes that another policy played.

    run: a `Run`, trained or loaded. data, methods, and options such as confidence=0.95, explore=True, softened=0.1: see
    `estimation.EstimateRequest`.
    Returns estimates by method, each with value, interval, gain over the behaviour, effective number of episodes and
    largest weight. Warns where an estimate may be far off. Raises ConfigError for what cannot be estimated, and
    DataError for data that cannot be estimated from, such as episodes without `log_prob`.
    """
    found = Estimator(run, EstimateRequest.of({"data": data, "methods": methods, **options}))()
    for note in found.notes:
        warnings.warn(note, stacklevel=2)
    return found


class Estimator:
    """Estimates the present policy of a run, whenever it is called. Data are read and checked once."""

    def __init__(self, run: Any, request: EstimateRequest):
        if run.engine.spaces.agents is not None:
            raise ConfigError("Off-policy estimation is for environments of one agent; this one has several.")
        self._run, self._request = run, request
        self._gamma = run.agent.config.gamma if request.gamma is None else request.gamma
        self._seed = run.execution.seed if request.seed is None else request.seed
        self._actions = run.engine.spaces.action
        self._data = self._load()
        episodes = self._data.episodes
        self._lengths = np.array([len(episode.reward) for episode in episodes])
        self._reward = filled(self._lengths, _rewards_of(episodes))
        self._behaviour = float(discounted(self._reward, self._gamma).sum(1).mean())
        by_ratios = [name for name in request.methods if name != SIMULATION and METHODS[name].ratios]
        self._log_prob = behaviour_of(episodes, self._actions, ", ".join(by_ratios)) if by_ratios else None
        policy = self._policy()  # where the target cannot be estimated, this says so before anything is trained
        if self._log_prob is not None:
            policy.log_prob(episodes[:1])
        if self._fits:
            policy.described(episodes[:1], 1, np.random.default_rng(0))

    def __call__(self) -> Estimates:
        """The estimates of the policy as it is now."""
        policy = self._policy()
        table, values, found = self._table(policy), self._values(policy), Estimates()
        for name in self._request.methods:
            found[name] = self._simulated(policy) if name == SIMULATION else self._estimate(name, table, values)
        found.notes = () if self._log_prob is None else tuple(self._notes(table.log_weight))
        return found

    @property
    def _fits(self) -> list[str]:
        """The methods that read values of FQE."""
        model = self._request.model
        fitted = model is None or isinstance(model, FQEConfig)
        return [name for name in self._request.methods if name == "fqe" or (fitted and self._reads_values(name))]

    @staticmethod
    def _reads_values(name: str) -> bool:
        return name != SIMULATION and METHODS[name].values

    def _load(self) -> Dataset:
        run, data = self._run, self._request.data
        data = run.data if data is None else data
        if data is None or isinstance(data, CheckpointedData):
            raise ConfigError(
                "Estimates are made from recorded episodes, and this run holds none: give data (--data), such as the "
                "path of a file of episodes."
            )
        loaded = load_data(data, run.engine.spaces, action_space_of(run.environment))
        assert isinstance(loaded, Dataset)
        return loaded

    def _policy(self) -> TargetPolicy:
        request = self._request
        explorer = request.explorer if request.softened is None else Softened(request.softened)
        if explorer is None:
            explorer = self._run.exploring(1, request.explore)
        return TargetPolicy(self._run.actor(request.explore), explorer, self._actions)

    def _table(self, policy: TargetPolicy) -> _EpisodeTable:
        """With the ratios where a method reads them; values are filled in where they are known."""
        zeros = np.zeros_like(self._reward)
        if self._log_prob is None:
            return _EpisodeTable(self._reward, zeros, zeros, zeros)
        log_ratio = filled(self._lengths, policy.log_prob(self._data.episodes) - self._log_prob)
        if np.isnan(log_ratio).any():
            raise DataError("The target's probability of a recorded action is not a number. Are its weights finite?")
        check_weights(log_ratio)
        return _EpisodeTable(self._reward, log_ratio, zeros, zeros)

    def _estimate(self, name: str, table: _EpisodeTable, values: dict[str, Values]) -> Estimate:
        method = METHODS[name]
        if method.values:
            q, v = (filled(self._lengths, each) for each in values[name])
            table = table._replace(q=q, v=v)
        log_weight = table.log_weight if method.ratios else np.zeros(len(self._lengths))
        return self._summary(name, method.estimator(*table, self._gamma), log_weight)

    def _summary(self, name: str, contributions: np.ndarray, log_weight: np.ndarray) -> Estimate:
        skewed = name == SIMULATION or not METHODS[name].shares
        return estimate_of(name, contributions, log_weight, self._behaviour, self._request.confidence, skewed)

    def _values(self, policy: TargetPolicy) -> dict[str, Values]:
        """The values that each method reads; what several read is computed once."""
        model, fitted = self._request.model, self._fits
        own = [name for name in self._request.methods if self._reads_values(name) and name not in fitted]
        found = dict.fromkeys(own, self._modelled()) if own else {}
        if fitted:
            engine = self._run.engine
            execution = Execution(self._seed, engine.name, engine.device, environments=1)
            config = replace(model if isinstance(model, FQEConfig) else FQEConfig(), gamma=self._gamma)
            rng = generator(self._seed, "target actions")
            found |= dict.fromkeys(fitted, fitted_values(config, policy, self._data, execution, rng))
        return found

    def _modelled(self) -> Values:
        """The values of a model that the user gave."""
        model, episodes = self._request.model, self._data.episodes
        observation = observations_of(episodes)
        action = np.concatenate([episode.action for episode in episodes])
        try:
            values = Values(np.asarray(model.q(observation, action)), np.asarray(model.v(observation)))
        except Exception as error:
            raise CallbackError(f"The model of the estimates raised {explain_error(error)}.", error) from None
        for what, found in zip(Values._fields, values, strict=True):
            if found.shape != (len(action),) or not np.isfinite(found).all():
                raise ConfigError(
                    f"model.{what} returned an array of shape {list(found.shape)}; expected {len(action)} finite "
                    "numbers, one for each recorded step."
                )
        return values

    def _simulated(self, policy: TargetPolicy) -> Estimate:
        run, request = self._run, self._request
        explorer = policy.explorer
        played = play(run.environment, request.episodes, policy.actor, explorer, self._seed, run.task)
        lengths = np.array([len(episode.reward) for episode in played])
        returns = discounted(filled(lengths, _rewards_of(played)), self._gamma).sum(1)
        return self._summary(SIMULATION, returns, np.zeros(len(returns)))

    def _notes(self, log_weight: np.ndarray) -> list[str]:
        """What to know of estimates by ratios with these log weights [E]."""
        notes, count, never = [], len(log_weight), int(np.isneginf(log_weight).sum())
        if never:
            notes.append(
                f"The target never takes some of the recorded actions: {never:,} of {count:,} episodes have the weight "
                "0. A policy that takes its best actions alone is estimated better softened (softened=0.1), as it "
                "explores (explore=True), or by fqe."
            )
        size = effective_size(log_weight)
        if size < min(FEW, count):
            notes.append(
                f"The weights of {count:,} episodes are as good as {size:.1f} equally weighted ones: estimates by "
                "ratios say little. Record more episodes, with a policy that is closer to the target, or use fqe."
            )
        return notes


class ScheduledEstimates:
    """Estimates of the present policy of a run while it trains."""

    def __init__(self, run: Any):
        self._run = run
        self._estimator: Estimator | None = None

    def prepare(self, request: EstimateRequest) -> None:
        """Read and check what is estimated from."""
        self._estimator = Estimator(self._run, request)

    def __call__(self) -> Estimated | Warned:
        """What cannot be estimated at this step does not stop the run."""
        assert self._estimator is not None
        try:
            found = self._estimator()
        except (ConfigError, DataError, NumericalError) as error:
            return Warned(self._run.step, f"No estimates at this step. {error}")
        return Estimated(self._run.step, dict(found), found.notes)
