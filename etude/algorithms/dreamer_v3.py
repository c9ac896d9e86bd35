"""A recurrent model of the task with discrete latent states, and an actor and a critic that learn in what it imagines.

Hafner, Pasukonis, Ba & Lillicrap 2025, Mastering diverse control tasks through world models (DreamerV3), Nature 640,
doi:10.1038/s41586-025-08744-2, arXiv:2301.04104.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.base import checks, trees
from etude.base.data import RECURRENT_STATE, Batch
from etude.base.errors import ConfigError
from etude.base.spaces import ACTION_MASK, Box, Discrete, Spaces, is_image
from etude.base.trees import Tree
from etude.config import SequenceConfig
from etude.losses.distributional import binary_cross_entropy, expected_symlog, symlog_cross_entropy
from etude.losses.distributions import Categorical, Gaussian
from etude.losses.returns import lambda_returns
from etude.losses.value import sequence_priority
from etude.networks import FreeParameters, Maker, Mlp, Normaliser, Part, Spec, target
from etude.networks.encoding import at, leaves, replaced, to_vector, width
from etude.protocols import Weights

MIXED = 0.01  # share of the uniform distribution in those of latent states and of Discrete actions
STD = (0.1, 1.0)  # bounds on the policy's standard deviations, for Box actions
LEAST_RANGE = 1.0  # returns are not scaled up: below this range the actor's loss has them as they are
PERIODS = 16.0  # of what standard normal noise is folded into, which makes it uniform
BELOW_ONE = 1.0 - 1e-6  # the largest uniform number, as none may draw a choice after the last


@dataclass(frozen=True)
class DreamerV3Config(SequenceConfig):
    """Hyperparameters of DreamerV3, besides those of every algorithm that learns from sequences. The training ratio of
    the paper is `gradient_steps * batch_size * sequence_length / train_every`. Box actions are in [-1, 1]."""

    network: Spec = Mlp((256, 256), "silu", layer_norm=True)  # of decoder, rewards, terminations, actor and critic
    encoder: Spec = Mlp((256,), "silu", layer_norm=True)  # from observations to what the latent state is inferred from
    dynamics: Spec = Mlp((256,), "silu", layer_norm=True)  # before the gates of the cell, and of both latent states
    units: int = 256  # of the recurrent cell
    latents: int = 16  # categorical variables of a latent state
    classes: int = 16  # values of each
    max_gradient_norm: float | None = 100.0
    gamma: float = 0.997
    batch_size: int = 16
    sequence_length: int = 64
    burn_in: int = 0
    train_every: int = 4
    horizon: int = 15  # steps that are imagined from every latent state of a batch
    gae_lambda: float = 0.95  # lambda of the returns of what is imagined
    tau: float = 0.02  # Polyak rate of the copy of the critic that it is regularised towards
    replay_coefficient: float = 0.3  # weight of the critic's loss on returns along the replayed steps
    entropy_coefficient: float = 3e-4  # weight of the actor's entropy against its scaled advantages
    scale_rate: float = 0.01  # rate at which the scale of returns follows their range, 5th to 95th percentile
    free_nats: float = 1.0  # KL divergence below which it is not trained
    dynamics_coefficient: float = 1.0  # weight of the divergence that trains what is predicted
    representation_coefficient: float = 0.1  # weight of the divergence that trains what is inferred
    bins: int = 101  # values that rewards and returns are distributions over, evenly spaced after `symlog`
    largest: float = 10.0  # symlog of the largest reward or return that can be predicted

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fractions(self, "tau", "scale_rate", "gae_lambda")
        checks.counts(self, "units", "latents", "classes", "horizon", "bins")
        checks.positive(self, "largest")
        checks.not_negative(
            self,
            "replay_coefficient",
            "entropy_coefficient",
            "free_nats",
            "dynamics_coefficient",
            "representation_coefficient",
        )
        if self.classes < 2 or self.bins < 2:
            raise ConfigError(
                f"{type(self).__name__}: classes = {self.classes}, bins = {self.bins}; expected 2 or more of each."
            )
        if self.n_step != 1 or self.hindsight != "none":
            raise ConfigError(
                f"{type(self).__name__}: n_step = {self.n_step}, hindsight = {self.hindsight!r}; a model is learned of "
                "single steps as they happened. Leave them at 1 and 'none'."
            )


class Imagined(NamedTuple):
    """H steps from each of N latent states. No gradient flows into any of it.

    seen: [H + 1, N, ...], what heads see of latent states. action: [H, N, A]. reward, goes_on: [H, N], the reward of
    each step and the probability that no episode ended in it.
    """

    seen: Any
    action: Any
    reward: Any
    goes_on: Any


class DreamerV3(Agent):
    """A recurrent state-space model, an actor and a critic. The recurrent state of an environment is that of the cell,
    the latent state, and the last action."""

    learns_from = "sequences"
    actions: ClassVar[tuple[type[Any], ...]] = (Box, Discrete)
    bounded_actions = True

    def build(self, make: Maker, spaces: Spaces) -> None:
        config, self.spaces = self.config, spaces
        self.discrete: bool = isinstance(spaces.action, Discrete)
        self.action_size: int = width(spaces.action)
        latent = config.latents * config.classes
        self.sizes: tuple[int, ...] = (config.units, latent, self.action_size)
        self.state_size: int = sum(self.sizes)
        cell, chosen, seen, embedded = map(
            _numbers, (config.units, self.action_size, config.units + latent, config.units)
        )
        observed = sum(width(leaf) for _, leaf in leaves(spaces.observation))
        self.normaliser: Normaliser = make.normaliser(spaces.observation, config.normalize_observation)
        self.model: dict[str, Part] = {
            "encoder": make(config.encoder, spaces.observation, outputs=config.units),
            "gates": make(config.dynamics, (cell, _numbers(latent), chosen), outputs=3 * config.units),
            "posterior": make(config.dynamics, (cell, embedded), outputs=latent),
            "prior": make(config.dynamics, cell, outputs=latent),
            "decoder": make(config.network, seen, outputs=observed),
            "reward": make(config.network, seen, outputs=config.bins, gain=0.0),
            "termination": make(config.network, seen, outputs=1),
        }
        if spaces.masked:
            self.model["mask"] = make(config.network, seen, outputs=self.action_size)
        self.actor: Part = make(config.network, seen, self.action_size * (1 if self.discrete else 2), gain=0.01)
        self.critic: Part = make(config.network, seen, outputs=config.bins, gain=0.0)
        self.critic_target: Part = target(self.critic, tau="tau")
        self.scale: FreeParameters = make.free(LEAST_RANGE, trained=False)  # of returns, in the actor's loss
        drawn, steps = 1 if self.discrete else self.action_size, config.sequence_length + 1
        self.noise: dict[str, tuple[int, ...]] = {
            "latent": (steps, config.latents),
            "imagined": (steps, config.horizon, config.latents),
            "action": (steps, config.horizon + 1, drawn),
        }

    # The model. x: what heads see of N latent states, [N, units + latents * classes].

    def act(self, observation: Tree, state: Any) -> tuple[Any, Any]:
        """The policy in the likeliest latent state."""
        cell, latent, action = ops.split_last(state, self.sizes)
        cell = self.recur(cell, latent, action)
        embedded = self.model["encoder"](self._seen(observation))
        latent = self._flat(ops.one_hot(ops.argmax(self.posterior(cell, embedded)), self.config.classes))
        policy = self.policy_at(ops.concatenate([cell, latent], -1))
        if self.spaces.masked:
            policy = Categorical(policy.logits, observation[ACTION_MASK] > 0)
        return policy, ops.concatenate([cell, latent, ops.zeros_like(action)], -1)

    def acted(self, state: Any, action: Any) -> Any:
        """The state with the action that was chosen."""
        return ops.concatenate([state[:, : -self.action_size], self._encoded(action)], -1)

    def _encoded(self, action: Any) -> Any:
        """Actions [N, ...] as numbers [N, A]."""
        return ops.cast(to_vector(self.spaces.action)(action), "float32")

    def _seen(self, observation: Tree) -> Tree:
        """Observations as the encoder takes them: numbers after `symlog`."""
        observation = self.normaliser(observation)
        for path, leaf in leaves(self.spaces.observation):
            if isinstance(leaf, Box) and not is_image(leaf):
                x = ops.cast(at(observation, path), "float32")
                observation = replaced(observation, path, ops.sign(x) * ops.log1p(ops.abs(x)))
        return observation

    def recur(self, cell: Any, latent: Any, action: Any) -> Any:
        """The state of the cell [N, units] after a latent state and the action in it: a gated recurrent unit."""
        action = action if self.discrete else ops.clip(action, -1.0, 1.0)
        gates = self.model["gates"]((cell, latent, action))
        reset, candidate, update = ops.split_last(gates, (self.config.units,) * 3)
        update = ops.sigmoid(update - 1.0)
        return update * ops.tanh(ops.sigmoid(reset) * candidate) + (1.0 - update) * cell

    def posterior(self, cell: Any, embedded: Any) -> Any:
        """The log probabilities of latent states that an observation leaves: [N, latents, classes]."""
        return self._log_probabilities(self.model["posterior"]((cell, embedded)))

    def prior(self, cell: Any) -> Any:
        """Those that are predicted without one."""
        return self._log_probabilities(self.model["prior"](cell))

    def _log_probabilities(self, logits: Any) -> Any:
        return _mixed(ops.reshape(logits, (-1, self.config.latents, self.config.classes)))

    def drawn(self, log_probabilities: Any, noise: Any) -> Any:
        """Latent states [N, latents * classes] for noise [N, latents], standard normal. Gradients go straight through
        to the probabilities (Bengio et al. 2013, arXiv:1308.3432)."""
        index = Categorical(log_probabilities).sample(ops.expand_dims(_uniform(noise), -1))
        probabilities = ops.exp(log_probabilities)
        chosen = ops.one_hot(index, self.config.classes)
        return self._flat(chosen + (probabilities - ops.stop_gradient(probabilities)))

    def _flat(self, latent: Any) -> Any:
        return ops.reshape(latent, (-1, self.sizes[1]))

    def policy_at(self, x: Any) -> Any:
        """The actor's distribution over actions: a `Categorical`, of those that the model expects to be allowed where
        observations have a mask, or a `Gaussian`."""
        found = self.actor(x)
        if self.spaces.masked:
            allowed = self.model["mask"](x)
            return Categorical(_mixed(found), allowed >= ops.minimum(ops.max(allowed, -1, keepdims=True), 0.0))
        if self.discrete:
            return Categorical(_mixed(found))
        mean, spread = ops.split_last(found, (self.action_size,) * 2)
        return Gaussian(ops.tanh(mean), ops.log(STD[0] + (STD[1] - STD[0]) * ops.sigmoid(spread + 2.0)))

    def imagine(self, x: Any, noise: dict[str, Any]) -> Imagined:
        """What the actor does in the model. noise: `action` [H + 1, N, k], `imagined` [H, N, latents]."""

        def chosen(x: Any, noise: Any) -> Any:
            return self._encoded(self.policy_at(x).sample(_uniform(noise) if self.discrete else noise))

        def step(state: Any, latent_noise: Any, action_noise: Any) -> Any:
            cell = self.recur(*ops.split_last(state, self.sizes))
            x = ops.concatenate([cell, self.drawn(self.prior(cell), latent_noise)], -1)
            return ops.concatenate([x, chosen(x, action_noise)], -1)

        start = ops.concatenate([x, chosen(x, noise["action"][0])], -1)
        states = ops.scan(step, start, [noise["imagined"], noise["action"][1:]])
        states = ops.stop_gradient(ops.concatenate([ops.expand_dims(start, 0), states], 0))
        seen, shape = states[..., : -self.action_size], (self.config.horizon, -1)
        following = ops.reshape(seen[1:], (-1, seen.shape[-1]))
        reward = expected_symlog(self.model["reward"](following), self.config.largest)
        goes_on = ops.sigmoid(-self.model["termination"](following)[:, 0])
        reward, goes_on = (ops.stop_gradient(ops.reshape(found, shape)) for found in (reward, goes_on))
        return Imagined(seen, states[:-1, :, -self.action_size :], reward, goes_on)

    # Learning: B sequences of L steps, between L + 1 observations; time first, [L + 1, B].

    def loss(self, batch: Batch, noise: dict[str, Any]) -> Losses:
        mask = ops.swapaxes(batch.extras["mask"], 0, 1)
        counted = ops.concatenate([mask[:1], mask], 0)
        x, model = self._model_loss(batch, noise["latent"], counted)
        goes_on = ops.swapaxes(batch.discount > 0, 0, 1)
        goes_on = ops.cast(ops.concatenate([ops.ones_like(mask[:1]) > 0, goes_on], 0), "float32")
        weight = ops.reshape(counted * goes_on * batch.weight, (-1,))
        by_step = {
            name: ops.swapaxes(ops.reshape(noise[name], (-1, *noise[name].shape[2:])), 0, 1)
            for name in ("imagined", "action")
        }
        imagined = self.imagine(ops.stop_gradient(x), by_step)
        return Losses(model=model, **self._losses_of(imagined, weight, batch, mask))

    def _model_loss(self, batch: Batch, noise: Any, counted: Any) -> tuple[Any, Loss]:
        """What heads see of all latent states [(L + 1) * B, ...], and the model's loss. counted: [L + 1, B]."""
        config = self.config
        observation = trees.map(
            lambda first, following: ops.swapaxes(ops.concatenate([first[:, :1], following], 1), 0, 1),
            batch.observation,
            batch.next_observation,
        )
        seen = self._seen(trees.map(lambda x: ops.reshape(x, (-1, *x.shape[2:])), observation))
        x, posterior = self._inferred(batch, self.model["encoder"](seen), noise)
        prior = self.prior(x[:, : config.units])
        goal = [to_vector(leaf)(at(seen, path)) for path, leaf in leaves(self.spaces.observation)]
        error = self.model["decoder"](x) - ops.stop_gradient(ops.concatenate(goal, -1))
        still = ops.stop_gradient
        loss = {
            "reconstruction": ops.sum(ops.square(error), -1),
            "dynamics": ops.maximum(_divergence(still(posterior), prior), config.free_nats),
            "representation": ops.maximum(_divergence(posterior, still(prior)), config.free_nats),
        }
        if self.spaces.masked:
            mask, allowed = self.model["mask"](x), ops.cast(seen[ACTION_MASK] > 0, "float32")
            loss["mask"] = ops.sum(binary_cross_entropy(mask, allowed), -1)
        after = x[batch.reward.shape[0] :]
        end = self.model["termination"](after)[:, 0]
        reward, going = (ops.reshape(ops.swapaxes(part, 0, 1), (-1,)) for part in (batch.reward, batch.discount > 0))
        ended = ops.where(going, ops.zeros_like(end), ops.ones_like(end))
        outcome = {
            "reward": symlog_cross_entropy(reward, self.model["reward"](after), config.largest),
            "termination": binary_cross_entropy(end, ended),
        }
        steps = {name: ops.reshape(part, (config.sequence_length + 1, -1)) for name, part in loss.items()}
        for name, part in outcome.items():
            part = ops.reshape(part, (config.sequence_length, -1))
            steps[name] = ops.concatenate([ops.zeros_like(part[:1]), part], 0)
        count, weight = ops.replica_mean(ops.sum(counted)), counted * batch.weight
        found = {name: ops.sum(weight * part) / count for name, part in steps.items()}
        by_name = {"dynamics": config.dynamics_coefficient, "representation": config.representation_coefficient}
        each = sum(by_name.get(name, 1.0) * part for name, part in steps.items())
        priority = sequence_priority(ops.swapaxes(each, 0, 1), ops.swapaxes(counted, 0, 1))
        return x, Loss(ops.sum(weight * each) / count, td_error=priority, **found)

    def _inferred(self, batch: Batch, embedded: Any, noise: Any) -> tuple[Any, Any]:
        """What heads see of the latent states of observations, [(L + 1) * B, ...], and the log probabilities of these.

        Sequences are of one episode each, so that no state is reset within one: only at the first step of an episode is
        there no memory, which the stored state is zeros for.
        """
        config, steps = self.config, self.config.sequence_length + 1
        embedded = ops.reshape(embedded, (steps, -1, config.units))
        start = batch.extras.get(RECURRENT_STATE)
        if start is None:
            start = ops.zeros_like(embedded[0][:, :1]) + ops.linspace(0.0, 0.0, self.state_size, like=embedded)
        cell, latent, last = ops.split_last(start, self.sizes)
        action = self._encoded(ops.reshape(batch.action, (-1, *batch.action.shape[2:])))
        action = ops.reshape(action, (-1, steps - 1, self.action_size))
        action = ops.concatenate([ops.expand_dims(last, 0), ops.swapaxes(action, 0, 1)], 0)

        def step(state: Any, embedded: Any, action: Any, noise: Any) -> Any:
            cell, latent, _ = ops.split_last(state, (*self.sizes[:2], self.sizes[1]))
            cell = self.recur(cell, latent, action)
            found = self.posterior(cell, embedded)
            return ops.concatenate([cell, self.drawn(found, noise), self._flat(found)], -1)

        begun = ops.concatenate([cell, latent, ops.zeros_like(latent)], -1)
        states = ops.scan(step, begun, [embedded, action, ops.swapaxes(noise, 0, 1)])
        states = ops.reshape(states, (-1, states.shape[-1]))
        x, found = ops.split_last(states, (config.units + self.sizes[1], self.sizes[1]))
        return x, ops.reshape(found, (-1, config.latents, config.classes))

    def _losses_of(self, imagined: Imagined, weight: Any, batch: Batch, mask: Any) -> dict[str, Loss]:
        """The losses of actor and critic. weight: [N] of the latent states that imagination starts from. mask: [L, B].

        Returns along the replayed steps continue with those that are imagined from the observations after them.
        """
        config, largest = self.config, self.config.largest
        discount = config.gamma * imagined.goes_on
        found = self.critic(_rows(imagined.seen))
        value = ops.stop_gradient(ops.reshape(expected_symlog(found, largest), (config.horizon + 1, -1)))
        returns = lambda_returns(imagined.reward, discount, value[1:], config.gae_lambda)
        going, reached = [weight], weight
        for t in range(config.horizon - 1):
            reached = reached * discount[t]
            going.append(reached)
        weights, x = ops.concatenate(going, 0), _rows(imagined.seen[:-1])
        weights = ops.stop_gradient(weights / (ops.replica_mean(ops.sum(weight)) * config.horizon + 1e-8))
        advantage = ops.reshape(returns - value[:-1], (-1,)) / ops.maximum(self.scale(), LEAST_RANGE)
        policy, action = self.policy_at(x), _rows(imagined.action)
        log_prob = policy.log_prob(ops.argmax(action) if self.discrete else action)
        gain = ops.stop_gradient(advantage) * log_prob + config.entropy_coefficient * policy.entropy()
        flat, slow = ops.reshape(returns, (-1,)), expected_symlog(self.critic_target(x), largest)
        ordered = ops.sort(flat)
        low, high = (int(share * (ordered.shape[0] - 1)) for share in (0.05, 0.95))
        reward, step_discount = (ops.swapaxes(part, 0, 1) for part in (batch.reward, batch.discount))
        followed = ops.concatenate([mask[1:], ops.zeros_like(mask[:1])], 0)
        ahead = ops.reshape(returns[0], (config.sequence_length + 1, -1))[1:]
        replayed = ops.reshape(lambda_returns(reward, step_discount, ahead, config.gae_lambda * followed), (-1,))
        replay_weight = ops.reshape(mask * batch.weight, (-1,))
        replay_weight = replay_weight / (ops.replica_mean(ops.sum(replay_weight)) + 1e-8)
        n = replayed.shape[0]
        goal, slow = ops.concatenate([flat, replayed], 0), ops.concatenate([slow, slow[:n]], 0)
        found = ops.concatenate([found[: flat.shape[0]], found[:n]], 0)
        error = symlog_cross_entropy(goal, found, largest) + symlog_cross_entropy(slow, found, largest)
        critic_weights = ops.concatenate([weights, config.replay_coefficient * replay_weight], 0)
        return {
            "actor": Loss(
                -ops.sum(weights * gain),
                policy_entropy=policy.entropy(),
                return_range=ordered[high] - ordered[low],
                imagined_return=ops.mean(returns[0]),
            ),
            "critic": Loss(ops.sum(critic_weights * error)),
        }

    def after_phase(self, read: Callable[[Iterable[str]], Weights], metrics: dict[str, float]) -> Weights:
        """The scale of returns, moved towards their range in this phase."""
        if "return_range" not in metrics:
            return {}
        before = read(["scale.value"])["scale.value"]
        rate = 1.0 - (1.0 - self.config.scale_rate) ** self.config.gradient_steps
        return {"scale.value": np.asarray(before + rate * (metrics["return_range"] - before), np.float32)}


def _numbers(n: int) -> Box:
    return Box(-np.inf, np.inf, (n,), np.float32)


def _rows(x: Any) -> Any:
    """[T, N, K] -> [T * N, K]."""
    return ops.reshape(x, (-1, x.shape[-1]))


def _mixed(logits: Any) -> Any:
    """Log probabilities [..., n] of softmax with a share of the uniform distribution."""
    return ops.log((1.0 - MIXED) * ops.softmax(logits) + MIXED / logits.shape[-1])


def _uniform(noise: Any) -> Any:
    """Uniform numbers from standard normal ones: the fractional part of many periods of them."""
    phase = PERIODS * noise
    return ops.clip(phase - ops.rint(phase) + 0.5, 0.0, BELOW_ONE)


def _divergence(found: Any, other: Any) -> Any:
    """KL(found || other) [N] in nats, summed over the variables of latent states [N, latents, classes], of log
    probabilities."""
    return ops.sum(ops.exp(found) * (found - other), (-2, -1))
