"""Networks as data: frozen descriptions that engines build, checkpoints store and evolution mutates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from etude.base import checks
from etude.base.errors import ConfigError

ACTIVATIONS = ("relu", "tanh", "elu", "gelu", "silu")
INITIALIZERS = ("fan_in", "orthogonal")
CELLS = ("gru", "lstm")
POSITIONS = ("rotary", "learned")


def _check(spec: Mlp | Conv) -> None:
    checks.declared(spec, {"Filters": ((tuple, list), "a tuple of (filters, kernel, stride), such as ((32, 8, 4),)")})
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
    if not 0.0 <= spec.dropout < 1.0:
        raise ConfigError(f"{type(spec).__name__}: dropout = {spec.dropout}; expected a fraction from 0 to below 1.")
    if spec.noisy and not spec.bias:
        raise ConfigError(f"{type(spec).__name__}: noisy = {spec.noisy} of layers with bias = False; drop one of them.")
    _check_layers(spec, spec.dueling)


def _check_layers(spec: Mlp | Conv | Recurrent, dueling: bool) -> None:
    """Raise ConfigError where skips or norm groups do not fit the hidden layers."""
    name, layers = type(spec).__name__, len(spec.widths)
    if any(not 1 <= layer < layers - dueling for layer in spec.skips):
        raise ConfigError(
            f"{name}: skips = {spec.skips} of {layers} hidden layers; expected numbers of at least 1 and below "
            f"{layers - dueling}. The first layer has no skip connection, and no dueling stream."
        )
    groups = zip(spec.norm_groups, spec.widths, strict=False)
    fits = all(isinstance(of, tuple | list) and (not of or sum(of) == width and min(of) > 0) for of, width in groups)
    if spec.norm_groups and (len(spec.norm_groups) != layers or not fits):
        raise ConfigError(
            f"{name}: norm_groups = {spec.norm_groups} of widths {spec.widths}; expected for each hidden layer () or "
            "numbers of units with its width as their sum."
        )


@dataclass(frozen=True)
class Mlp:
    """A multilayer perceptron over all parts of the observation, flattened and concatenated (images too).

    dueling: separate streams for the state value V and the advantages A; the output is V + A - mean A. Wang et al.
        2016, arXiv:1511.06581, equation 9. For action values only.
    noisy: initial sigma of noisy layers with factorised Gaussian noise, times 1 / sqrt(inputs); 0: none. Fortunato et
        al. 2018, arXiv:1706.10295, use 0.5. For algorithms that learn action values, whose losses draw the noise.
    layer_norm: layer normalisation with trained scale and bias, between each hidden layer and its activation. Ba et
        al. 2016, arXiv:1607.06450.
    norm_groups: statistics of layer_norm over groups of units: group normalisation (Wu & He 2018, arXiv:1803.08494)
        with groups of these sizes. Units that evolution adds are a group of their own.
    skips: hidden layers, counted from 0, whose output is concatenated to their input, as in DenseNet (Huang et al.
        2017, arXiv:1608.06993). Layers that evolution adds have such a skip connection.
    dropout: fraction of the units of each hidden layer that are 0 in each pass of training, before layer_norm.
        Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html. For algorithms whose losses draw the
        noise: the critics of sac and its kin.
    batch_renorm: batch renormalisation of the inputs of every layer, with trained scale and bias; its running
        statistics are weights that no loss trains. Ioffe 2017, arXiv:1702.03275.
    spectral_norm: divide the weights of each hidden layer by their largest singular value, which one step of the power
        method estimates in each pass of training. Miyato et al. 2018, arXiv:1802.05957; Gogianu et al. 2021,
        arXiv:2105.05246. Units that evolution adds to such a layer change it, and so what the network computes.
    """

    widths: tuple[int, ...] = (64, 64)  # units of the hidden layers
    activation: str = "relu"  # relu, tanh, elu, gelu or silu
    initializer: str = "fan_in"  # fan_in: uniform in +-1/sqrt(inputs), biases too; orthogonal: gain sqrt(2), biases 0
    dueling: bool = False  # action values: streams for the state value and the advantages
    noisy: float = 0.0  # initial sigma of noisy layers, times 1/sqrt(inputs); 0: none
    layer_norm: bool = False  # normalise the inputs of each hidden layer's activation
    norm_groups: tuple[tuple[int, ...], ...] = ()  # units in each group of each hidden layer; (): one group
    skips: tuple[int, ...] = ()  # hidden layers whose output is concatenated to their input
    dropout: float = 0.0  # fraction of hidden units that are dropped in training
    batch_renorm: bool = False  # batch renormalisation of the inputs of every layer
    spectral_norm: bool = False  # divide the weights of each hidden layer by their largest singular value
    bias: bool = True  # of every dense layer; False: a layer is a matrix

    def __post_init__(self) -> None:
        _check(self)


def _check_encoder(name: str, spec: Mlp | Conv) -> None:
    """Raise ConfigError for layers within another network that only networks of their own have."""
    for field in ("dueling", "noisy", "dropout", "batch_renorm", "spectral_norm"):
        if getattr(spec, field):
            raise ConfigError(f"{name}: {field} = {getattr(spec, field)} of its layers; leave it out there.")


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
    """Convolutions over each image (uint8, scaled to [0, 1] in the network, or floats with two sides of at least 8
    pixels; see `encoding.Image`), then dense layers over their features concatenated with the rest of the observation.
    The default is the network of Mnih et al. 2015, doi:10.1038/nature14236, or smaller filters for smaller images.
    dueling, noisy, layer_norm, norm_groups, skips, dropout, batch_renorm, spectral_norm and bias concern the dense
    layers, as in `Mlp`.

    padding: pixels of zeros around the input of each convolution; negative: pixels that are cut off. (): 0 everywhere.
    filter_skips: convolutions, counted from 0, whose output is concatenated to their input. They keep height and width:
        stride 1 and 2 * padding + 1 = kernel.
    """

    filters: Filters = NATURE  # (filters, kernel, stride) of each layer
    widths: tuple[int, ...] = (512,)  # units of the dense layers after the convolutions
    activation: str = "relu"  # as in `Mlp`
    initializer: str = "orthogonal"  # as in `Mlp`
    dueling: bool = False  # as in `Mlp`
    noisy: float = 0.0  # as in `Mlp`
    layer_norm: bool = False  # as in `Mlp`
    norm_groups: tuple[tuple[int, ...], ...] = ()  # as in `Mlp`
    skips: tuple[int, ...] = ()  # as in `Mlp`
    padding: tuple[int, ...] = ()  # pixels of zeros around the input of each convolution; (): none
    filter_skips: tuple[int, ...] = ()  # convolutions whose output is concatenated to their input
    dropout: float = 0.0  # as in `Mlp`
    batch_renorm: bool = False  # as in `Mlp`
    spectral_norm: bool = False  # as in `Mlp`
    bias: bool = True  # as in `Mlp`

    def __post_init__(self) -> None:
        _check(self)
        if any(not isinstance(layer, tuple | list) or len(layer) != 3 for layer in self.filters):
            raise ConfigError(f"Conv: filters = {self.filters}; expected (filters, kernel, stride) of each layer.")
        padding = self.padding or (0,) * len(self.filters)
        if len(padding) != len(self.filters):
            raise ConfigError(
                f"Conv: padding = {self.padding} for {len(self.filters)} convolutions; expected a number for each, or "
                "()."
            )
        for layer in self.filter_skips:
            if not 0 <= layer < len(self.filters) or self.filters[layer][1:] != (2 * padding[layer] + 1, 1):
                raise ConfigError(
                    f"Conv: filter_skips = {self.filter_skips}, filters = {self.filters}, padding = {self.padding}; "
                    "expected convolutions with stride 1 and padding (kernel - 1) / 2, which keep the size of images."
                )


@dataclass(frozen=True)
class SimBa:
    """Residual blocks over all parts of the observation, flattened and concatenated: each adds two dense layers over
    the stream, normalised, to it; the stream is normalised once more before the outputs. So a network of any size is
    close to a linear function when it starts. Lee et al. 2024, arXiv:2410.09754, who also normalise observations by
    running moments: `normalize_observation=True`.
    """

    blocks: int = 2  # residual blocks; the paper: 1 of actors, 2 of critics
    width: int = 512  # numbers of the stream; the paper: 128 of actors, 512 of critics
    expansion: int = 4  # units of a block's first layer, times width
    activation: str = "relu"  # as in `Mlp`
    initializer: str = "orthogonal"  # as in `Mlp`

    def __post_init__(self) -> None:
        checks.declared(self)
        checks.not_negative(self, "blocks")
        checks.counts(self, "width", "expansion")
        checks.one_of(self, "activation", ACTIVATIONS)
        checks.one_of(self, "initializer", INITIALIZERS)


@dataclass(frozen=True)
class SimBaV2(SimBa):
    """SimBa on the unit hypersphere: the stream of each layer and each column of its weights have norm 1, the latter
    after every gradient step, so that neither grows while learning goes on; what layers put out is multiplied by
    trained scales, and blocks interpolate between the stream and a function of it. Lee et al. 2025, arXiv:2502.15280,
    section 4, who also normalise observations, and learn distributions of returns (`categorical_sac`): expected returns
    far from 0 are slow to be reached by such layers.
    """

    shift: float = 3.0  # appended to the observation before it is scaled to norm 1, so that its own norm is not lost

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(self, "shift")


@dataclass(frozen=True)
class Recurrent:
    """An encoder of the observation, a recurrent cell, and dense layers over the cell's output. For algorithms that
    learn from sequences: r2d2 and recurrent_ppo."""

    before: Mlp | Conv = Mlp((64,))  # the encoder; its last hidden layer feeds the cell
    units: int = 64  # of the cell
    cell: str = "gru"  # gru (Cho et al. 2014, arXiv:1406.1078) or lstm (Hochreiter & Schmidhuber 1997)
    widths: tuple[int, ...] = ()  # dense layers after the cell, with activation, initializer and layer_norm of `before`
    norm_groups: tuple[tuple[int, ...], ...] = ()  # of these layers, as in `Mlp`
    skips: tuple[int, ...] = ()  # of these layers, as in `Mlp`

    def __post_init__(self) -> None:
        expected = "Mlp(...) or Conv(...), as in Recurrent(before=Mlp((64,)), units=64)"
        checks.declared(self, {"Mlp | Conv": ((Mlp, Conv), expected)})
        checks.one_of(self, "cell", CELLS)
        _check_encoder("Recurrent", self.before)
        if any(int(width) < 1 for width in (self.units, *self.widths)):
            raise ConfigError(
                f"Recurrent: every layer needs at least one unit; got units {self.units}, widths {self.widths}."
            )
        _check_layers(self, False)


@dataclass(frozen=True)
class Transformer:
    """A sequence of observations through blocks of attention and dense layers, with layer normalisation before each
    (Vaswani et al. 2017, arXiv:1706.03762; Xiong et al. 2020, arXiv:2002.04745). Each step of an episode sees itself
    and the `context` - 1 steps before it. What it keeps while it acts, keys and values of these, is its recurrent
    state. For recurrent_ppo, and agents of your own that learn from sequences.

    positions: rotary (Su et al. 2021, arXiv:2104.09864): how far back a step lies; learned: an embedding of the step's
        number in its episode, which is counted from 0 again after `context` steps.
    tied: Discrete observations, tokens: where outputs are as many, their logits are the inner products with the
        embeddings of the tokens, times width**-0.5 (Press & Wolf 2017, arXiv:1608.05859).
    causal: False: sequences are seen as a whole, `context` - 1 steps after each one, too. Such a network cannot act.
    head_size: of its own, so that evolution can add heads to a stream whose width stays.
    """

    layers: int = 2  # blocks
    width: int = 64  # of the embedding of a step
    heads: int = 4  # of attention
    feedforward: int = 256  # units of the dense layer of a block
    context: int = 32  # steps that a step sees, itself included
    causal: bool = True  # whether a step sees none of those after it
    positions: str = "rotary"  # rotary or learned
    tied: bool = False  # Discrete observations: whether their embeddings are the weights of as many outputs
    before: Mlp | Conv = Mlp((), "gelu")  # the encoder of an observation, whose features are embedded
    head_size: int = 0  # numbers of each head; 0: width / heads

    def __post_init__(self) -> None:
        checks.declared(self, {"Mlp | Conv": ((Mlp, Conv), "Mlp(...) or Conv(...), as in Transformer(before=Conv())")})
        checks.counts(self, "layers", "width", "heads", "feedforward", "context")
        checks.whole_number("Transformer: context", self.context, 2, " steps, itself and another")
        checks.one_of(self, "positions", POSITIONS)
        checks.not_negative(self, "head_size")
        if (
            not self.head_size
            and self.width % self.heads
            or self.positions == "rotary"
            and self.attention // self.heads % 2
        ):
            pairs = ", each of an even number for rotary positions" if self.positions == "rotary" else ""
            raise ConfigError(
                f"Transformer: width = {self.width}, heads = {self.heads}, head_size = {self.head_size}; expected "
                f"heads of equal width{pairs}, such as width = {self.heads * 16}."
            )
        _check_encoder("Transformer", self.before)
        if self.tied and self.before != Mlp((), self.before.activation, self.before.initializer):
            raise ConfigError(
                f"Transformer: tied = True, before = {self.before}; the weights of the outputs are the embeddings of "
                "tokens, which no layer comes before. Leave one of them out."
            )

    @property
    def attention(self) -> int:
        """Numbers of a query: those of all heads."""
        return self.heads * (self.head_size or self.width // self.heads)


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
        expected = "Mlp(...) or Conv(...), as in ByEmbedding(network=Mlp((64, 64)))"
        checks.declared(self, {"Mlp | Conv": ((Mlp, Conv), expected)})
        if self.network.dueling:
            raise ConfigError(
                "ByEmbedding: its network computes a state embedding, which has no dueling streams; leave dueling off."
            )
        _check_encoder("ByEmbedding", replace(self.network, noisy=0.0))


ModuleFactory = Callable[[], Any]  # a function or class that returns a torch.nn.Module or a keras.Model

if TYPE_CHECKING:
    OneSpec = Mlp | Conv | SimBa | SimBaV2 | Recurrent | Transformer | ByEmbedding | ModuleFactory
else:  # files and the command line, which read the declared types, hold no functions
    OneSpec = Mlp | Conv | SimBa | SimBaV2 | Recurrent | Transformer | ByEmbedding


@dataclass(frozen=True)
class ActorCritic:
    """Separate networks of actor and critic: specs, or functions that return a module."""

    actor: OneSpec = Mlp((64, 64))  # of the policy
    critic: OneSpec = Mlp((64, 64))  # of state or action values; used for each critic of an ensemble


Spec = OneSpec | ActorCritic


def actor_of(spec: Spec) -> Any:
    """The network of an actor: the spec itself, or the one for actors of an `ActorCritic`."""
    return spec.actor if isinstance(spec, ActorCritic) else spec


def critic_of(spec: Spec) -> Any:
    """The network of a critic: the spec itself, or the one for critics of an `ActorCritic`."""
    return spec.critic if isinstance(spec, ActorCritic) else spec


def feature_count(spec: Mlp | Conv | Recurrent, layers: int | None = None) -> int:
    """The number of features after the first so many hidden layers, at least one; None: after all."""
    features = 0
    for layer, units in enumerate(spec.widths[:layers]):
        features = features + units if layer in spec.skips else units
    return features


def framework_of(kind: type) -> str | None:
    """The framework that a class of modules belongs to, "torch" or "keras", without importing it; None for others."""
    origins = {base.__module__.split(".")[0] for base in kind.__mro__}
    return next((name for name in ("keras", "torch") if name in origins), None)


def layers_of(spec: Spec) -> Spec:
    """The layers that see what is observed: before what remembers, or all."""
    spec = actor_of(spec)
    if isinstance(spec, ByEmbedding):
        return spec.network
    return spec.before if isinstance(spec, Recurrent | Transformer) else spec


def with_layers(spec: Spec, layers: Mlp | Conv) -> Spec:
    """The same kind of network with other layers over what is observed."""
    if isinstance(spec, ByEmbedding):
        return replace(spec, network=layers)
    return replace(spec, before=layers) if isinstance(spec, Recurrent | Transformer) else layers
