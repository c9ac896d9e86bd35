"""Decision Transformer: a transformer over returns-to-go, observations and actions that is trained to predict the
actions, and acts for the return that it is asked for.

Chen et al. 2021, Decision Transformer: reinforcement learning via sequence modeling, NeurIPS, arXiv:2106.01345.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.algorithms.policies import BoundedPolicy
from etude.base import checks, trees
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.schedules import Linear
from etude.base.spaces import Box, Discrete, Spaces
from etude.base.trees import Tree
from etude.config import OfflineConfig
from etude.losses.offline import action_error, negative_log_likelihood
from etude.networks import FreeParameters, Maker, Mlp, Normaliser, Part, Spec, Transformer
from etude.networks.encoding import to_vector, width
from etude.optimizers import AdamW, Optimizer
from etude.protocols import Weights

TOKENS = 3  # of a time step: the action before it, the return-to-go, the observation


@dataclass(frozen=True)
class DecisionTransformerConfig(OfflineConfig):
    """Hyperparameters of the Decision Transformer, besides those of every offline algorithm."""

    network: Spec = Transformer(layers=3, width=128, heads=1, feedforward=512, context=60)  # context: 3 for each step
    encoder: Spec = Mlp(())  # from an observation to its token: a linear layer, or such as Conv() for images
    learning_rate: float | Linear = 1e-4
    optimizer: Optimizer = AdamW(weight_decay=1e-4)
    max_gradient_norm: float | None = 0.25
    gamma: float = 1.0  # returns-to-go are not discounted
    batch_size: int = 64  # sequences in a gradient step
    sequence_length: int = 20  # time steps of a sequence; fewer at the end of an episode
    target_return: float | None = None  # return that it acts for; None: the highest of a recorded episode
    return_scale: float = 1_000.0  # returns-to-go are divided by it before the network sees them
    time_steps: int = 1_000  # time steps with an embedding of their own; later ones share that of the last

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "sequence_length", "time_steps")
        checks.positive(self, "return_scale")
        name, spec = type(self).__name__, self.actor_network
        if not isinstance(spec, Transformer) or not spec.causal:
            raise ConfigError(
                f"{name}: network = {spec!r:.200}; expected a Transformer with causal = True, such as "
                "Transformer(layers=3, width=128, heads=1, feedforward=512, context=60)."
            )
        if self.gamma != 1.0 or self.clip_reward or self.normalize_reward:
            raise ConfigError(
                f"{name}: gamma = {self.gamma}, clip_reward = {self.clip_reward}, normalize_reward = "
                f"{self.normalize_reward}; returns-to-go are sums of the environment's own rewards, as target_return "
                "is. Leave gamma at 1 and the others off; return_scale scales what the network sees."
            )

    @property
    def example_length(self) -> int:
        return self.sequence_length


class DecisionTransformer(Agent):
    """One causal transformer over the tokens of the time steps. The recurrent state of an environment is what it has
    earned, how many steps it has taken, its last action, and the keys and values of the transformer."""

    learns_from = "return_sequences"
    actions: ClassVar[tuple[type[Any], ...]] = BoundedPolicy.actions
    bounded_actions = True
    reads_rewards = True

    def build(self, make: Maker, spaces: Spaces) -> None:
        config, spec = self.config, self.config.actor_network
        self.spaces: Spaces = spaces
        self.squared: bool = type(spaces.action) is Box
        self.policy: BoundedPolicy = BoundedPolicy(spaces)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, config.normalize_observation)
        self.action_size: int = width(spaces.action)
        self.target: FreeParameters = make.free(0.0, trained=False)  # the highest return of a recorded episode
        embedded, token = Mlp(()), _numbers(spec.width)
        network = make.recurrent(spec, token, outputs=self.policy.outputs, gain=self.policy.gain)
        self.actor: dict[str, Part] = {
            **self.policy.around(network, make, None if self.squared else 0.0),
            "observation": make(config.encoder, spaces.observation, outputs=spec.width),
            "action": make(embedded, _numbers(self.action_size), outputs=spec.width),
            "return": make(embedded, _numbers(1), outputs=spec.width),
            "time": make(embedded, Discrete(config.time_steps), outputs=spec.width),
        }
        self.sizes: tuple[int, ...] = (1, 1, self.action_size, network.state_size)
        self.state_size: int = sum(self.sizes)

    @property
    def state_recorded(self) -> bool:
        """False: keys and values are many."""
        return False

    def act(self, observation: Tree, *state: Any) -> Any:
        """The action for what is left of the target return."""
        earned, time, last, kept = ops.split_last(state[0], self.sizes)
        target = self.target() if self.config.target_return is None else self.config.target_return
        tokens = self._tokens(last, target - earned, self.normaliser(observation), time[:, 0])
        network: Any = self.actor["policy"]
        x, following = network.unroll(ops.stack(tokens, 1), kept)
        state = ops.concatenate([earned, time + 1.0, ops.zeros_like(last), following[:, 0]], -1)
        return self.policy.of(self.actor, observation, x[:, -1]), state

    def acted(self, state: Any, action: Any) -> Any:
        """The state with the action that was chosen."""
        earned, time, _, kept = ops.split_last(state, self.sizes)
        return ops.concatenate([earned, time, self._encoded(action), kept], -1)

    def rewarded(self, state: Any, reward: Any) -> Any:
        """The state with the reward [N] added to what was earned."""
        return ops.concatenate([state[:, :1] + ops.expand_dims(reward, -1), state[:, 1:]], -1)

    def _encoded(self, action: Any) -> Any:
        """Actions [N, ...] as numbers [N, A]."""
        return ops.cast(to_vector(self.spaces.action)(action), "float32")

    def _tokens(self, last: Any, to_go: Any, seen: Tree, time: Any) -> list[Any]:
        """The three tokens of N time steps, [N, width] each. last: [N, A] the action before, zeros before the first.
        to_go: [N, 1] the return-to-go. seen: normalised observations. time: [N], counted from 0."""
        number = ops.cast(ops.minimum(ops.cast(time, "float32"), self.config.time_steps - 1.0), "int32")
        embedded = self.actor["action"](last), self.actor["return"](to_go / self.config.return_scale)
        when = self.actor["time"](number)
        return [token + when for token in (*embedded, self.actor["observation"](seen))]

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        """The mean over the B sequences' own steps of the squared error of Box actions (the paper's section 3), else of
        the cross-entropy with the recorded ones."""
        extras, length = batch.extras, int(batch.reward.shape[1])
        shape = (-1, length, TOKENS)

        def steps(x: Any) -> Any:
            return ops.reshape(x, (-1, *x.shape[2:]))

        taken = ops.reshape(self._encoded(steps(batch.action)), (-1, length, self.action_size))
        last = ops.concatenate([ops.zeros_like(taken[:, :1]), taken[:, :-1]], 1)
        seen = trees.map(steps, self.normaliser(batch.observation))
        tokens = self._tokens(steps(last), ops.expand_dims(steps(extras["return"]), -1), seen, steps(extras["time"]))
        network: Any = self.actor["policy"]
        x, _ = network.unroll(ops.reshape(ops.stack(tokens, 1), (-1, length * TOKENS, tokens[0].shape[-1])), None)
        x = ops.reshape(x, (*shape, x.shape[-1]))[:, :, -1]
        found, counted = self.policy.of(self.actor, batch.observation, x), ops.replica_mean(ops.sum(extras["mask"]))
        if self.squared:
            error = ops.reshape(action_error(steps(found.mode()), steps(batch.action)), shape[:-1])
            metrics = {}
        else:
            error = negative_log_likelihood(found.log_prob(batch.action))
            metrics = {"policy_entropy": ops.sum(extras["mask"] * found.entropy()) / counted}
        weight = ops.expand_dims(batch.weight, -1) * extras["mask"]
        best = ops.max(extras["best_return"])
        return Losses(actor=Loss(ops.sum(weight * error) / counted, best_return=best, **metrics))

    def after_phase(self, read: Callable[[Iterable[str]], Weights], metrics: dict[str, float]) -> Weights:
        """The highest return of a recorded episode, the target where the config has none."""
        return {"target.value": np.asarray(metrics["best_return"], np.float32)} if "best_return" in metrics else {}


def _numbers(n: int) -> Box:
    return Box(-np.inf, np.inf, (n,), np.float32)
