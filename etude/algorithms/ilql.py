"""Implicit language Q-learning: values of tokens from recorded games, which move a cloned policy.

Snell et al. 2022, Offline RL for natural language generation with implicit language Q-learning, arXiv:2206.11871.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from etude import ops
from etude.agent import Loss, Losses
from etude.algorithms.bc import BC
from etude.algorithms.distributions import StochasticPolicyConfig
from etude.algorithms.token_policy import mean_over_tokens
from etude.base import checks
from etude.base.data import Batch
from etude.base.schedules import Linear
from etude.base.spaces import ACTION_MASK, Discrete, Spaces
from etude.base.trees import Tree
from etude.config import OfflineConfig
from etude.language import Pretrained
from etude.losses.distributions import Categorical
from etude.losses.masks import masked
from etude.losses.offline import cql_gap, ilql
from etude.losses.returns import discounted_returns
from etude.networks import Maker, Spec, Transformer, frozen, target
from etude.networks.tokens import TokenNetwork


@dataclass(frozen=True)
class ILQLConfig(OfflineConfig, StochasticPolicyConfig):
    """Hyperparameters of ILQL, besides those of every offline algorithm."""

    network: Spec = Transformer()  # of the policy, and of V and both Q together; over tokens with a context of all
    batch_size: int = 64  # games in a gradient step
    expectile: float = 0.7  # expectile of the value regression: 0.5 is the mean, 1 the maximum over the data's tokens
    beta: float | Linear = 16.0  # how much values move the cloned policy: log pi + beta * (min Q - V)
    cql_alpha: float = 0.01  # coefficient of the conservative term: cross-entropy of the Q with the recorded tokens
    tau: float = 0.005  # Polyak rate of the target values, applied after every gradient step
    monte_carlo: bool = False  # Q regress returns of the games, and bootstrap from no value
    clone: bool = True  # train the policy beside the values, by BC; False: it stays as `start_from` gave it

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "expectile", "tau")
        checks.not_negative(self, "beta", "cql_alpha")


class ILQL(BC):
    """V, an upper expectile of the values of the data's tokens, and twin Q that bootstrap from it at the next token of
    the agent, on one transformer; and a cloned policy, whose logits they are added to."""

    learns_from = "token_sequences"
    actions: ClassVar[tuple[type[Any], ...]] = (Discrete,)
    bounded_actions = False

    def build(self, make: Maker, spaces: Spaces) -> None:
        self.read_games(make, spaces)
        policy: TokenNetwork = self.actor["policy"]
        if not self.config.clone:
            self.actor = {**self.actor, "policy": frozen(policy)}
            self.given = {} if isinstance(self.config.actor_network, Pretrained) else {"actor": "bc"}
        self.legal: bool = spaces.masked
        self.tokens: int = int(spaces.action.n)
        self.critic: TokenNetwork = make.tokens(self.config.critic_network, spaces.observation, 1 + 2 * self.tokens)
        self.critic_target: TokenNetwork = target(self.critic, tau="tau")
        self.state_size = policy.state_size + self.critic.state_size

    def act(self, observation: Tree, *state: Any) -> Any:
        size = self.actor["policy"].state_size
        x, cloning = self.actor["policy"](observation, state[0][:, :size])
        values, valuing = self.critic_target(observation, state[0][:, size:])
        cloned = self.policy.of(self.actor, observation, x)
        value, *q = self._split(values)
        advantage = ops.minimum(*q) - ops.expand_dims(value, -1)
        moved = Categorical(ops.log_softmax(cloned.logits) + self.config.beta * advantage, cloned.allowed)
        return moved, ops.concatenate([cloning, valuing], -1)

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        own = {"actor": self.clone_loss(batch)} if self.config.clone else {}
        return Losses(critic=self.critic_loss(batch), **own)

    def critic_loss(self, batch: Batch) -> Loss:
        """Q and V at the tokens of the agent; `ilql`, and the conservative term."""
        value, *q = self._split(self.critic.whole(batch.action))
        _, *target_q = self._split(self.critic_target.whole(batch.action))
        now = value[:, :-1]
        chosen, target_chosen = (
            ops.stack([ops.take_last(x[:, :-1], batch.action) for x in own], 0) for own in (q, target_q)
        )
        loss = ilql(chosen, now, self._target(batch, value), target_chosen, self.config.expectile)
        gap = sum(self._gap(x[:, :-1], batch) for x in q)
        return Loss(
            mean_over_tokens(batch, loss + self.config.cql_alpha * gap),
            q_value=mean_over_tokens(batch, chosen[0]),
            mean_value=mean_over_tokens(batch, now),
            cql_gap=mean_over_tokens(batch, gap),
        )

    def _target(self, batch: Batch, value: Any) -> Any:
        """What Q regress, [B, L]: the reward and V at the agent's next token, or the return of the rest of the game.
        value: [B, L + 1]. A truncated game goes on with V of all of its tokens."""
        mine, following = batch.extras["mine"], batch.extras["next_place"]
        if not self.config.monte_carlo:
            return batch.reward + batch.discount * ops.gather(value, following)
        last = ops.gather(value, ops.max(following, -1, keepdims=True))[:, 0]
        reward, goes_on = ops.swapaxes(batch.reward, 0, 1), ops.swapaxes(mine * batch.discount + 1.0 - mine, 0, 1)
        return ops.swapaxes(discounted_returns(reward, goes_on, last), 0, 1)

    def _split(self, values: Any) -> tuple[Any, Any, Any]:
        """V [...] and both Q [..., n] in the outputs of a network [..., 1 + 2 n]."""
        value, one, other = ops.split_last(values, (1, self.tokens, self.tokens))
        return value[..., 0], one, other

    def _gap(self, q: Any, batch: Batch) -> Any:
        return cql_gap(masked(q, batch.observation[ACTION_MASK]) if self.legal else q, batch.action)
