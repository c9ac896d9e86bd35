"""The choice of a policy's distribution: as data, or a user's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np

from etude import ops
from etude.algorithms.policies import LOG_STD, Policy, StateDependentPolicy
from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.spaces import ACTION_MASK, Box, MultiBinary, MultiDiscrete, Spaces, bounded, choices, describe
from etude.base.trees import Tree
from etude.config import Config
from etude.losses.distributions import Beta, Conditional, Distribution, Gaussian, Mixture
from etude.networks import Maker, Mlp, Part
from etude.networks.encoding import width

LARGEST_JOINT = 4096  # actions that a conditional policy enumerates, at most
KINDS = ("default", "beta", "mixture", "conditional")


@dataclass(frozen=True)
class DistributionSpec:
    """The distribution of a policy over actions, as data.

    default: a Gaussian for Box actions, independent choices for others. beta: for bounded Box actions. mixture: of
    Gaussians or beta distributions, for Box actions. conditional: for MultiDiscrete and MultiBinary actions, each
    choice given those before it. See `losses.distributions`.
    """

    kind: Literal["default", "beta", "mixture", "conditional"] = "default"  # default: Gaussian, or independent choices
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
                f"{type(self).__name__}: distribution = {self.distribution!r}; expected DistributionSpec(kind) with a "
                f"kind of {', '.join(map(repr, KINDS))}, or OwnDistribution(make, outputs)."
            )
        if self.gsde_features and self.distribution != DistributionSpec():
            raise ConfigError(
                f"{type(self).__name__}: gsde = True and distribution = {self.distribution!r}; noise that depends on "
                "the state is that of a Gaussian. Leave one of them out."
            )


class _BetaPolicy(Policy):
    """A `Beta` distribution over bounded Box actions, whose parameters are 1 plus softplus of the network's outputs."""

    def __init__(self, spaces: Spaces):
        _check_bounded(spaces, "beta")
        super().__init__(spaces)
        self.outputs: int = 2 * width(spaces.action)

    def around(self, network: Part, make: Maker, initial_log_std: float | None) -> dict[str, Part]:
        return {"policy": network}

    def of(self, parts: dict[str, Part], observation: Tree, x: Any) -> Beta:
        size = self.outputs // 2
        return Beta(1 + ops.softplus(x[..., :size]), 1 + ops.softplus(x[..., size:]))


class _MixturePolicy(Policy):
    """A `Mixture` over Box actions, of which the network computes all parameters. A trained offset of each component
    keeps components apart from the start."""

    def __init__(self, spaces: Spaces, spec: DistributionSpec):
        _check_box(spaces, "mixture")
        if spec.component == "beta":
            _check_bounded(spaces, "beta components")
        super().__init__(spaces)
        self.spec: DistributionSpec = spec
        self.size: int = width(spaces.action)
        self.outputs: int = spec.components * (1 + 2 * self.size)

    def around(self, network: Part, make: Maker, initial_log_std: float | None) -> dict[str, Part]:
        """The parts `policy` and `offset`: how far the location and the log deviation of each component [K, A] start
        from the network's outputs. Locations are spread evenly over [-0.5, 0.5]."""
        offset = np.zeros((2, self.spec.components, self.size))
        offset[0] = np.linspace(-0.5, 0.5, self.spec.components)[:, None] if self.spec.components > 1 else 0.0
        offset[1] = 0.0 if initial_log_std is None or self.spec.component == "beta" else initial_log_std
        return {"policy": network, "offset": make.free(offset)}

    def of(self, parts: dict[str, Part], observation: Tree, x: Any) -> Mixture:
        components, size, offset = self.spec.components, self.size, parts["offset"]()
        each = ops.reshape(x[..., components:], (-1, *tuple(x.shape)[1:-1], 2, components, size)) + offset
        first, second = each[..., 0, :, :], each[..., 1, :, :]
        if self.spec.component == "beta":  # the location moves both parameters, the other output what they sum to
            shapes = (1 + ops.softplus(second + first), 1 + ops.softplus(second - first))
            return Mixture(x[..., :components], Beta(*shapes))
        return Mixture(x[..., :components], Gaussian(first, ops.clip(second, *LOG_STD)))


class _ConditionalPolicy(Policy):
    """A `Conditional` distribution over MultiDiscrete or MultiBinary actions. The network computes for each choice what
    its head adds to the embeddings of the choices before it. ConfigError for more than 4096 actions in all."""

    gain: ClassVar[float] = 1.0

    def __init__(self, spaces: Spaces, spec: DistributionSpec):
        action = spaces.action
        if not isinstance(action, MultiDiscrete | MultiBinary):
            _refuse("conditional", "takes the choices of MultiDiscrete and MultiBinary actions one by one", spaces)
        super().__init__(spaces)
        self.sizes: list[int] = choices(action)
        if math.prod(self.sizes) > LARGEST_JOINT:
            _refuse("conditional", f"enumerates at most {LARGEST_JOINT} combinations of choices", spaces)
        self.head: Mlp = Mlp(spec.hidden, "tanh", "orthogonal")
        self.outputs: int = len(self.sizes) * spec.hidden[0]

    def around(self, network: Part, make: Maker, initial_log_std: float | None) -> dict[str, Part]:
        return {"policy": network, "head": make.conditional(self.sizes, self.head)}

    def of(self, parts: dict[str, Part], observation: Tree, x: Any) -> Conditional:
        logits = parts["head"](x)
        if not self.spaces.masked or isinstance(self.spaces.action, MultiBinary):
            return Conditional(logits)
        allowed = ops.split_last(observation[ACTION_MASK] > 0, self.sizes)
        return Conditional(logits, tuple(ops.expand_dims(part, -2) for part in allowed))


class _OwnPolicy(Policy):
    """A policy with a distribution that a user wrote."""

    def __init__(self, spaces: Spaces, own: OwnDistribution):
        super().__init__(spaces)
        self.outputs: int = own.outputs
        self._own = own

    def around(self, network: Part, make: Maker, initial_log_std: float | None) -> dict[str, Part]:
        return {"policy": network}

    def of(self, parts: dict[str, Part], observation: Tree, x: Any) -> Any:
        return self._own(x)


def _check_box(spaces: Spaces, kind: str) -> None:
    """Raise ConfigError where actions are not a Box."""
    if type(spaces.action) is not Box:
        _refuse(kind, "is over Box actions", spaces)


def _check_bounded(spaces: Spaces, kind: str) -> None:
    """Raise ConfigError where actions are not a Box with bounds."""
    _check_box(spaces, kind)
    if not bounded(spaces.action):
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
        return _OwnPolicy(spaces, chosen)
    if chosen.kind == "beta":
        return _BetaPolicy(spaces)
    if chosen.kind == "mixture":
        return _MixturePolicy(spaces, chosen)
    if chosen.kind == "conditional":
        return _ConditionalPolicy(spaces, chosen)
    return StateDependentPolicy(spaces) if config.gsde_features else default(spaces)
