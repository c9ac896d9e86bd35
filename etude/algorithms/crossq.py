"""CrossQ: SAC without target networks, whose wide critics, with batch renormalisation, see both steps of a transition
in one pass.

Bhatt, Palenicek, Belousov, Argus, Amiranashvili, Brox & Peters 2024, CrossQ: Batch normalization in deep reinforcement
learning for greater sample efficiency and simplicity, arXiv:1902.05605, figure 2.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from etude import ops
from etude.agent import Loss
from etude.algorithms.critics import critic_ensemble_loss
from etude.algorithms.sac import SAC, SACConfig
from etude.base import trees
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.trees import Tree
from etude.losses.soft import minimum, soft_target
from etude.networks import ActorCritic, Conv, Mlp, Spec
from etude.optimizers import Adam, Optimizer


@dataclass(frozen=True)
class CrossQConfig(SACConfig):
    """Hyperparameters of CrossQ, besides those of SAC."""

    network: Spec = ActorCritic(Mlp((256, 256)), Mlp((2048, 2048)))  # specs get batch_renorm
    learning_rate: float | Linear = 1e-3  # of the optimizer: a number or a `Linear` schedule
    optimizer: Optimizer = Adam(beta1=0.5)  # one of `etude.optimizers`: Adam, AdamW, RMSProp, SGD or Lion
    policy_delay: int = 3  # gradient steps of the critics for each one of the actor and the temperature
    tau: ClassVar[float] = 1.0  # type: ignore[misc]  # there are no target networks
    n_target_critics: ClassVar[None] = None  # type: ignore[misc]  # the target is the minimum of all critics

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self.critic_network, "dropout", 0.0):
            raise ConfigError(
                f"{type(self).__name__}: dropout of critics {self.critic_network!r}; a pass over two steps draws none "
                "of its noise. Leave it at 0."
            )
        if self.actor_priorities:
            raise ConfigError(
                f"{type(self).__name__}: actor_priorities = True; priorities are errors under the statistics of a "
                "whole batch, which actors do not have. Leave it off."
            )

    @property
    def actor_network(self) -> Spec:
        return _renormalised(super().actor_network)

    @property
    def critic_network(self) -> Spec:
        return _renormalised(super().critic_network)


def _renormalised(spec: Spec) -> Spec:
    return replace(spec, batch_renorm=True) if isinstance(spec, Mlp | Conv) else spec


class CrossQ(SAC):
    """A stochastic policy that maximises return and entropy, and twin critics that are their own targets."""

    has_targets = False

    def critic_loss(self, batch: Batch, noise: Any, subset: Any = None) -> Loss:
        """Equations 5 and 6 of SAC, where one pass of the critics gives the values of both steps."""
        still = copy.copy(self)
        still.actor = self.actor.evaluated()
        next_action, next_log_prob = still.act(batch.next_observation).sample_with_log_prob(noise)
        steps = [self.normaliser(observation) for observation in (batch.observation, batch.next_observation)]
        both = trees.map(lambda *x: ops.concatenate(x, 0), *steps)
        q, n = self.critic(both, ops.concatenate([batch.action, next_action], 0)), batch.weight.shape[0]
        alpha = self.temperature.alpha(self.config)
        target_q = soft_target(batch.reward, batch.discount, minimum(q[:, n:]), next_log_prob, alpha)
        return critic_ensemble_loss(ops.expand_dims(target_q, 0) - q[:, :n], batch.weight, q[:, :n])

    def actor_value(self, observation: Tree, action: Any) -> Any:
        """The smallest value of the critics, which normalise by their running statistics."""
        return self.critic.evaluated().minimum(observation, action)
