"""Categorical SAC: SAC whose critics are categorical distributions of the soft return, over networks on the unit
hypersphere.

Lee, Lee, Seno, Kim, Stone & Choo 2025, Hyperspherical normalization for scalable deep reinforcement learning (SimBaV2),
arXiv:2502.15280, section 4. Distributions: Bellemare, Dabney & Munos 2017, arXiv:1707.06887, algorithm 1.
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
from etude.base.schedules import Linear
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.losses.distributional import categorical_td, expected_values
from etude.losses.soft import minimum
from etude.networks import ActorCritic, Maker, SimBaV2, Spec


@dataclass(frozen=True)
class CategoricalSACConfig(SACConfig):
    """Hyperparameters of categorical SAC, besides those of SAC."""

    network: Spec = ActorCritic(SimBaV2(1, 128), SimBaV2(2, 512))
    learning_rate: float | Linear = Linear(1e-4, 5e-5)
    normalize_observation: bool = True
    normalize_reward: bool = True  # divide by the running standard deviation of the discounted return
    learning_starts: int = 5_000
    temperature: float = 0.01  # entropy temperature alpha (its initial value if learned)
    target_entropy: float | None = None  # target entropy in nats; None: minus half the action dimension
    atoms: int = 101  # atoms of the support
    v_max: float = 5.0  # the largest atom, in units of the normalised soft return; the smallest is minus that
    n_target_critics: ClassVar[None] = None  # type: ignore[misc]  # the distribution with the smallest mean

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole_number(f"{type(self).__name__}: atoms", self.atoms, 2)
        checks.positive(self, "v_max")

    @property
    def largest_return(self) -> float:
        return self.v_max


class CategoricalCritics(CriticEnsemble):
    """E critics with a distribution of the return over N atoms each."""

    def __call__(self, observation: Tree = None, action: Any = None) -> Any:
        """Logits: [E, B, N]."""
        return self._outputs((observation, action))


class CategoricalSAC(SAC):
    """SAC with a distribution of the return in the place of its expected value."""

    critic: CategoricalCritics
    critic_target: CategoricalCritics
    entropy_per_action: ClassVar[float] = -0.5

    def make_critic(self, make: Maker, spaces: Spaces) -> CriticEnsemble:
        c = self.config
        return CategoricalCritics.make(make, c.critic_network, spaces, c.n_critics, c.atoms)

    def critic_loss(self, batch: Batch, noise: Any, subset: Any = None) -> Loss:
        """The cross-entropy of each critic under the projected distribution of `reward + discount * (next return -
        alpha * next log_prob)`, where the next return is that of the target critic with the smallest mean; summed over
        the critics. Section 4.2."""
        next_action, next_log_prob = self.act(batch.next_observation).sample_with_log_prob(noise)
        following = self.critic_target(self.normaliser(batch.next_observation), next_action)
        smallest = ops.argmax(-ops.swapaxes(self._values(following), 0, 1))
        following = ops.take_row(ops.swapaxes(following, 0, 1), smallest)
        reward = batch.reward - batch.discount * self.temperature.alpha(self.config) * next_log_prob
        logits, support = self.critic(self.normaliser(batch.observation), batch.action), self._support(following)
        losses = [
            categorical_td(logits[i], reward, batch.discount, following, support) for i in range(self.config.n_critics)
        ]
        q = ops.mean(self._values(logits), 0)
        error = ops.stop_gradient(reward + batch.discount * self._values(following)) - q
        return Loss(ops.mean(batch.weight * sum(losses)), error, q_value=q)

    def actor_value(self, observation: Tree, action: Any) -> Any:
        """The smallest mean of the critics."""
        return minimum(self._values(self.critic(observation, action)))

    def _values(self, logits: Any) -> Any:
        """The means [...] of distributions with logits [..., N]."""
        return expected_values(logits, self._support(logits))

    def _support(self, like: Any) -> Any:
        return ops.linspace(-self.config.v_max, self.config.v_max, self.config.atoms, like)
