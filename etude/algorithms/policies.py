"""Stochastic policies: their networks, and the distributions over actions that these parametrise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np

from etude import ops
from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.spaces import ACTION_MASK, Box, Discrete, MultiBinary, MultiDiscrete, Spaces, describe
from etude.base.trees import Tree
from etude.config import Config
from etude.losses.distributions import (
    UNMASKED,
    Beta,
    Conditional,
    Deterministic,
    Distribution,
    Gaussian,
    Mixture,
    StateDependentGaussian,
    TanhGaussian,
    of_choices,
    state_dependent,
)
from etude.networks import Maker, Mlp, Spec
from etude.networks.encoding import width
from etude.networks.network import Part

LOG_STD = (-5.0, 2.0)  # bounds on the log deviations of a BoundedPolicy and of the components of a mixture
LARGEST_JOINT = 4096  # actions that a conditional policy enumerates, at most
KINDS = ("default", "beta", "mixture", "conditional")


@dataclass(frozen=True)
class DistributionSpec:
    """The distribution of a policy over actions, as data.

    default: a Gaussian for Box actions, independent choices for others. beta: for bounded Box actions. mixture: of
    Gaussians or beta distributions, for Box actions. conditional: for MultiDiscrete and MultiBinary actions, each
    choice given those before it. See `losses.distributions`.
    """

    kind: Literal["default", "beta", "mixture", "conditional"] = "default"
    components: int = 3  # mixture: how many
    component: Literal["gaussian", "beta"] = "gaussian"  # mixture: distribution of each component
    hidden: tuple[int, ...] = (64,)  # conditional: hidden layers of the head, which sees the choices before

    def __post_init__(self) -> None:
        checks.one_of(self, "kind", KINDS)
        checks.one_of(self, "component", ("gaussian", "beta"))
        checks.counts(self, "components")
        if not self.hidden or any(int(width) < 1 for width in self.hidden):
            raise ConfigError(
                f"DistributionSpec: hidden = {self.hidden!r}; expected at least one hidden layer, as in (64,)."
            )


@dataclass(frozen=True)
class OwnDistribution:
    """A distribution of your own, given again where a run is loaded.

    make: from outputs of the network [..., outputs] to a named tuple of arrays with the methods of
        `losses.distributions.Distribution`, and `entropy` and `kl` where the algorithm's loss calls them.
    outputs: how many numbers it takes for each action.
    """

    make: Callable[[Any], Distribution]
    outputs: int

    def __post_init__(self) -> None:
        checks.counts(self, "outputs")
        if not callable(self.make):
            raise ConfigError(
                f"OwnDistribution: make = {self.make!r}; expected a function from arrays [..., outputs] to a "
                "distribution."
            )

    def __call__(self, outputs: Any) -> Distribution:
        """The distribution for outputs of the network [..., outputs]."""
        return self.make(outputs)


@dataclass(frozen=True)
class StochasticPolicyConfig(Config):
    """Stochastic policies whose distribution may be chosen."""

    distribution: DistributionSpec | OwnDistribution = DistributionSpec()  # of the policy: a DistributionSpec, or yours

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.distribution, DistributionSpec | OwnDistribution):
            raise ConfigError(
                f"{type(self).__name__}: distribution = {self.distribution!r}; expected DistributionSpec(kind) with one "
                f"of the kinds {', '.join(map(repr, KINDS))}, or OwnDistribution(make, outputs)."
            )
        if self.gsde_features and self.distribution != DistributionSpec():
            raise ConfigError(
                f"{type(self).__name__}: gsde = True and distribution = {self.distribution!r}; noise that depends on "
                "the state is that of a Gaussian. Leave one of them out."
            )


class Policy:
    """A distribution over the actions of some spaces: `Categorical`, `MultiCategorical`, `Bernoullis`, or for Box
    actions a `Gaussian` whose deviations do not depend on the observation. Forbidden actions have probability 0."""

    actions = (Discrete, MultiDiscrete, MultiBinary, Box)  # action spaces with a distribution
    gain = 0.01  # factor on the initial weights of the network's last layer
    outputs: int  # numbers that the network computes

    def __init__(self, spaces: Spaces):
        self.spaces = spaces
        self.outputs = width(spaces.action)

    def make(self, make: Maker, spec: Spec, initial_log_std: float | None = 0.0) -> dict[str, Part]:
        """The parts that `__call__` takes: `policy`, and for Box actions `log_std`.

        initial_log_std: where log deviations start, in the range [-1, 1] of the actions that an agent sees; None: there
        are none, for a `BoundedPolicy`.
        """
        network = make(spec, self.spaces.observation, outputs=self.outputs, gain=self.gain)
        return self.around(network, make, initial_log_std)

    def around(self, network: Part, make: Maker, initial_log_std: float | None) -> dict[str, Part]:
        """The same parts for a network that was made otherwise."""
        if isinstance(self.spaces.action, Box) and initial_log_std is not None:
            return {"policy": network, "log_std": make.free(np.full(self.outputs, initial_log_std))}
        return {"policy": network}

    def __call__(self, parts: dict[str, Part], observation: Tree, seen: Tree) -> Any:
        """The distribution [N] for observations [N, ...]; `seen`: as the network is to see them, normalised."""
        return self.of(parts, observation, parts["policy"](seen))

    def of(self, parts: dict[str, Part], observation: Tree, x: Any) -> Any:
        """The distribution [*batch] that outputs x of the network [*batch, outputs] stand for."""
        if isinstance(self.spaces.action, Box):
            return self._of_box(x, parts)
        return of_choices(self.spaces.action, x, observation[ACTION_MASK] if self.spaces.masked else UNMASKED)

    def _of_box(self, x: Any, parts: dict[str, Part]) -> Any:
        return Gaussian(x, x * 0.0 + parts["log_std"]())


class BoundedPolicy(Policy):
    """A policy whose mean Box action is tanh of the network's output, in [-1, 1], and whose standard deviations are
    bounded: for learning from recorded actions, or other exploration. `Deterministic` without a part `log_std`.
    """

    def _of_box(self, x: Any, parts: dict[str, Part]) -> Any:
        mean = ops.tanh(x)
        if "log_std" not in parts:
            return Deterministic(mean)
        return Gaussian(mean, mean * 0.0 + ops.clip(parts["log_std"](), *LOG_STD))


class StateDependentPolicy(Policy):
    """A policy over Box actions whose exploration noise is a function of the state (gSDE): the mean and the noise are
    both linear in the last hidden layer of the network. ConfigError for other actions.

    kind: the distribution. learn_features: whether gradients flow through the noise into the features.
    """

    def __init__(
        self, spaces: Spaces, kind: type[Gaussian] | type[TanhGaussian] = Gaussian, learn_features: bool = False
    ):
        if not isinstance(spaces.action, Box):
            raise ConfigError(
                f"gsde = True adds noise to Box actions; this environment has {describe(spaces.action)}. Leave it off."
            )
        super().__init__(spaces)
        self._kind, self._learn_features = kind, learn_features

    def make(self, make: Maker, spec: Any, initial_log_std: float | None = 0.0, gain: float = 0.01) -> dict[str, Part]:
        """The parts `features`, `mean` and `log_std`.

        initial_log_std: of the noise where the features have a mean square of 1. gain: on the first weights of `mean`.
        """
        features = make.features(spec, self.spaces.observation)
        hidden = features.architecture.outputs
        head = Mlp((), spec.activation, spec.initializer)
        start = (initial_log_std or 0.0) - 0.5 * math.log(hidden)
        return {
            "features": features,
            "mean": make(head, Box(-np.inf, np.inf, (hidden,), np.float32), self.outputs, gain=gain),
            "log_std": make.free(np.full((self.outputs, hidden), start)),
        }

    def __call__(self, parts: dict[str, Part], observation: Tree, seen: Tree) -> StateDependentGaussian:
        features = parts["features"](seen)
        scaling = features if self._learn_features else ops.stop_gradient(features)
        return state_dependent(self._kind, parts["mean"](features), scaling, parts["log_std"]())


class BetaPolicy(Policy):
    """A `Beta` distribution over bounded Box actions, whose parameters are 1 plus softplus of the network's outputs."""

    def __init__(self, spaces: Spaces):
        check_bounded(spaces, "beta")
        super().__init__(spaces)
        self.outputs = 2 * width(spaces.action)

    def around(self, network: Part, make: Maker, initial_log_std: float | None) -> dict[str, Part]:
        return {"policy": network}

    def of(self, parts: dict[str, Part], observation: Tree, x: Any) -> Beta:
        size = self.outputs // 2
        return Beta(1 + ops.softplus(x[..., :size]), 1 + ops.softplus(x[..., size:]))


class MixturePolicy(Policy):
    """A `Mixture` over Box actions, of which the network computes all parameters. A trained offset of each component
    keeps components apart from the start."""

    def __init__(self, spaces: Spaces, spec: DistributionSpec):
        check_box(spaces, "mixture")
        if spec.component == "beta":
            check_bounded(spaces, "beta components")
        super().__init__(spaces)
        self.spec, self.size = spec, width(spaces.action)
        self.outputs = spec.components * (1 + 2 * self.size)

    def around(self, network: Part, make: Maker, initial_log_std: float | None) -> dict[str, Part]:
        """The parts `policy` and `offset`: how far the location and the log deviation of each component [K, A] start
        from the network's outputs. Locations are spread evenly over [-0.5, 0.5]."""
        offset = np.zeros((2, self.spec.components, self.size))
        offset[0] = np.linspace(-0.5, 0.5, self.spec.components)[:, None] if self.spec.components > 1 else 0.0
        offset[1] = 0.0 if initial_log_std is None or self.spec.component == "beta" else initial_log_std
        return {"policy": network, "offset": make.free(offset)}

    def of(self, parts: dict[str, Part], observation: Tree, x: Any) -> Mixture:
        components, size, offset = self.spec.components, self.size, parts["offset"]()
        each = ops.reshape(x[..., components:], (*tuple(x.shape)[:-1], 2, components, size)) + offset
        first, second = each[..., 0, :, :], each[..., 1, :, :]
        if self.spec.component == "beta":  # the location moves both parameters, the other output what they sum to
            shapes = (1 + ops.softplus(second + first), 1 + ops.softplus(second - first))
            return Mixture(x[..., :components], Beta(*shapes))
        return Mixture(x[..., :components], Gaussian(first, ops.clip(second, *LOG_STD)))


class ConditionalPolicy(Policy):
    """A `Conditional` distribution over MultiDiscrete or MultiBinary actions. The network computes for each choice what
    its head adds to the embeddings of the choices before it. ConfigError for more than 4096 actions in all."""

    gain = 1.0

    def __init__(self, spaces: Spaces, spec: DistributionSpec):
        action = spaces.action
        if not isinstance(action, MultiDiscrete | MultiBinary):
            _refuse("conditional", "takes the choices of MultiDiscrete and MultiBinary actions one by one", spaces)
        super().__init__(spaces)
        binary = isinstance(action, MultiBinary)
        self.sizes = [2] * width(action) if binary else [int(n) for n in action.nvec.reshape(-1)]
        if math.prod(self.sizes) > LARGEST_JOINT:
            _refuse("conditional", f"enumerates at most {LARGEST_JOINT} combinations of choices", spaces)
        self.head = Mlp(spec.hidden, "tanh", "orthogonal")
        self.outputs = len(self.sizes) * spec.hidden[0]

    def around(self, network: Part, make: Maker, initial_log_std: float | None) -> dict[str, Part]:
        return {"policy": network, "head": make.conditional(self.sizes, self.head)}

    def of(self, parts: dict[str, Part], observation: Tree, x: Any) -> Conditional:
        logits = parts["head"](x)
        if not self.spaces.masked or isinstance(self.spaces.action, MultiBinary):
            return Conditional(logits)
        allowed = ops.split_last(observation[ACTION_MASK] > 0, self.sizes)
        return Conditional(logits, tuple(ops.expand_dims(part, -2) for part in allowed))


class OwnPolicy(Policy):
    """A policy with a distribution that a user wrote."""

    def __init__(self, spaces: Spaces, own: OwnDistribution):
        super().__init__(spaces)
        self._own, self.outputs = own, own.outputs

    def around(self, network: Part, make: Maker, initial_log_std: float | None) -> dict[str, Part]:
        return {"policy": network}

    def of(self, parts: dict[str, Part], observation: Tree, x: Any) -> Any:
        return self._own(x)


def check_box(spaces: Spaces, kind: str) -> None:
    """Raise ConfigError where actions are not a Box."""
    if not isinstance(spaces.action, Box):
        _refuse(kind, "is over Box actions", spaces)


def check_bounded(spaces: Spaces, kind: str) -> None:
    """Raise ConfigError where actions are not a Box with bounds."""
    check_box(spaces, kind)
    if not (np.isfinite(spaces.action.low).all() and np.isfinite(spaces.action.high).all()):
        _refuse(kind, "needs Box actions with finite bounds", spaces)


def _refuse(kind: str, what: str, spaces: Spaces) -> NoReturn:
    raise ConfigError(
        f"distribution: {kind} {what}; this environment has {describe(spaces.action)}. Leave distribution out, or "
        "give another kind."
    )


def policy_for(config: StochasticPolicyConfig, spaces: Spaces, default: type[Policy] = Policy) -> Policy:
    """The policy that a config describes. default: that of the kind "default", without gSDE."""
    chosen = config.distribution
    if isinstance(chosen, OwnDistribution):
        return OwnPolicy(spaces, chosen)
    if chosen.kind == "beta":
        return BetaPolicy(spaces)
    if chosen.kind == "mixture":
        return MixturePolicy(spaces, chosen)
    if chosen.kind == "conditional":
        return ConditionalPolicy(spaces, chosen)
    return StateDependentPolicy(spaces) if config.gsde_features else default(spaces)
