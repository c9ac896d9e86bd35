"""An ensemble of probabilistic models of the environment, in which every action is planned; no policy, no values.

Chua, Calandra, McAllister & Levine 2018, Deep reinforcement learning in a handful of trials using probabilistic
dynamics models (PETS), arXiv:1805.12114, sections 4 and 5.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.algorithms.planning import PlanningConfig, planned, with_each
from etude.base import checks
from etude.base.data import Batch
from etude.base.errors import ConfigError, SpaceError
from etude.base.schedules import Linear
from etude.base.spaces import Box, Spaces, describe, is_image
from etude.base.trees import Tree
from etude.config import SampledConfig
from etude.losses.distributional import binary_cross_entropy
from etude.losses.distributions import Gaussian
from etude.networks import Maker, Mlp, Normaliser, Part, SimBa, Spec
from etude.networks.encoding import at, leaves, to_vector, width

LOG_VARIANCE = (-10.0, 0.5)  # bounds on the predicted log variance before the first gradient step; they are trained
BOUND_COEFFICIENT = 0.01  # weight of the distance between these bounds in the loss


@dataclass(frozen=True)
class PETSConfig(SampledConfig, PlanningConfig):
    """Hyperparameters of PETS, besides those of every off-policy algorithm. Plans are drawn by the cross-entropy
    method; `plan_temperature` above 0 is model predictive path integral control."""

    network: Spec = Mlp((200, 200, 200), "silu")  # of each model
    learning_rate: float | Linear = 1e-3
    batch_size: int = 256
    buffer_size: int = 1_000_000
    normalize_observation: bool = True
    n_models: int = 5  # models in the ensemble; each predicts the states of a plan by itself
    horizon: int = 25  # steps of a plan
    iterations: int = 5
    n_plans: int = 400
    n_elites: int = 40
    plan_temperature: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "n_models", "horizon")
        if self.n_step != 1:
            raise ConfigError(f"{type(self).__name__}: n_step = {self.n_step}; models predict one step. Leave it at 1.")


class PETS(Agent):
    """Models of the change of a state, of the reward and of the end of the episode. A state is the observation,
    normalised, as one vector."""

    actions: ClassVar[tuple[type[Any], ...]] = (Box,)
    bounded_actions = True

    def build(self, make: Maker, spaces: Spaces) -> None:
        config, space = self.config, spaces.observation
        if any(is_image(part) for _, part in leaves(space)):
            raise SpaceError(
                f"{type(self).__name__} predicts observations number by number, and this environment has images: "
                f"{describe(space)}. Take td_mpc2 or dreamer_v3, which predict features."
            )
        if not isinstance(config.network, Mlp | SimBa):
            raise ConfigError(
                f"{type(config).__name__}: network = {config.network!r}; the models of an ensemble each predict from a "
                "state of their own, which only specs of dense layers can: Mlp(...), SimBa(...) or SimBaV2(...)."
            )
        self.size: int = int(np.prod(spaces.action.shape))
        self.normaliser: Normaliser = make.normaliser(space, config.normalize_observation)
        self.vectors: list[Any] = [(path, to_vector(part)) for path, part in leaves(space)]
        width_of_state = sum(width(part) for _, part in leaves(space))
        state = Box(-np.inf, np.inf, (width_of_state,), np.float32)
        predicted = width_of_state + 1  # the change of the state, and the reward
        low, high = (np.full(predicted, bound) for bound in LOG_VARIANCE)
        self.model: dict[str, Part] = {
            "network": make(config.network, (state, spaces.action), 2 * predicted + 1, config.n_models, gain=0.0),
            "least": make.free(low),
            "most": make.free(high),
        }
        self.drawn: Part = make.noise((config.iterations, config.n_plans, config.horizon, self.size))
        self.particles: Part = make.noise((config.horizon, config.n_models, 1, width_of_state))
        self.noise: dict[str, tuple[int, ...]] = {"share": (config.n_models,)}

    def state(self, observation: Tree) -> Any:
        """Observations, normalised, as vectors: [B, Z]."""
        seen = self.normaliser(observation)
        return ops.concatenate([convert(at(seen, path)) for path, convert in self.vectors], -1)

    def predict(self, state: Any, action: Any) -> tuple[Any, Any, Any]:
        """(mean, log variance, logit of the end) of each of E models: [E, B, Z + 1], the same, and [E, B].

        state: [B, Z], or [E, B, Z], a state of its own for each model; action alike. The log variance is held between
        two trained bounds, appendix A.1.
        """
        x = self.model["network"]((state, action))
        size = (x.shape[-1] - 1) // 2
        least, most = self.model["least"](), self.model["most"]()
        log_variance = most - ops.softplus(most - x[..., size : 2 * size])
        return x[..., :size], least + ops.softplus(log_variance - least), x[..., -1]

    def act(self, observation: Tree) -> Gaussian:
        """The first action of the plans for each observation."""
        state = self.state(observation)
        return planned(self.config, state, self.drawn(), functools.partial(self.value_of, state))

    def value_of(self, state: Any, plans: Any) -> Any:
        """The mean over models of the discounted rewards that each expects along a plan: [N, S] for states [N, Z] and
        plans [N, S, H, A]. Each model follows one path of its own, drawn from what it predicts (TS-infinity, section
        5.2), by the same numbers for all plans."""
        config, particles = self.config, self.particles()
        total, discount = 0.0, 1.0
        state = ops.zeros_like(particles[0, :, :, :1]) + with_each(state, plans[0])  # [E, N * S, Z]
        for t in range(config.horizon):
            action = ops.zeros_like(state[:, :, :1]) + ops.reshape(plans[:, :, t], (-1, self.size))
            mean, log_variance, end = self.predict(state, action)
            total = total + discount * mean[..., -1]
            discount = discount * config.gamma * ops.sigmoid(-end)
            state = state + mean[..., :-1] + ops.exp(0.5 * log_variance[..., :-1]) * particles[t]
        return ops.reshape(ops.mean(total, 0), (-1, plans.shape[1]))

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        """Equation 1: the negative log likelihood of each model, without the constant. A model learns from half of a
        batch, drawn for itself, with weight 2 (Owen & Eckles 2012, Bootstrapping data arrays of arbitrary order,
        doi:10.1214/12-AOAS547), in the place of a data set of its own."""
        state, action = self.state(batch.observation), ops.clip(batch.action, -1.0, 1.0)
        change = self.state(batch.next_observation) - state
        target = ops.concatenate([change, ops.expand_dims(batch.reward, -1)], -1)
        drawn = ops.swapaxes(noise["share"], 0, 1)  # [E, B]
        mean, log_variance, end = self.predict(state, action)  # of a model that is known without E
        error = ops.square(mean - target) + ops.expand_dims(ops.zeros_like(drawn), -1)
        likelihood = ops.sum(ops.exp(-log_variance) * error + log_variance, -1)  # [E, B]
        ending = binary_cross_entropy(end, ops.cast(batch.discount <= 0, "float32")) + ops.zeros_like(drawn)
        weight = 2.0 * batch.weight * ops.cast(drawn > 0, "float32")
        bounds = ops.sum(self.model["most"]()) - ops.sum(self.model["least"]())
        loss = ops.mean(weight * (likelihood + ending)) + BOUND_COEFFICIENT * bounds
        return Losses(
            model=Loss(
                loss,
                td_error=ops.mean(ops.sqrt(ops.sum(error, -1)), 0),
                negative_log_likelihood=ops.mean(likelihood, 0),
                termination=ops.mean(ending, 0),
                prediction_error=ops.mean(error, (0, 2)),
            )
        )
