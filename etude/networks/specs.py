"""Networks as data: frozen descriptions that engines build, checkpoints store and evolution mutates."""

from __future__ import annotations

from dataclasses import dataclass

from etude import checks
from etude.errors import ConfigError

ACTIVATIONS = ("relu", "tanh", "elu", "gelu", "silu")
INITIALIZERS = ("fan_in", "orthogonal")


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
    """Dense layers. Everything that is observed is flattened, joined and passed through them.

    dueling: the last hidden layer is there twice, for the value V of the state and for the advantages A of the actions;
        the output is V + A - mean A. Wang et al. 2016, arXiv:1511.06581, equation 9. For values of actions only.
    noisy: parameters of the dense layers are means, to which trained scales times factorised Gaussian noise are added.
        They start at noisy / sqrt(inputs). Fortunato et al. 2018, arXiv:1706.10295, where it is 0.5. For algorithms
        whose losses draw the noise: those that learn values of actions.
    """

    widths: tuple[int, ...] = (64, 64)  # units of each hidden layer
    activation: str = "relu"  # relu, tanh, elu, gelu or silu
    initializer: str = "fan_in"  # fan_in: uniform in +-1/sqrt(inputs), biases too; orthogonal: gain sqrt(2), biases 0
    dueling: bool = False  # for values of actions: one stream for that of the state, one for the advantages
    noisy: float = 0.0  # first scale of the noise in dense layers, times 1/sqrt(inputs); 0: none

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class Conv:
    """Convolutions over every image (uint8, height x width x channels, scaled to [0, 1] in the network), then dense
    layers over their features joined with everything else that is observed. The default is the network of
    Mnih et al. 2015, doi:10.1038/nature14236. dueling and noisy concern the dense layers: see `Mlp`."""

    filters: tuple[tuple[int, int, int], ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # (filters, kernel, stride)
    widths: tuple[int, ...] = (512,)
    activation: str = "relu"
    initializer: str = "orthogonal"
    dueling: bool = False
    noisy: float = 0.0

    def __post_init__(self) -> None:
        _check(self)


Spec = Mlp | Conv


def over_images(spec: Mlp | Conv) -> Conv:
    """The default `Conv`, with the dueling and the noisy layers of a spec."""
    return Conv(dueling=spec.dueling, noisy=spec.noisy)
