"""A mixture of several distributions of one kind."""

from __future__ import annotations

from typing import Any, NamedTuple

from etude import ops
from etude.base import trees
from etude.losses.distributions.choices import Categorical
from etude.losses.distributions.inversion import normal_cdf, normal_quantile
from etude.ops import Array


class Mixture(NamedTuple):
    """One of K components with probability softmax(logits): action [B, A]; noise [B, A] normal. Bishop 1994, Mixture
    density networks (Aston University, NCRG/94/004).

    The first number of the noise picks the component, and its place within the component's share is again a normal
    number: one number serves for both (Devroye 1986, Non-uniform random variate generation, II.4). Samples are exact up
    to the rounding of float32. No gradient flows through them.
    """

    logits: Array  # [B, K]
    components: Any  # a `Gaussian` or `Beta` with parameters [B, K, A]

    def sample(self, noise: Array) -> Array:
        probabilities = ops.stop_gradient(ops.softmax(self.logits))
        cumulated = ops.cumsum(probabilities)
        place = normal_cdf(noise[..., :1]) * cumulated[..., -1:]
        last = int(self.logits.shape[-1]) - 1
        choice = ops.minimum(ops.sum(cumulated <= place, -1), last)
        share = ops.expand_dims(ops.take_last(probabilities, choice), -1)
        before = ops.expand_dims(ops.take_last(cumulated, choice), -1) - share
        within = ops.concatenate([normal_quantile((place - before) / share), noise[..., 1:]], -1)
        return ops.stop_gradient(self._component(choice).sample(within))

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        action = self.sample(noise)
        return action, self.log_prob(action)

    def log_prob(self, action: Array) -> Array:
        each = self.components.log_prob(ops.expand_dims(action, -2))
        return ops.logsumexp(ops.log_softmax(self.logits) + each)

    def mode(self) -> Array:
        """The mode of the likeliest component: not always that of the mixture, which has no closed form."""
        return self._component(ops.argmax(self.logits)).mode()

    def entropy(self) -> Array:
        """A lower bound of the entropy [B], in nats, from the Bhattacharyya distances of components: exact where they
        are all alike, or do not overlap. The entropy has no closed form. Kolchinsky & Tracey 2017, arXiv:1706.02419.
        """
        one, other = (trees.map(lambda x, axis=axis: ops.expand_dims(x, axis), self.components) for axis in (-2, -3))
        log_weights = ops.log_softmax(self.logits)
        overlap = ops.logsumexp(ops.expand_dims(log_weights, -2) - one.bhattacharyya(other))
        return ops.sum(ops.exp(log_weights) * (self.components.entropy() - overlap), -1)

    def kl(self, other: Mixture) -> Array:
        """An upper bound of KL(self || other) [B], in nats, which compares components in their order: 0 where both are
        the same. The divergence has no closed form. Hershey & Olsen 2007, doi:10.1109/ICASSP.2007.366913.
        """
        weights = ops.softmax(self.logits)
        between = ops.sum(weights * self.components.kl(other.components), -1)
        return Categorical(self.logits).kl(Categorical(other.logits)) + between

    def _component(self, choice: Array) -> Any:
        """The components that were chosen, [B] integers, with parameters [B, A]."""
        return trees.map(lambda x: ops.take_row(x, choice), self.components)
