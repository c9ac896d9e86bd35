"""Networks as data: frozen descriptions that engines build, checkpoints store and evolution mutates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etude.base import checks
from etude.base.errors import ConfigError

ACTIVATIONS = ("relu", "tanh", "elu", "gelu", "silu")
INITIALIZERS = ("fan_in", "orthogonal")
CELLS = ("gru", "lstm")


def _check(spec: Mlp | Conv) -> None:
    for name, allowed in (("activation", ACTIVATIONS), ("initializer", INITIALIZERS)):
        if getattr(spec, name) not in allowed:
            raise ConfigError(
                f"{type(spec).__name__}: unknown {name} {getattr(spec, name)!r}; expected one of {', '.join(allowed)}."
            )
    if any(int(width) < 1 for width in spec.widths):
        raise ConfigError(f"{type(spec).__name__}: every layer needs at least one unit; got widths {spec.widths}.")
    if spec.dueling and not spec.widths:
        raise ConfigError(
            f"{type(spec).__name__}: dueling=True doubles the last hidden layer, and widths is (). Give it a layer."
        )
    checks.not_negative(spec, "noisy")


@dataclass(frozen=True)
class Mlp:
    """A multilayer perceptron over all parts of the observation, flattened and concatenated (images too).

    dueling: separate streams for the state value V and the advantages A; the output is V + A - mean A. Wang et al.
        2016, arXiv:1511.06581, equation 9. For action values only.
    noisy: initial sigma of noisy layers with factorised Gaussian noise, times 1 / sqrt(inputs); 0: none. Fortunato et
        al. 2018, arXiv:1706.10295, use 0.5. For algorithms that learn action values, whose losses draw the noise.
    layer_norm: layer normalisation with trained scale and bias, between each hidden layer and its activation. Ba et
        al. 2016, arXiv:1607.06450.
    """

    widths: tuple[int, ...] = (64, 64)  # units of the hidden layers
    activation: str = "relu"  # relu, tanh, elu, gelu or silu
    initializer: str = "fan_in"  # fan_in: uniform in +-1/sqrt(inputs), biases too; orthogonal: gain sqrt(2), biases 0
    dueling: bool = False  # action values: streams for the state value and the advantages
    noisy: float = 0.0  # initial sigma of noisy layers, times 1/sqrt(inputs); 0: none
    layer_norm: bool = False  # normalise the inputs of each hidden layer's activation

    def __post_init__(self) -> None:
        _check(self)


Filters = tuple[tuple[int, int, int], ...]  # (filters, kernel, stride) of each layer
NATURE: Filters = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
# For images whose shorter side is at least so many pixels.
_FILTERS: tuple[tuple[int, Filters], ...] = (
    (36, NATURE),
    (16, ((32, 4, 2), (64, 3, 2), (64, 3, 1))),
    (7, ((32, 3, 1), (64, 3, 1), (64, 3, 1))),
    (3, ((32, 2, 1), (64, 2, 1))),
    (1, ((32, 1, 1),)),
)


def filters_for(side: int) -> Filters:
    """Convolutions that fit images whose shorter side has so many pixels."""
    return next(filters for least, filters in _FILTERS if side >= least)


@dataclass(frozen=True)
class Conv:
    """Convolutions over each image (uint8, scaled to [0, 1] in the network; see `encoding.Image`), then dense layers
    over their features concatenated with the rest of the observation. The default is the network of Mnih et al. 2015,
    doi:10.1038/nature14236. dueling, noisy and layer_norm concern the dense layers, as in `Mlp`."""

    filters: Filters = NATURE  # (filters, kernel, stride) of each layer
    widths: tuple[int, ...] = (512,)  # units of the dense layers after the convolutions
    activation: str = "relu"  # as in `Mlp`
    initializer: str = "orthogonal"  # as in `Mlp`
    dueling: bool = False  # as in `Mlp`
    noisy: float = 0.0  # as in `Mlp`
    layer_norm: bool = False  # as in `Mlp`

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class Recurrent:
    """An encoder of the observation, a recurrent cell, and dense layers over the cell's output. For algorithms that
    learn from sequences: r2d2 and recurrent_ppo."""

    before: Mlp | Conv = Mlp((64,))  # the encoder; its last hidden layer feeds the cell
    units: int = 64  # of the cell
    cell: str = "gru"  # gru (Cho et al. 2014, arXiv:1406.1078) or lstm (Hochreiter & Schmidhuber 1997)
    widths: tuple[int, ...] = ()  # dense layers after the cell, with activation, initializer and layer_norm of `before`

    def __post_init__(self) -> None:
        if self.cell not in CELLS:
            raise ConfigError(f"Recurrent: unknown cell {self.cell!r}; expected one of {', '.join(CELLS)}.")
        if self.before.dueling or self.before.noisy:
            raise ConfigError("Recurrent: its layers are neither dueling nor noisy; leave both out of `before`.")
        if any(int(width) < 1 for width in (self.units, *self.widths)):
            raise ConfigError(
                f"Recurrent: every layer needs at least one unit; got units {self.units}, widths {self.widths}."
            )


@dataclass(frozen=True)
class ByEmbedding:
    """Values, or logits, of actions that the observation describes: inner products of a state embedding, which
    `network` computes from the rest of the observation, with the embedding of each action. For Discrete(n) actions and
    Dict observations with `key`: Box(n, d), a row for each action; an action mask forbids rows that stand for nothing.
    A critic of states, which has one output, is `network` alone, without the embeddings.
    """

    key: str = "actions"  # where a Dict observation holds the embeddings
    network: Mlp | Conv = Mlp((64, 64))  # from the rest of the observation to the state embedding

    def __post_init__(self) -> None:
        if self.network.dueling:
            raise ConfigError(
                "ByEmbedding: its network computes a state embedding, which has no dueling streams; leave dueling off."
            )


ModuleFactory = Callable[[], Any]  # a function or class that returns a torch.nn.Module or a keras.Model


@dataclass(frozen=True)
class ActorCritic:
    """Separate networks of actor and critic: specs, or functions that return a module."""

    actor: Mlp | Conv | Recurrent | ByEmbedding = Mlp((64, 64))  # of the policy
    critic: Mlp | Conv | Recurrent | ByEmbedding = Mlp(
        (64, 64)
    )  # of state or action values; used for each critic of an ensemble


Spec = Mlp | Conv | Recurrent | ByEmbedding | ActorCritic


def actor_of(spec: Spec) -> Any:
    """The network of an actor: the spec itself, or the one for actors of an `ActorCritic`."""
    return spec.actor if isinstance(spec, ActorCritic) else spec


def critic_of(spec: Spec) -> Any:
    """The network of a critic: the spec itself, or the one for critics of an `ActorCritic`."""
    return spec.critic if isinstance(spec, ActorCritic) else spec


def framework_of(kind: type) -> str | None:
    """The framework that a class of modules belongs to, "torch" or "keras", without importing it; None for others."""
    origins = {base.__module__.split(".")[0] for base in kind.__mro__}
    return next((name for name in ("torch", "keras") if name in origins), None)


def layers_of(spec: Spec) -> Spec:
    """The layers that see what is observed: before the cell of a recurrent network, or all."""
    spec = actor_of(spec)
    if isinstance(spec, ByEmbedding):
        return spec.network
    return spec.before if isinstance(spec, Recurrent) else spec


def with_layers(spec: Spec, layers: Mlp | Conv) -> Spec:
    """The same kind of network with other layers over what is observed."""
    if isinstance(spec, ByEmbedding):
        return dataclasses.replace(spec, network=layers)
    return dataclasses.replace(spec, before=layers) if isinstance(spec, Recurrent) else layers
