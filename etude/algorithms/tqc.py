"""TQC: SAC whose critics estimate quantiles of the return, and whose targets leave out the largest of them.

Kuznetsov, Shvechikov, Grishin & Vetrov 2020, Controlling overestimation bias with truncated mixture of continuous
distributional quantile critics, arXiv:2005.04269, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import Loss
from etude.algorithms.critics import CriticEnsemble
from etude.algorithms.sac import SAC, SACConfig
from etude.base import checks
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.losses.distributional import quantile_error, quantile_regression
from etude.networks import Maker

WIDTH = 1.0  # of the Huber loss


@dataclass(frozen=True)
class TQCConfig(SACConfig):
    """Hyperparameters of TQC, besides those of SAC."""

    n_critics: int = 5  # critics, each with quantiles and targets of its own
    quantiles: int = 25  # quantiles of each critic
    dropped: int = 2  # quantiles that a target leaves out, the largest of all critics', times n_critics
    n_target_critics: ClassVar[None] = None  # type: ignore[misc]  # all critics' quantiles are pooled

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "quantiles")
        if not 0 <= self.dropped < self.quantiles:
            raise ConfigError(
                f"{type(self).__name__}: dropped = {self.dropped} of quantiles = {self.quantiles}; expected from 0 to "
                f"{self.quantiles - 1}, so that a target keeps at least one for each critic."
            )


class QuantileCritics(CriticEnsemble):
    """E critics with N quantiles of the return each; its values are their means."""

    def __call__(self, observation: Tree = None, action: Any = None) -> Any:
        return ops.mean(self.quantiles(observation, action), -1)

    def quantiles(self, observation: Tree, action: Any) -> Any:
        """[E, B, N]."""
        return self._outputs((observation, action))


class TQC(SAC):
    """SAC with a distribution of the return in the place of its expected value."""

    critic: QuantileCritics
    critic_target: QuantileCritics

    def make_critic(self, make: Maker, spaces: Spaces) -> CriticEnsemble:
        c = self.config
        return QuantileCritics.make(make, c.critic_network, spaces, c.n_critics, c.quantiles)

    def critic_loss(self, batch: Batch, noise: Any, subset: Any = None) -> Loss:
        """Equations 10 to 12, summed over the critics."""
        n, m, column = self.config.n_critics, self.config.quantiles, lambda x: ops.expand_dims(x, -1)
        next_action, next_log_prob = self.act(batch.next_observation).sample_with_log_prob(noise)
        following = self.critic_target.quantiles(self.normaliser(batch.next_observation), next_action)
        pooled = ops.sort(ops.reshape(ops.swapaxes(following, 0, 1), (-1, n * m)))
        kept = pooled[:, : n * (m - self.config.dropped)]
        entropy = self.temperature.alpha(self.config) * next_log_prob
        target = column(batch.reward) + column(batch.discount) * (kept - column(entropy))
        quantiles = self.critic.quantiles(self.normaliser(batch.observation), batch.action)
        fractions = ops.linspace(0.5 / m, 1 - 0.5 / m, m, quantiles)
        losses = [quantile_regression(quantiles[i], target, fractions, WIDTH) / m for i in range(n)]
        values = ops.mean(quantiles, 0)
        error = quantile_error(values, target)
        return Loss(ops.mean(batch.weight * sum(losses)), error, q_value=ops.mean(values, -1))

    def actor_value(self, observation: Tree, action: Any) -> Any:
        """The mean of all quantiles: equation 13."""
        return self.critic.mean(observation, action)
