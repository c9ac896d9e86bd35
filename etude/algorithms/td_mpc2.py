"""A model of the task in a latent space, learned together with values, in which every action is planned.

Hansen, Su & Wang 2024, TD-MPC2: Scalable, robust world models for continuous control, arXiv:2310.16828, section 3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.algorithms.planning import PlanningConfig, planned, with_each
from etude.base import checks, trees
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.spaces import Box, Spaces
from etude.base.trees import Tree
from etude.config import SequenceConfig
from etude.losses.distributional import binary_cross_entropy, expected_symlog, symlog_cross_entropy
from etude.losses.distributions import Gaussian, TanhGaussian
from etude.losses.soft import soft_actor, subset_minimum
from etude.losses.value import sequence_priority
from etude.networks import FreeParameters, Maker, Mlp, Normaliser, Part, Spec, target
from etude.protocols import Weights

LOG_STD = (-10.0, 2.0)  # bounds on the policy's log standard deviation
SUBSET = 2  # critics whose smaller value is bootstrapped from, drawn anew for each batch
LEAST_RANGE = 1.0  # values are not scaled up: below this range the policy's loss has them as they are


@dataclass(frozen=True)
class TDMPC2Config(SequenceConfig, PlanningConfig):
    """Hyperparameters of TD-MPC2, besides those of every algorithm that learns from sequences. `sequence_length` is the
    horizon, of what the model is trained on and of plans. Actions are in [-1, 1]."""

    network: Spec = Mlp((256, 256), "silu", layer_norm=True)  # of dynamics, rewards, terminations, critics and policy
    encoder: Spec = Mlp((256,), "silu", layer_norm=True)  # from observations to latent states
    latent_size: int = 128  # numbers of a latent state
    simplex_size: int = 8  # numbers in each group of a latent state that a softmax normalises; divides latent_size
    max_gradient_norm: float | None = 20.0
    batch_size: int = 256
    buffer_size: int = 1_000_000
    sequence_length: int = 3
    burn_in: int = 0
    stored_state: bool = False
    tau: float = 0.01  # Polyak rate of the target critics, applied after every gradient step
    decay: float = 0.5  # rho: weight of a step of a sequence, relative to the step before
    consistency_coefficient: float = 20.0  # weight of the error of predicted latent states
    reward_coefficient: float = 0.1  # weight of the loss of predicted rewards
    critic_coefficient: float = 0.1  # weight of the loss of the critics
    termination_coefficient: float = 1.0  # weight of the loss of predicted terminations
    temperature: float = 1e-4  # weight of the policy's log probability against its scaled value
    scale_rate: float = 0.01  # rate at which the scale of values follows their range, from the 5th to 95th percentile
    n_critics: int = 5  # critics
    bins: int = 101  # values that rewards and returns are distributions over, evenly spaced after `symlog`
    largest: float = 10.0  # symlog of the largest reward or return that can be predicted
    n_policy_plans: int = 24  # of the plans in each iteration, those that the policy makes

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau", "decay", "scale_rate")
        checks.counts(self, "latent_size", "simplex_size", "bins", "n_critics")
        checks.positive(self, "largest")
        checks.not_negative(
            self, "consistency_coefficient", "reward_coefficient", "critic_coefficient", "termination_coefficient",
            "temperature", "n_policy_plans",
        )  # fmt: skip
        name = type(self).__name__
        if self.latent_size % self.simplex_size:
            raise ConfigError(
                f"{name}: latent_size = {self.latent_size}, simplex_size = {self.simplex_size}; expected a multiple."
            )
        if not self.n_policy_plans < self.n_plans:
            raise ConfigError(
                f"{name}: n_policy_plans = {self.n_policy_plans} of n_plans = {self.n_plans}; expected fewer than all "
                "by the policy."
            )
        if self.n_critics < SUBSET:
            raise ConfigError(f"{name}: n_critics = {self.n_critics}; expected {SUBSET} or more.")
        if self.burn_in or self.stored_state or self.n_step != 1 or self.hindsight != "none":
            raise ConfigError(
                f"{name}: burn_in = {self.burn_in}, stored_state = {self.stored_state}, n_step = {self.n_step}, "
                f"hindsight = {self.hindsight!r}; a model is learned from the first step of a sequence on, "
                "and of what happened. Leave them at 0, False, 1 and 'none'."
            )


class TDMPC2(Agent):
    """A latent model, critics and a policy; `act` returns what plans in the model are refitted to."""

    learns_from = "sequences"
    actions: ClassVar[tuple[type[Any], ...]] = (Box,)
    bounded_actions = True

    def build(self, make: Maker, spaces: Spaces) -> None:
        config = self.config
        self.size: int = int(np.prod(spaces.action.shape))
        latent = Box(0.0, 1.0, (config.latent_size,))
        chosen = (latent, spaces.action)
        self.normaliser: Normaliser = make.normaliser(spaces.observation, config.normalize_observation)
        self.model: dict[str, Part] = {
            "encoder": make(config.encoder, spaces.observation, outputs=config.latent_size),
            "dynamics": make(config.network, chosen, outputs=config.latent_size),
            "reward": make(config.network, chosen, outputs=config.bins, gain=0.0),
            "termination": make(config.network, latent, outputs=1),
            "critic": make(config.network, chosen, outputs=config.bins, members=config.n_critics, gain=0.0),
        }
        self.critic_target: Part = target(self.model["critic"], tau="tau")
        self.policy: Part = make(config.network, latent, outputs=2 * self.size)
        self.scale: FreeParameters = make.free(LEAST_RANGE, trained=False)  # of values, in the policy's loss
        plan = (config.n_plans - config.n_policy_plans, config.sequence_length, self.size)
        self.drawn: FreeParameters = make.noise((config.iterations, *plan))
        self.drawn_by_policy: FreeParameters = make.noise((config.n_policy_plans, config.sequence_length, self.size))
        self.noise: dict[str, tuple[int, ...]] = {
            "action": (config.sequence_length, self.size),
            "next_action": (config.sequence_length, self.size),
        }
        self.batch_noise: dict[str, tuple[int, ...]] = {"subset": (config.n_critics,)}

    # The model. z: latent states [B, Z]; action: [B, A].

    def encode(self, observation: Tree) -> Any:
        """The latent states of observations [B, ...]."""
        return self._simplices(self.model["encoder"](self.normaliser(observation)))

    def following(self, z: Any, action: Any) -> Any:
        """The latent states after these."""
        return self._simplices(self.model["dynamics"]((z, action)))

    def _simplices(self, x: Any) -> Any:
        """Groups of `simplex_size` numbers as probabilities: SimNorm, equation 5."""
        size = self.config.simplex_size
        return ops.reshape(ops.softmax(ops.reshape(x, (-1, x.shape[-1] // size, size))), (-1, x.shape[-1]))

    def policy_at(self, z: Any) -> TanhGaussian:
        """The policy, which values are of and some plans are made by."""
        x, (low, high) = self.policy(z), LOG_STD
        return TanhGaussian(x[:, : self.size], low + 0.5 * (high - low) * (ops.tanh(x[:, self.size :]) + 1.0))

    def values(self, critic: Part, z: Any, action: Any) -> Any:
        """The value of each action by each critic: [E, B]."""
        return expected_symlog(critic((z, action)), self.config.largest)

    # Planning: N observations, S plans of H steps for each.

    def act(self, observation: Tree) -> Gaussian:
        """The first action of the plans for each observation. Section 3.2."""
        z = self.encode(observation)
        by_policy = [self._plans_of_policy(z)] if self.config.n_policy_plans else []
        return planned(self.config, z, self.drawn(), functools.partial(self._value_of, z), by_policy)

    def _plans_of_policy(self, z: Any) -> Any:
        """[N, n_policy_plans, H, A]."""
        drawn, actions = self.drawn_by_policy(), []  # [P, H, A]
        state = with_each(z, drawn)
        for t in range(self.config.sequence_length):
            noise = ops.zeros_like(ops.expand_dims(z[:, :1], 1)) + drawn[:, t]
            actions.append(self.policy_at(state).sample(ops.reshape(noise, (-1, self.size))))
            state = self.following(state, actions[-1])
        return ops.reshape(ops.stack(actions, 1), (-1, *drawn.shape))

    def _value_of(self, z: Any, plans: Any) -> Any:
        """The rewards that the model expects of each plan, and the value of the policy after it: [N, S]."""
        config, total, discount = self.config, 0.0, 1.0
        states = [with_each(z, plans[0])]
        for t in range(config.sequence_length):
            states.append(self.following(states[-1], ops.reshape(plans[:, :, t], (-1, self.size))))
        # Only the states depend on one another: whatever reads them does so once for all steps.
        before, after = (_rows(ops.stack(part, 1)) for part in (states[:-1], states[1:]))
        rewards = self.model["reward"]((before, ops.reshape(plans, (-1, self.size))))
        rewards = ops.reshape(expected_symlog(rewards, config.largest), (-1, config.sequence_length))
        going = ops.reshape(ops.sigmoid(-self.model["termination"](after)[:, 0]), (-1, config.sequence_length))
        for t in range(config.sequence_length):
            total = total + discount * rewards[:, t]
            discount = discount * config.gamma * going[:, t]
        last = self.values(self.model["critic"], states[-1], self.policy_at(states[-1]).mode())
        return ops.reshape(total + discount * ops.mean(last, 0), (-1, plans.shape[1]))

    # Learning: B sequences of L steps. Equations 3 and 4. As in plans, only latent states depend on one another.

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        config, steps = self.config, range(self.config.sequence_length)
        action, discount = ops.clip(batch.action, -1.0, 1.0), _rows(batch.discount)  # as the environment took it
        weight = [config.decay**t * batch.weight * batch.extras["mask"][:, t] for t in steps]
        weight = _rows(ops.stack(weight, 1))
        found = ops.stop_gradient(self.encode(trees.map(_rows, batch.next_observation)))  # [B * L, Z]
        next_action = self.policy_at(found).sample(_rows(noise["next_action"]))
        next_q = subset_minimum(self.values(self.critic_target, found, next_action), noise["subset"], SUBSET)
        target_q = ops.stop_gradient(_rows(batch.reward) + discount * next_q)
        states = [self.encode(trees.map(lambda x: x[:, 0], batch.observation))]
        for t in steps:
            states.append(self.following(states[-1], action[:, t]))
        before, after = (_rows(ops.stack(part, 1)) for part in (states[:-1], states[1:]))
        critic, reward = (self.model[name]((before, _rows(action))) for name in ("critic", "reward"))
        end = self.model["termination"](after)[:, 0]
        ended = ops.cast(discount <= 0, "float32")
        each = {
            "consistency": ops.mean(ops.square(after - found), -1),
            "reward": symlog_cross_entropy(_rows(batch.reward), reward, config.largest),
            "termination": binary_cross_entropy(end, ended),
            "critic": ops.mean(symlog_cross_entropy(target_q, critic, config.largest), 0),
        }
        total = {name: ops.mean(weight * loss) for name, loss in each.items()}
        losses = [getattr(config, f"{name}_coefficient") * loss for name, loss in total.items()]
        error = target_q - ops.mean(expected_symlog(critic, config.largest), 0)
        error = sequence_priority(ops.reshape(error, (-1, config.sequence_length)), batch.extras["mask"])
        return Losses(
            model=Loss(sum(losses), td_error=error, **total),
            policy=self.policy_loss(ops.stop_gradient(before), weight, _rows(noise["action"])),
        )

    def policy_loss(self, latent: Any, weight: Any, noise: Any) -> Loss:
        """Equation 4: the policy maximises the mean value of random critics, and its entropy, in predicted states.

        latent: [B * L, Z], without a gradient; weight: [B * L].
        """
        action, log_prob = self.policy_at(latent).sample_with_log_prob(noise)
        q = ops.mean(self.values(self.model["critic"], latent, action), 0)
        scaled = q / ops.maximum(self.scale(), LEAST_RANGE)
        loss = ops.mean(weight * soft_actor(scaled, log_prob, self.config.temperature))
        first, entropy = (ops.reshape(x, (-1, self.config.sequence_length))[:, 0] for x in (q, -log_prob))
        low, high = (int(share * (first.shape[0] - 1)) for share in (0.05, 0.95))
        ordered = ops.sort(first)
        return Loss(loss, value_range=ordered[high] - ordered[low], q_value=first, policy_entropy=entropy)

    def after_phase(self, read: Callable[[Iterable[str]], Weights], metrics: dict[str, float]) -> Weights:
        """The scale of values, moved towards their range in this phase."""
        if "value_range" not in metrics:
            return {}
        before = read(["scale.value"])["scale.value"]
        moved = before + self.config.scale_rate * (metrics["value_range"] - before)
        return {"scale.value": np.asarray(moved, np.float32)}


def _rows(x: Any) -> Any:
    """Steps of sequences [B, L, ...] one after the other: [B * L, ...]."""
    return ops.reshape(x, (-1, *x.shape[2:]))
