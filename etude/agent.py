"""What an agent is: networks, what it would do, and what it minimises. Nothing else.

An agent never saves, plots, steps an environment or holds replay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, Spaces
from etude.base.trees import Tree
from etude.networks import Maker
from etude.protocols import Weights

ActsBy = Literal["values", "actions", "distribution"]
"""Values of every action (explored by the config's `epsilon`; `losses.masks.MaskedValues` where there is a mask),
actions to which noise is added (`exploration_noise`), or a distribution that is sampled."""

LearnsFrom = str | Any
"""What a batch holds: an object of a class derived from `training.kinds.LearningKind`, or the name of one of etude's.

transitions: replayed ones.
new_transitions: the same; new ones come first in a batch, each with weight 1 in one and 0 in all others.
returns: replayed ones, each up to the end of its episode (`replay.WholeReturns`).
transitions_and_returns: recorded ones, with the extra `return`, of the rest of the episode.
transitions_and_next_actions: recorded ones, with the extras `next_action` and `next_recorded` (0 where there is none).
return_sequences: recorded runs of them, with the extras `return`, `time` and `best_return` (`replay.ReturnSequences`).
sequences: replayed runs of them (`replay.Sequences`).
token_sequences: recorded games of tokens, each in one sequence (`replay.TokenSequences`).
token_pairs: the same in pairs of games that began alike, the one that returned more first (`replay.PreferencePairs`).
token_games: the same of games of the present policy, with the extras `log_prob` and `advantage` (`replay.TokenGroups`).
advantages: steps of the present policy, with the extras `advantage`, `return`, `value`, `log_prob`.
lambda_returns: the same without log probabilities, for agents that act by values: `return` is the lambda return of
    `value` (`replay.Advantages`).
advantage_sequences: [B, L] of such steps in a row, with the same extras, `recurrent_state` [B, M] before the first of
    them, and `first` (1 where an episode begins within them).
demonstrations: the same, of the rewards that the agent computes (`reward`), with next observations, and as the extra
    `expert` as many steps of recorded data: a dict of `observation`, `action`, `next_observation` and `discount`.
gradients: the same, of one environment alone; losses are differentiated where the steps were collected, with the
    weights that they were collected with, and the gradients applied as they come.
unrolls: [B, T] steps of a recent policy, with the extras `log_prob` and `goes_on` (0 where an episode ends).
episodes: all steps of whole episodes of the present policy, with the extra `return`.
fitness: only the returns of episodes that were each played with weights of its own; such agents write `estimate` in the
    place of `loss`."""


class Loss:
    """One scalar to minimise, and metrics of it.

    value: scalar. td_error: [B], for priorities. filled: scalar, 1 where there is anything to learn from in this
    minibatch, else 0: what is reported are means over those where there is; None: there always is. metrics: by name,
    scalars or [B], of which the mean is reported; with several agents that over the examples in which they act.
    policy: (the distribution that is trained, the weights of the examples), for losses with a trust region.
    """

    def __init__(self, value: Any, td_error: Any = None, filled: Any = None, policy: Any = None, **metrics: Any):
        self.value: Any = value
        self.policy: Any = policy
        self.td_error: Any = td_error
        self.filled: Any = filled
        self.metrics: dict[str, Any] = metrics


class Losses(dict[str, Loss]):
    """Losses by name. Each trains the part of the agent that has its name (an attribute that holds a network, or a
    dict of networks) and nothing else; all gradients are taken at the same parameters."""


class Recorded(NamedTuple):
    """Recorded episodes that a term of a loss reads: see `etude.Auxiliary`. Workers get the agent without them.

    data: as `Run(data=)` takes it. batch_size: transitions for each gradient step.
    """

    data: Any
    batch_size: int

    def __reduce__(self) -> Any:
        return Recorded, (None, self.batch_size)


class Agent:
    """The base of every agent, built-in or your own: write `build`, `act` and `loss` (and `value` where there is a
    critic).

    config: a frozen dataclass, derived from one of `etude.config` (`OffPolicyConfig`, `OnPolicyConfig`, ...), which say
        when a run learns from how much. Its float fields, and those that `target` names, may change while a run goes
        on: inside `loss` they are scalars of the engine's framework.
    noise: set in `build`: shapes of the standard normal arrays that `loss` gets, [B, *shape] by name.
    batch_noise: the same for arrays that a whole batch shares, [*shape].
    trained_every: set in `build`: losses that are not trained at every gradient step, and the config field with the
        number of gradient steps from one time to the next.
    trust_regions: set in `build`: losses whose step is a natural gradient within a trust region, not the optimizer's.
        They give `Loss(policy=)`, and the config derives from `TrustRegionConfig`.
    state_size: set in `build` by recurrent agents: the size M of the recurrent state of one environment.
    recorded: recorded episodes by the name of the term of a loss that reads them.
    given: set in `build`: what no loss trains and a run therefore takes over by `start_from`, and from which runs.
    """

    acts_by: ClassVar[ActsBy] = "distribution"  # what `act` returns
    learns_from: LearnsFrom = "transitions"  # what a batch holds
    actions: ClassVar[tuple[type[Space], ...]] = (Box, Discrete, MultiDiscrete, MultiBinary)
    reads_tokens: ClassVar[bool] = False  # whether it learns from whole games of tokens with a `Transformer`
    reads_rewards: ClassVar[bool] = False  # whether it acts by the rewards so far; see `rewarded`
    bounded_actions: ClassVar[bool] = False  # whether its Box actions lie in [-1, 1], so that they need two bounds each
    config: Any
    noise: dict[str, tuple[int, ...]]
    batch_noise: dict[str, tuple[int, ...]]
    trained_every: dict[str, str]
    trust_regions: frozenset[str]
    state_size: int
    recorded: dict[str, Recorded]
    given: dict[str, str]

    def __init__(self, config: Any, *more: Any, **options: Any):
        if more or options or isinstance(config, type) or not dataclasses.is_dataclass(config):
            given = ", ".join([*map(repr, (config, *more)), *(f"{name}={value!r}" for name, value in options.items())])
            raise ConfigError(
                f"{type(self).__name__} takes one config, the hyperparameters, and was given ({given}). An agent is "
                'trained in a run: etude.Run("ppo", "CartPole-v1").train(100_000), or Run(agent, env).'
            )
        self.config: Any = config
        self.recorded = {}
        self.before_build()

    def __str__(self) -> str:
        """What messages call it. An algorithm of etude goes by its config, as C51 and Rainbow have one class."""
        named = self.config if type(self).__module__.startswith("etude.") else self
        return type(named).__name__.removesuffix("Config")

    def before_build(self) -> None:
        """Empty what `build` sets besides the networks."""
        self.noise, self.batch_noise, self.trained_every, self.state_size = {}, {}, {}, 0
        self.trust_regions, self.given = frozenset(), {}

    def build(self, make: Maker, spaces: Spaces) -> None:
        """Make the networks for these spaces, as attributes."""
        raise NotImplementedError(f"{type(self).__name__} defines no build(make, spaces).")

    @property
    def state_recorded(self) -> bool:
        """Whether the recurrent state is recorded with each step of a rollout. Where it is not, as it is too large, it
        is computed again from the first step of a rollout on; see `value`."""
        return True

    def act(self, observation: Tree, *state: Any) -> Any:
        """What the explorer turns into actions, for [N, ...] observations: action values [N, n], or a distribution,
        `Deterministic` where noise is added to actions. See `acts_by`.

        Recurrent agents also take their state [N, M], zeros at the first step of an episode, and return (what the
        explorer turns into actions, the state for the next step).
        """
        raise NotImplementedError(f"{type(self).__name__} defines no act(observation).")

    def acted(self, state: Any, action: Any) -> Any:
        """The recurrent state [N, M] for the next step, once the explorer has chosen actions [N, ...]; agents that
        remember what they did write it, over `etude.ops`."""
        return state

    def rewarded(self, state: Any, reward: Any) -> Any:
        """The recurrent state [N, M] for the next step, once this one is rewarded by [N], in the environment's own
        rewards; agents that remember what they earned write it, over `etude.ops`, and set `reads_rewards`."""
        return state

    def acts_for(self, action: Space) -> ActsBy:
        """What `act` returns for these actions."""
        return self.acts_by

    def value(self, observation: Tree, *state: Any) -> Any:
        """State values [N] for [N, ...] observations; agents with a critic of states write it.

        Recurrent agents also take their state [N, M], and return (values, the state for the next step's value). Where
        it is not recorded they are asked for sequences, too: with observations [N, L, ...] and, as a third argument, 1
        where an episode begins [N, L], they return (values [N, L], the state after the last step).
        """
        raise NotImplementedError(f"{type(self).__name__} has no critic of states; it cannot estimate advantages.")

    def reward(self, observation: Tree, action: Any, next_observation: Tree, discount: Any) -> Any:
        """Rewards [N] of N steps, in the place of the environment's; agents that learn from demonstrations write it.

        discount: [N] gamma, or 0 where the episode terminated.
        """
        raise NotImplementedError(f"{type(self).__name__} computes no rewards; it cannot learn from demonstrations.")

    def estimate(self, weights: np.ndarray, returns: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """A gradient to descend [P] for the trained weights [P], from the returns [2, n] of episodes that were played
        with the weights plus, and minus, the config's `sigma` times noise [n, P]."""
        raise NotImplementedError

    def after_phase(self, read: Callable[[Iterable[str]], Weights], metrics: dict[str, float]) -> Weights:
        """Weights to put in the place of others once a learning phase is over, for numbers that no loss trains.

        read: gives weights by name (`attribute.variable`). metrics: those of the losses, means over the phase.
        """
        return {}

    def trained_by(self, part: str) -> str:
        """The name of the loss that trains the part of this name, `attribute` or `attribute.key`."""
        return part.split(".")[0]

    def transform_gradient(self, loss: str, gradient: Any) -> Any:
        """The gradient [P] that is descended for the loss of this name, from that of all that it trains [P], before
        `max_gradient_norm` bounds it. Written over `etude.ops`; `self.config` holds the present hyperparameters."""
        return gradient

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        """The losses of one batch: a pure function of parameters, batch and noise, written over `etude.ops`."""
        raise NotImplementedError(f"{type(self).__name__} defines no loss(batch, noise).")
