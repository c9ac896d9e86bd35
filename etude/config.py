"""What the configs of algorithms have in common: the fields that a run itself reads.

A config of one's own derives from one of these, and adds what its agent reads. Field names mean the same everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Self

from etude.adapt.rules import Adapt, rules_of
from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.other_libraries import explain
from etude.base.schedules import Linear
from etude.base.text import brief
from etude.networks import Conv, Mlp, Spec, Transformer, actor_of, critic_of
from etude.networks.specs import feature_count
from etude.optimizers import Adam, Optimizer, check_optimizer


@dataclass(frozen=True)
class Config:
    """Hyperparameters of every algorithm. Floats may change during a run."""

    network: Spec = Mlp((64, 64))  # a spec, a function that returns a module, or an `ActorCritic` of two
    learning_rate: float | Linear = 3e-4  # of the optimizer: a number or a `Linear` schedule
    gamma: float = 0.99  # discount factor per step
    max_gradient_norm: float | None = None  # clip each loss's gradients to this global norm; None: no clipping
    layer_gradient_norms: bool = False  # report the gradient norm of each layer, before clipping
    normalize_observation: bool = False  # standardise by running moments, clip at 10 standard deviations
    clip_reward: bool = False  # learn from the sign of each reward; reported returns are unclipped
    normalize_reward: bool = False  # divide by the running standard deviation of the discounted return
    optimizer: Optimizer = Adam()  # one of `etude.optimizers`: Adam, AdamW, RMSProp, SGD or Lion
    adapt: tuple[Adapt, ...] = ()  # rules by which hyperparameters adjust themselves

    def __init_subclass__(cls) -> None:
        if "__repr__" not in vars(cls):
            cls.__repr__ = Config.__repr__  # type: ignore[method-assign]  # which `dataclass` then leaves as it is

    def __repr__(self) -> str:
        return brief(self)

    def __new__(cls, *_: Any, **given: Any) -> Self:
        if given:  # a copy is made without
            known = [field.name for field in fields(cls) if field.init]
            if unknown := given.keys() - set(known):
                raise ConfigError(explain(cls.__name__, unknown, known))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        checks.declared(self)
        checks.fractions(self, "gamma")
        checks.not_negative(self, "learning_rate")
        check_optimizer(type(self).__name__, self.optimizer)
        object.__setattr__(self, "adapt", rules_of(self.adapt))
        checks.positive(self, "max_gradient_norm")

    @property
    def example_length(self) -> int:
        """Environment steps in one example of a batch."""
        return 1

    @property
    def sample_correlation(self) -> float:
        """The correlation of the noise of successive samples of the policy."""
        return 0.0

    @property
    def largest_return(self) -> float:
        """The largest absolute return that `normalize_reward` leaves."""
        return math.inf

    @property
    def gsde_features(self) -> int:
        """How many features of the actor scale its exploration noise; 0: the noise does not depend on the state."""
        return 0

    @property
    def actor_network(self) -> Spec:
        """The network of actors."""
        return actor_of(self.network)

    @property
    def critic_network(self) -> Spec:
        """The network of critics."""
        return critic_of(self.network)


@dataclass(frozen=True)
class StateDependentConfig(Config):
    """Gaussian policies whose exploration noise may depend on the state: gSDE. Raffin, Kober & Stulp 2021,
    arXiv:2005.05719."""

    gsde: bool = False  # Box actions: exploration noise that is a function of the state (gSDE)
    gsde_sample_every: int | None = None  # gsde: time steps between two draws of that function; None: one per episode

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "gsde_sample_every")
        spec = self.actor_network
        if self.gsde and not (isinstance(spec, Mlp | Conv) and spec.widths):
            raise ConfigError(
                f"{type(self).__name__}: gsde = True, network = {spec!r}; the noise is a function of the actor's last "
                "hidden layer. Give the actor a spec with hidden layers, such as Mlp((64, 64)), or leave gsde off."
            )

    @property
    def gsde_features(self) -> int:
        spec: Any = self.actor_network
        return feature_count(spec) if self.gsde else 0


@dataclass(frozen=True)
class OffPolicyConfig(Config):
    """Off-policy learning from replayed transitions. Schedules count environment steps."""

    batch_size: int = 64  # transitions per gradient step
    buffer_size: int = 100_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 1_000  # environment steps before the first gradient step
    train_every: int = 1  # environment steps between two learning phases
    gradient_steps: int = 1  # gradient steps per learning phase
    n_step: int = 1  # n of n-step returns; shorter at the end of an episode
    priority_exponent: float = 0.0  # alpha of prioritised replay (TD errors); 0: uniform sampling
    importance_exponent: float | Linear = Linear(0.4, 1.0)  # beta: exponent of the importance weights
    exploration_exponent: float = 0.0  # Ape-X's alpha: environment i has epsilon ** (1 + alpha * i / (N - 1))
    actor_priorities: bool = False  # actors compute initial priorities; False: the largest priority so far
    hindsight: str = "none"  # HER's goal selection: "future", "final", "episode" or "none"
    hindsight_goals: int = 4  # HER's k: relabelled transitions per original one
    reset_every: int | None = None  # gradient steps between two resets of all networks; the replay stays; None: never

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(self, "learning_starts", "priority_exponent", "importance_exponent", "exploration_exponent")
        checks.counts(self, "batch_size", "buffer_size", "train_every", "gradient_steps", "n_step", "hindsight_goals")
        checks.one_of(self, "hindsight", ("none", "future", "final", "episode"))
        checks.counts(self, "reset_every")
        if self.actor_priorities and not self.priority_exponent:
            raise ConfigError(
                f"{type(self).__name__}: actor_priorities = True, and priority_exponent = 0 draws all rows alike. Give "
                "priority_exponent a number above 0, such as 0.6."
            )
        if self.actor_priorities and (self.normalize_reward or self.clip_reward):
            raise ConfigError(
                f"{type(self).__name__}: actor_priorities with normalize_reward or clip_reward; actors see rewards as "
                "the environment gives them. Leave one of them off."
            )
        if self.clip_reward and self.hindsight != "none":
            raise ConfigError(
                f"{type(self).__name__}: clip_reward = True, hindsight = {self.hindsight!r}; rewards of new goals are "
                "those of compute_reward. Leave one of them off."
            )
        if self.actor_priorities and self.hindsight != "none":
            raise ConfigError(
                f"{type(self).__name__}: actor_priorities = True, hindsight = {self.hindsight!r}; actors compute "
                "priorities for the goals that they acted for. Leave one of them off."
            )


@dataclass(frozen=True)
class SampledConfig(OffPolicyConfig):
    """Off-policy learning with a stochastic policy over Box actions."""

    exploration_correlation: float = 0.0  # correlation of the noise of successive samples

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "exploration_correlation")

    @property
    def sample_correlation(self) -> float:
        return self.exploration_correlation


@dataclass(frozen=True)
class SequenceConfig(OffPolicyConfig):
    """Off-policy learning from replayed sequences, with recurrent networks."""

    batch_size: int = 64  # sequences per gradient step
    sequence_length: int = 40  # environment steps of a sequence; fewer at the end of an episode
    burn_in: int = 10  # steps that only warm up the recurrent state, at most; no loss
    stored_state: bool = True  # start sequences with the recurrent state stored in the replay; False: zeros

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "sequence_length")
        checks.not_negative(self, "burn_in")
        if self.burn_in >= self.sequence_length:
            raise ConfigError(
                f"{type(self).__name__}: burn_in = {self.burn_in} of sequence_length = {self.sequence_length} steps; "
                "expected fewer, so that steps are left to learn from."
            )
        if self.actor_priorities:
            raise ConfigError(
                f"{type(self).__name__}: actor_priorities = True, but actors compute priorities of transitions, not of "
                "sequences. Leave it off."
            )

    @property
    def example_length(self) -> int:
        return self.sequence_length


@dataclass(frozen=True)
class RolloutConfig(Config):
    """Learning from rollouts that are discarded after each learning phase."""

    rollout_length: int = 128  # time steps of each environment per rollout
    minibatch_size: int | None = 256  # steps per gradient step, at most; None: the whole rollout
    epochs: int = 1  # passes over each rollout

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "rollout_length", "epochs", "minibatch_size")


@dataclass(frozen=True)
class OnPolicyConfig(RolloutConfig):
    """Learning from rollouts of the current policy."""

    gae_lambda: float = 0.95  # lambda of generalised advantage estimation; 0: one-step, 1: Monte Carlo

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "gae_lambda")


@dataclass(frozen=True)
class TrustRegionConfig(Config):
    """Policies that take natural-gradient steps within a trust region, in the place of the optimizer's: see
    `Agent.trust_regions`. Schulman et al. 2015, arXiv:1502.05477."""

    max_kl: float | Linear = 0.01  # bound on the mean KL divergence of the policies before and after a step, in nats
    cg_iterations: int = 10  # of conjugate gradients for the direction
    cg_damping: float = 0.1  # added to the diagonal of the Fisher matrix
    line_search_steps: int = 10  # lengths that are tried, from the longest
    line_search_decay: float = 0.8  # of the length from one try to the next

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(self, "max_kl")
        checks.counts(self, "cg_iterations", "line_search_steps")
        checks.not_negative(self, "cg_damping")
        checks.fractions(self, "line_search_decay")


@dataclass(frozen=True)
class OnPolicySequenceConfig(OnPolicyConfig):
    """On-policy learning with recurrent networks, from sequences of each environment's rollout. A minibatch has as many
    whole sequences as fit, at least one."""

    sequence_length: int = 32  # time steps of truncated backpropagation; divides rollout_length

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "sequence_length")
        if self.rollout_length % self.sequence_length:
            raise ConfigError(
                f"{type(self).__name__}: rollout_length = {self.rollout_length}, sequence_length = "
                f"{self.sequence_length}; expected a rollout of whole sequences, as 128 is of 32. Change one of them."
            )

    @property
    def example_length(self) -> int:
        return self.sequence_length


@dataclass(frozen=True)
class GradientsConfig(OnPolicyConfig):
    """Asynchronous learning: each environment's rollout gives one gradient, computed where it was collected."""

    rollout_length: int = 5  # time steps per gradient
    minibatch_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalize_observation or self.normalize_reward or self.clip_reward:
            raise ConfigError(
                f"{type(self).__name__}: normalize_observation, normalize_reward and clip_reward need the steps "
                "themselves; the learner gets gradients alone. Leave them off, or wrap the environment."
            )
        if self.epochs != 1 or self.minibatch_size is not None:
            raise ConfigError(
                f"{type(self).__name__}: epochs = {self.epochs}, minibatch_size = {self.minibatch_size}; a rollout "
                "gives one gradient. Leave them at 1 and None."
            )


@dataclass(frozen=True)
class UnrollsConfig(RolloutConfig):
    """Learning from whole rollouts of a policy that may be a few updates old, corrected by V-trace. A minibatch has as
    many whole rollouts as fit, at least one."""

    rollout_length: int = 20
    minibatch_size: int | None = None
    trace_lambda: float = 1.0  # lambda of V-trace: a factor on its trace coefficients c
    rho_bar: float = 1.0  # upper bound on the importance ratios of temporal-difference errors
    c_bar: float = 1.0  # upper bound on the importance ratios of traces

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "trace_lambda")
        checks.not_negative(self, "rho_bar", "c_bar")

    @property
    def example_length(self) -> int:
        return self.rollout_length


@dataclass(frozen=True)
class EpisodesConfig(Config):
    """Learning from rounds: every environment plays one whole episode, and then all of them are learned from at once
    and forgotten. A round is never cut: a run ends with the round in which it has taken its steps."""


@dataclass(frozen=True)
class GamesConfig(EpisodesConfig):
    """Learning from rounds of games of tokens, in shuffled passes over minibatches of them."""

    network: Spec = Transformer()
    gamma: float = 1.0  # discount factor per token of the agent
    group_size: int = 1  # environments next to each other whose games begin alike
    epochs: int = 1  # passes over the games of a round
    minibatch_size: int | None = None  # games in a gradient step; None: all of a round
    normalize_advantage: bool = True  # divide advantages by their standard deviation

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "group_size", "epochs", "minibatch_size")


@dataclass(frozen=True)
class OfflineConfig(Config):
    """Learning from recorded episodes. All steps and schedules of such a run are gradient steps."""

    network: Spec = Mlp((256, 256))
    batch_size: int = 256  # transitions in a gradient step
    gradient_steps: int = 100  # gradient steps in a learning phase; losses are logged, and a run can stop, after each
    best: float = 1.0  # learn from the recorded episodes of the highest returns alone: this share of all

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "batch_size", "gradient_steps")
        checks.fractions(self, "best")
        checks.positive(self, "best")


@dataclass(frozen=True)
class PairsConfig(OfflineConfig):
    """Learning from pairs of recorded games of tokens that began alike, of which one returned more."""

    network: Spec = Transformer()
    batch_size: int = 64  # games in a gradient step, two of each pair

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size % 2:
            raise ConfigError(
                f"{type(self).__name__}: batch_size = {self.batch_size}; expected an even number of games, two of each "
                "pair."
            )


@dataclass(frozen=True)
class OfflineToOnlineConfig(OfflineConfig):
    """Learning from recorded episodes that can go on with collected steps (`Run.go_online`). Steps and schedules of a
    run that collects are environment steps."""

    buffer_size: int = 1_000_000  # online: capacity of the replay buffer of collected steps, in transitions
    learning_starts: int = 1_000  # online: environment steps before the first gradient step
    train_every: int = 100  # online: environment steps between two learning phases

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "buffer_size", "train_every")
        checks.not_negative(self, "learning_starts")
