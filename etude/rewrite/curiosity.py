"""Intrinsic rewards: an agent that does not act, trained on the collected steps, whose errors are added to rewards.

RND: random network distillation. Burda et al. 2018, arXiv:1810.12894.
ICM: the intrinsic curiosity module. Pathak et al. 2017, arXiv:1705.05363.
E3B: exploration via elliptical episodic bonuses. Henaff et al. 2022, arXiv:2210.05805, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.base import checks, trees
from etude.base.checks import Stored
from etude.base.data import Batch, Steps, power_of_two
from etude.base.errors import ConfigError
from etude.base.schedules import Linear, all_at, at
from etude.base.seeding import check_generator, generator, generator_state, restore_generator
from etude.base.spaces import Box, Hybrid, Spaces, zeros
from etude.base.trees import Tree
from etude.config import Config
from etude.losses.distributions import of_choices
from etude.networks import Conv, Maker, Mlp, Normaliser, Part, RunningMoments, RunningScale, Spec
from etude.networks.encoding import fitting_filters, width
from etude.optimizers import Adam, Optimizer, check_optimizer
from etude.rewrite.rewriter import Rewriter, RewriterContext, RewriterSpec

ROWS = ("observation", "action", "next_observation")  # of the steps that wait to be learned from


@dataclass(frozen=True)
class Curiosity(RewriterSpec):
    """Settings that intrinsic rewards have in common. Floats may be `Linear` schedules over environment steps."""

    agent: ClassVar[type[Agent]]  # what computes and learns the intrinsic reward
    coefficient: float | Linear = 1.0  # of the normalised intrinsic reward that is added to the environment's
    network: Spec | None = None  # None: Mlp((64, 64)), and a Conv for images
    features: int = 64  # outputs of the networks of observations
    learning_rate: float | Linear = 3e-4  # of these networks
    batch_size: int = 256  # collected steps for each gradient step; each step is learned from once
    gamma: float = 0.99  # discount of the intrinsic returns by whose deviation intrinsic rewards are divided
    normalize_observation: bool = True  # standardise by running moments of the collected observations
    optimizer: Optimizer = Adam()

    def __post_init__(self) -> None:
        checks.declared(self)
        checks.not_negative(self, "coefficient", "learning_rate")
        checks.counts(self, "features", "batch_size")
        checks.fractions(self, "gamma")
        check_optimizer(type(self).__name__, self.optimizer)

    def build(self, context: RewriterContext) -> Rewriter:
        if context.spaces.agents is not None:
            raise ConfigError(
                f"rewrite = {type(self).__name__}() adds one reward for each step; this environment has several "
                "agents. Write a rewriter of your own, which adds one for each agent."
            )
        return self.rewriter(context)

    def rewriter(self, context: RewriterContext) -> Rewriter:
        """What adds the intrinsic reward to steps of one agent."""
        return _IntrinsicReward(self, context)


@dataclass(frozen=True)
class CuriosityConfig(Config):
    """What the engine of an intrinsic reward reads. settings: all of them."""

    settings: Any = None


class _IntrinsicReward(Rewriter):
    """Adds `coefficient` times the intrinsic reward, divided by the running deviation of its discounted return, which
    goes on beyond the ends of episodes (as in Burda et al. 2018, arXiv:1810.12894, section 2.4).

    Rewards are computed before the steps are learned from. Nothing is added before `batch_size` steps were collected,
    from which the deviation is estimated.
    """

    def __init__(self, settings: Curiosity, context: RewriterContext):
        self._settings, self._name, self._spaces = settings, context.name, context.spaces
        filters = fitting_filters(context.spaces.observation)
        default: Spec = Mlp((64, 64)) if filters is None else Conv(filters)
        config = CuriosityConfig(
            network=default if settings.network is None else settings.network,
            learning_rate=settings.learning_rate,
            normalize_observation=settings.normalize_observation,
            optimizer=settings.optimizer,
            settings=settings,
        )
        self._engine = context.make_engine(settings.agent(config), context.seed)
        self._scale = RunningScale(context.environments)
        on = self._engine.layout.normaliser is not None
        self._moments = RunningMoments(context.spaces.observation) if on else None
        self._generator = generator(context.seed, "curiosity")
        self._waiting: dict[str, Tree] = self._none()
        self._metrics: dict[str, float] = {}
        self._now = (0, 1)

    def set_progress(self, step: int, total: int) -> None:
        self._now = (step, total)

    def __call__(self, steps: Steps) -> Steps:
        times, n = steps.shape
        rows = {"observation": steps.observation, "action": steps.action, "next_observation": steps.next_observations()}
        if self._moments is not None:
            self._moments.update(rows["next_observation"])
            name = self._engine.layout.normaliser
            self._engine.load({f"{name}.{key}": value for key, value in self._moments.values().items()})
        flat = {name: trees.flat(tree) for name, tree in rows.items()}
        reward = self._rewards(steps, flat)
        self._scale.update(reward, np.zeros((times, n), bool), steps.columns, self._settings.gamma)
        factor = at(self._settings.coefficient, *self._now) * self._scale.factor
        if self._scale.moments.seen < self._settings.batch_size:
            factor = 0.0
        added = (factor * reward).astype(np.float32)
        self._metrics[f"{self._name}_reward"] = float(added.mean())
        self._learn(flat)
        return replace(steps, reward=steps.reward + added)

    def _rewards(self, steps: Steps, rows: dict[str, Tree]) -> np.ndarray:
        """The intrinsic rewards of steps [T, N], from their rows [T * N, ...]."""
        found = self._reward(rows, steps.reward.size)
        return found.reshape(*steps.shape, *found.shape[1:])

    def _reward(self, rows: dict[str, Tree], count: int) -> np.ndarray:
        """What the agent computes as rewards of rows, [M, ...]. Their number is filled up to a power of two: few sizes
        are compiled."""
        more = power_of_two(count) - count
        filled = {name: trees.map(lambda leaf: np.concatenate([leaf, leaf[:1].repeat(more, 0)]), tree)
                  for name, tree in rows.items()} if more else rows  # fmt: skip
        discount = np.zeros(count + more, np.float32)
        found = self._engine.reward(filled["observation"], filled["action"], filled["next_observation"], discount)
        return np.asarray(found, np.float64)[:count]

    def _learn(self, rows: dict[str, Tree]) -> None:
        """A gradient step for each `batch_size` rows that wait, in random order; the rest wait for more."""
        size = self._settings.batch_size
        waiting = {name: trees.concatenate([self._waiting[name], rows[name]]) for name in ROWS}
        steps = len(waiting["action"]) // size
        for chosen in self._generator.permutation(steps * size).reshape(steps, size) if steps else ():
            layout = self._engine.layout
            update = self._engine.learn(
                _batch({name: trees.rows(waiting[name], chosen) for name in ROWS}),
                all_at(layout.agent.config, layout.hyper, *self._now),
            )
            found = {**update.losses, **update.metrics}
            self._metrics |= {f"{self._name}_{name}": value for name, value in found.items()}
        self._waiting = {name: trees.map(lambda leaf: leaf[steps * size :].copy(), waiting[name]) for name in ROWS}

    def _none(self, rows: int = 0) -> dict[str, Tree]:
        observation = zeros(self._spaces.observation, rows)
        return dict(zip(ROWS, (observation, zeros(self._spaces.action, rows), observation), strict=True))

    def metrics(self) -> dict[str, float]:
        """The mean of what was added to the rewards last, and what the losses reported last."""
        return dict(self._metrics)

    def state(self) -> dict[str, Any]:
        return {
            "engine": self._engine.state(),
            "scale": self._scale.state(),
            "moments": None if self._moments is None else self._moments.state(),
            "generator": generator_state(self._generator),
            "waiting": {name: dict(trees.items(tree)) for name, tree in self._waiting.items()},
            "metrics": dict(self._metrics),
        }

    def check_state(self, saved: Stored) -> None:
        held = saved.fields(("engine", "scale", "moments", "generator", "waiting", "metrics"))
        self._engine.check_state(held["engine"])
        self._scale.check_state(held["scale"])
        if self._moments is None:
            held["moments"].like(None)
        else:
            self._moments.check_state(held["moments"])
        check_generator(held["generator"])
        waiting, rows = held["waiting"].fields(ROWS), None
        for name, tree in self._none().items():
            own = dict(trees.items(tree))
            for path, leaf in waiting[name].fields(own).items():
                shape = (rows, *own[path].shape[1:])
                rows = len(leaf.array(own[path].dtype, shape))
        for number in held["metrics"].table().values():
            number.number(-np.inf, np.inf, nan=True)

    def restore(self, state: dict[str, Any]) -> None:
        self._engine.restore(state["engine"])
        self._scale.restore(state["scale"])
        if self._moments is not None:
            self._moments.restore(state["moments"])
        restore_generator(self._generator, state["generator"])
        for name, tree in self._none().items():
            self._waiting[name] = trees.map(np.array, trees.from_items(tree, state["waiting"][name]))
        self._metrics = dict(state["metrics"])


def _batch(rows: dict[str, Tree]) -> Batch:
    """One batch [1, B] of rows [B, ...]."""
    count = len(rows["action"])
    ones, nothing = np.ones((1, count), np.float32), np.zeros((1, count), np.float32)
    stacked = {name: trees.map(lambda leaf: leaf[None], tree) for name, tree in rows.items()}
    return Batch(reward=nothing, discount=nothing, weight=ones, index=np.zeros((1, count), np.int64), **stacked)


def fixed(part: Part) -> Part:
    """The part with variables that no loss trains."""
    part.frozen = frozenset(part.variables)
    return part


class _RNDAgent(Agent):
    """A fixed network `target` and a trained network `predictor`, both from observations to features."""

    config: CuriosityConfig

    def build(self, make: Maker, spaces: Spaces) -> None:
        settings, space = self.config.settings, spaces.observation
        self.normaliser: Normaliser = make.normaliser(space, self.config.normalize_observation)
        self.target: Part = fixed(make(self.config.network, space, outputs=settings.features))
        spec = self.config.network if settings.predictor_network is None else settings.predictor_network
        self.predictor: Part = make(spec, space, outputs=settings.features)

    def error(self, observation: Tree) -> Any:
        """The squared error of the prediction, a mean over features: [N]."""
        seen = self.normaliser(observation)
        return ops.mean(ops.square(self.predictor(seen) - ops.stop_gradient(self.target(seen))), -1)

    def reward(self, observation: Tree, action: Any, next_observation: Tree, discount: Any) -> Any:
        return self.error(next_observation)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        return Losses(predictor=Loss(ops.mean(self.error(batch.next_observation))))


@dataclass(frozen=True)
class RND(Curiosity):
    """Intrinsic rewards for new observations: the mean squared error with which a trained network predicts the features
    of the next observation that a fixed random network computes.

    Differs from the paper: intrinsic and environment rewards have one value function, one discount factor, and end with
    the episode; the predictor is trained once on each step, and not on all epochs of a policy's minibatches.
    """

    name: ClassVar[str] = "rnd"
    agent: ClassVar[type[Agent]] = _RNDAgent
    predictor_network: Spec | None = None  # None: as `network`, which is the fixed one's


class _ICMAgent(Agent):
    """`model`: an encoder of observations, a forward and an inverse model."""

    config: CuriosityConfig

    def build(self, make: Maker, spaces: Spaces) -> None:
        settings = self.config.settings
        self.action_space: Any = spaces.action
        features = Box(-np.inf, np.inf, (settings.features,), np.float32)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, self.config.normalize_observation)
        self.model: dict[str, Part] = {
            "encoder": make(self.config.network, spaces.observation, outputs=settings.features),
            "forward": make(settings.model_network, (features, spaces.action), outputs=settings.features),
            "inverse": make(settings.model_network, (features, features), outputs=width(spaces.action)),
        }

    def features(self, observation: Tree) -> Any:
        """The features of observations, [N, features]."""
        return self.model["encoder"](self.normaliser(observation))

    def error(self, before: Any, action: Any, after: Any) -> Any:
        """Half the squared error of the forward model, equations 5 and 6: a sum over features, [N]."""
        return 0.5 * ops.sum(ops.square(self.model["forward"]((before, action)) - after), -1)

    def _inverse_error(self, space: Any, predicted: Any, action: Any) -> Any:
        if isinstance(space, Hybrid):
            parts, numbers = (space.numbers, space.choices), width(space.numbers)
            own = [(x[:, :numbers], x[:, numbers:]) for x in (predicted, action)]
            whole = own[1][0], ops.cast(own[1][1], "int32")
            return sum(self._inverse_error(*each) for each in zip(parts, own[0], whole, strict=True))
        if isinstance(space, Box):
            return ops.mean(ops.square(predicted - action))
        return -ops.mean(of_choices(space, predicted).log_prob(action))

    def reward(self, observation: Tree, action: Any, next_observation: Tree, discount: Any) -> Any:
        return self.error(self.features(observation), action, self.features(next_observation))

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        before, after = self.features(batch.observation), self.features(batch.next_observation)
        predicted = self.model["inverse"]((before, after))
        inverse = self._inverse_error(self.action_space, predicted, batch.action)
        forward, share = ops.mean(self.error(before, batch.action, after)), self.config.settings.forward_share
        return Losses(model=Loss((1 - share) * inverse + share * forward, inverse=inverse, forward=forward))


@dataclass(frozen=True)
class ICM(Curiosity):
    """Intrinsic rewards for steps whose outcome is hard to predict: half the squared error with which a forward model
    predicts the features of the next observation from those of the observation, and the action.

    Features are learned by an inverse model, which predicts the action from the features before and after it, and by
    the forward model, as in the paper's equation 7. Box actions are predicted by their mean squared error.
    """

    name: ClassVar[str] = "icm"
    agent: ClassVar[type[Agent]] = _ICMAgent
    model_network: Spec = Mlp((64,))  # of the forward and the inverse model
    forward_share: float = 0.2  # the paper's beta: share of the forward loss; the inverse loss has the rest

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "forward_share")


class _E3BAgent(_ICMAgent):
    """`model`: an encoder of observations and an inverse model."""

    def build(self, make: Maker, spaces: Spaces) -> None:
        super().build(make, spaces)
        self.model = {name: part for name, part in self.model.items() if name != "forward"}

    def reward(self, observation: Tree, action: Any, next_observation: Tree, discount: Any) -> Any:
        """The features [N, features] that `_EpisodicReward` makes rewards of."""
        return self.features(next_observation)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        before, after = self.features(batch.observation), self.features(batch.next_observation)
        predicted = self.model["inverse"]((before, after))
        return Losses(model=Loss(self._inverse_error(self.action_space, predicted, batch.action)))


@dataclass(frozen=True)
class E3B(Curiosity):
    """Intrinsic rewards for observations unlike those before in the episode: f' C^-1 f of the features f of the next
    observation, where C is the sum of f f' over the episode so far and `ridge` times the identity.

    Features are learned by an inverse model, which predicts the action from the features before and after it.
    """

    name: ClassVar[str] = "e3b"
    agent: ClassVar[type[Agent]] = _E3BAgent
    model_network: Spec = Mlp((64,))  # of the inverse model
    ridge: float = 0.1  # the paper's lambda: the features' covariance where an episode begins, times the identity

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(self, "ridge")

    def rewriter(self, context: RewriterContext) -> Rewriter:
        return _EpisodicReward(self, context)


class _EpisodicReward(_IntrinsicReward):
    """The bonus of E3B, from the inverse covariance of the features of each environment's episode, [F, F]."""

    def __init__(self, settings: E3B, context: RewriterContext):
        super().__init__(settings, context)
        self._fresh = np.eye(settings.features) / settings.ridge
        self._inverse = np.tile(self._fresh, (context.environments, 1, 1))

    def _rewards(self, steps: Steps, rows: dict[str, Tree]) -> np.ndarray:
        features = super()._rewards(steps, rows)  # [T, N, F]
        inverse = self._inverse[steps.columns]
        inverse[steps.restarted] = self._fresh
        ended, found = steps.terminated | steps.truncated, np.empty(steps.shape)
        for t, seen in enumerate(features):
            # The inverse after a product is added, Sherman & Morrison 1950: no matrix is inverted
            moved = np.einsum("nij,nj->ni", inverse, seen)
            found[t] = np.sum(moved * seen, -1)
            inverse -= np.einsum("ni,nj->nij", moved, moved) / (1 + found[t])[:, None, None]
            inverse[ended[t]] = self._fresh
        self._inverse[steps.columns] = inverse
        return found

    def state(self) -> dict[str, Any]:
        return {**super().state(), "inverse": self._inverse.copy()}

    def check_state(self, saved: Stored) -> None:
        own = saved.table()
        inverse = own.pop("inverse", Stored(None, f"{saved.place}/inverse"))
        inverse.array(np.float64, self._inverse.shape)
        super().check_state(Stored({name: part.value for name, part in own.items()}, saved.place))

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._inverse = np.array(state["inverse"])
