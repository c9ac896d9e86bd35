"""Fitted Q evaluation: a critic of a policy that is given, learned from recorded transitions.

Le, Voloshin & Yue 2019, Batch policy learning under constraints, arXiv:1903.08738, algorithm 3, with a target network
that follows the critic in the place of a new regression for each iteration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from etude import ops
from etude.agent import ActsBy, Agent, LearnsFrom, Loss, Losses
from etude.base import checks, trees
from etude.base.data import Batch, Episode
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.spaces import Box, Discrete, Spaces
from etude.base.trees import Tree
from etude.config import OfflineConfig
from etude.estimation.target import ROWS, TargetPolicy, observations_of, steps_of
from etude.losses.value import squared, td
from etude.networks import Maker, Mlp, Normaliser, Part, Spec, target
from etude.offline import Dataset
from etude.protocols import Engine
from etude.replay.ring import Extras
from etude.training.assembly.agents import agent_for
from etude.training.description import Execution
from etude.training.kinds import OfflineLearning, TrainingContext, kind_of
from etude.training.sources import Sources

TARGET = "target_policy"  # the extra: probabilities [n], or sampled actions [samples, A], in the next observation


class _PolicyEvaluation(OfflineLearning):
    """Recorded transitions, and a policy that is evaluated on them: nothing acts with the critic."""

    def __init__(self) -> None:
        super().__init__("transitions and a target policy")

    def extras(self, context: TrainingContext) -> Extras:
        data: Any = context.recorded()
        policy = data.episodes[0].extras[TARGET]
        return {TARGET: (policy.shape[1:], policy.dtype)}


@dataclass(frozen=True)
class FQEConfig(OfflineConfig):
    """Hyperparameters of FQE, besides those of every offline algorithm. `gamma` is that of the estimate."""

    network: Spec = Mlp((128, 128))
    learning_rate: float | Linear = Linear(1e-3, 1e-4)
    steps: int = 10_000  # gradient steps
    tau: float = 0.05  # Polyak rate of the target critic, applied after every gradient step
    samples: int = 10  # Box actions: sampled actions of a stochastic target in each observation
    v_min: float = -math.inf  # bounds on values that are bootstrapped from; narrower ones follow from the rewards
    v_max: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau")
        checks.counts(self, "steps", "samples")
        if self.normalize_reward or self.clip_reward:
            raise ConfigError(
                "FQEConfig: normalize_reward and clip_reward change the rewards whose sum is estimated. Leave them off."
            )
        if not self.v_min < self.v_max:
            raise ConfigError(f"FQEConfig: v_min = {self.v_min} and v_max = {self.v_max}; expected v_min < v_max.")


class FQE(Agent):
    """A critic of the target policy: of every Discrete action, or of pairs of observations and Box actions.

    The policy is data, the extra `target_policy`, so that a loss reads arrays on every engine.
    """

    acts_by: ClassVar[ActsBy] = "values"
    learns_from: LearnsFrom = _PolicyEvaluation()
    actions: ClassVar[tuple[type[Any], ...]] = (Discrete, Box)

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.discrete: bool = isinstance(spaces.action, Discrete)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        if isinstance(spaces.action, Discrete):
            self.critic: Part = make(self.config.critic_network, spaces.observation, outputs=int(spaces.action.n))
        else:
            self.critic = make(self.config.critic_network, (spaces.observation, spaces.action), outputs=1)
        self.critic_target: Part = target(self.critic, tau="tau")

    def act(self, observation: Tree) -> Any:
        """The values [N, n] of Discrete actions under the target policy."""
        return self.critic(self.normaliser(observation))

    def value(self, observation: Tree) -> Any:
        """The values [N] of pairs (observation, Box action)."""
        seen, action = observation
        return self.critic((self.normaliser(seen), action))[:, 0]

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        following, policy = self.normaliser(batch.next_observation), batch.extras[TARGET]
        if self.discrete:
            q = ops.take_last(self.critic(self.normaliser(batch.observation)), batch.action)
            next_value = ops.sum(policy * self.critic_target(following), -1)
        else:
            q = self.critic((self.normaliser(batch.observation), batch.action))[:, 0]
            # The mean target value [B] of M actions [B, M, A] for each observation
            many = policy.shape[1]
            repeated = trees.map(lambda leaf: ops.concatenate([leaf] * many, 0), following)
            joined = ops.concatenate([policy[:, i] for i in range(many)], 0)
            next_value = ops.mean(ops.reshape(self.critic_target((repeated, joined)), (many, -1)), 0)
        next_value = ops.clip(next_value, self.config.v_min, self.config.v_max)
        td_error = td(q, batch.reward, batch.discount, next_value)
        loss = Loss(ops.mean(batch.weight * squared(td_error)), td_error=td_error, q_value=ops.mean(q))
        return Losses(critic=loss)


class Values(NamedTuple):
    """Values under the target policy, of all recorded steps: [sum of L] each."""

    q: np.ndarray  # of the recorded action
    v: np.ndarray  # of the observation


def fitted_values(config: FQEConfig, policy: TargetPolicy, data: Dataset, execution: Execution, rng: Any) -> Values:
    """Train a critic of `policy` by an offline run on the episodes, and evaluate it on them.

    execution: seed, engine and device. rng: samples Box actions. Raises NumericalError where training diverges.
    """
    described = policy.described(data.episodes, config.samples, rng)
    here, following = steps_of(data.episodes)
    config = bounded(config, np.concatenate([episode.reward for episode in data.episodes]))
    _, agent = agent_for(FQE(config), data.environment, None, data.spaces)  # over images, with convolutions
    engine = kind_of(agent).make_engine(agent, data.spaces, execution)
    # The data with what the target policy does next [sum of L, ...] as their only extra
    ends = np.cumsum([len(episode.reward) for episode in data.episodes])[:-1]
    episodes: Sequence[Episode] = [
        replace(episode, extras={TARGET: part})
        for episode, part in zip(data.episodes, np.split(described[following], ends), strict=True)
    ]
    known = replace(data, episodes=tuple(episodes))
    sources = Sources({"recorded": known}, {"recorded": 1.0})
    learn(TrainingContext(agent, engine, data.environment, execution, sources), config.steps)
    action = np.concatenate([episode.action for episode in known.episodes])
    return _values(engine, observations_of(data.episodes), action, described[here])


def bounded(config: FQEConfig, reward: np.ndarray) -> FQEConfig:
    """With bounds that no value exceeds if all rewards are between the smallest and the largest of these, [M]: without
    them, values that are bootstrapped from actions outside the data can grow without limit."""
    if config.gamma == 1:
        return config
    low, high = (float(each) / (1 - config.gamma) for each in (min(reward.min(), 0.0), max(reward.max(), 0.0)))
    if not low < high:  # all rewards are 0
        return config
    return replace(config, v_min=max(low, config.v_min), v_max=min(high, config.v_max))


def learn(context: TrainingContext, steps: int) -> None:
    """All gradient steps of an offline run."""
    kind: Any = context.agent.learns_from
    learner: Any = kind.make_learner(context)
    progress = learner.progress
    progress.total = steps
    while progress.step < steps:
        progress.step += learner.collect_request(steps - progress.step).steps
        learner.learn_if_due()


def _values(engine: Engine, observation: Tree, action: np.ndarray, policy: np.ndarray) -> Values:
    """policy: probabilities [M, n], or sampled actions [M, samples, A]."""
    parts = []
    for start in range(0, len(action), ROWS):
        rows = slice(start, start + ROWS)
        seen = trees.rows(observation, rows)
        if isinstance(engine.spaces.action, Discrete):
            values = engine.act(seen)
            q = np.take_along_axis(values, action[rows, None], 1)[:, 0]
            v = (policy[rows] * values).sum(1)
        else:
            q = engine.value((seen, action[rows]))
            v = np.mean([engine.value((seen, each)) for each in np.moveaxis(policy[rows], 1, 0)], 0)
        parts.append((q, v))
    q, v = (np.concatenate(part).astype(np.float64) for part in zip(*parts, strict=True))
    return Values(q, v)
