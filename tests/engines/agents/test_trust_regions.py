"""Steps of the natural gradient within a trust region, on one engine: beside a slow program in float64 that inverts the
whole Fisher matrix."""

import dataclasses

import numpy as np
import pytest
from batches import random_batches
from cases import BOTH, BOX2, VECTOR, Case, variants_but

import etude
from etude import Loss, Losses, Mlp, engines
from etude.algorithms import PPO, TRPO, PPOConfig, TRPOConfig
from etude.base.errors import ConfigError
from etude.base.spaces import Discrete, Spaces

LINEAR = TRPOConfig(network=Mlp(()), cg_iterations=40, cg_damping=0.05, epochs=1, normalize_observation=False)
FREE = dataclasses.replace(LINEAR, cg_damping=0.0)
CHOICES, NUMBERS = Spaces(VECTOR, Discrete(3)), Spaces(VECTOR, BOX2)
# (case, max_kl, the share of the longest step that is taken)
STEPS = {
    "the whole step": (Case("choices", "trpo", CHOICES, LINEAR), 0.01, 1.0),
    "a shorter step": (Case("numbers", "trpo", NUMBERS, FREE), 10.0, 0.8),
    "no step": (Case("numbers", "trpo", NUMBERS, dataclasses.replace(FREE, line_search_steps=1)), 10.0, 0.0),
}


class Slow:
    """A linear policy over choices or numbers: its log probabilities and what they slope by, one example at a time."""

    def __init__(self, case, batch, weights):
        self.x = np.concatenate([np.float64(batch.observation[0]), np.ones((len(batch.weight[0]), 1))], 1)
        self.action, self.weight = batch.sampled_action[0], np.float64(batch.weight[0])
        self.chosen, self.n = isinstance(case.spaces.action, Discrete), 3 if case.name == "choices" else 2
        advantage = np.float64(batch.extras["advantage"][0])
        mean = np.average(advantage, weights=self.weight)
        deviation = np.average((advantage - mean) ** 2, weights=self.weight) ** 0.5
        self.advantage, self.before = (advantage - mean) / (deviation + 1e-8), batch.extras["log_prob"][0]
        matrix = np.concatenate([weights["actor.policy.dense0.weight"], weights["actor.policy.dense0.bias"][None]])
        std = [] if self.chosen else weights["actor.log_std.value"].ravel()
        self.start = np.concatenate([matrix.ravel(), std]).astype(np.float64)

    def parts(self, vector):
        size = self.x.shape[1] * self.n
        return self.x @ vector[:size].reshape(-1, self.n), vector[size:]

    def log_probs(self, vector):
        out, log_std = self.parts(vector)
        if self.chosen:
            return out - np.log(np.exp(out).sum(1, keepdims=True))
        z = (self.action - out) * np.exp(-log_std)
        return (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(1)

    def log_prob(self, vector):
        found = self.log_probs(vector)
        return found[np.arange(len(found)), self.action] if self.chosen else found

    def loss(self, vector):
        return -np.mean(self.weight * np.exp(self.log_prob(vector) - self.before) * self.advantage)

    def divergence(self, vector):
        old, new = self.log_probs(self.start), self.log_probs(vector)
        if self.chosen:
            return np.mean(self.weight * (np.exp(old) * (old - new)).sum(1))
        (mean, log_std), (other, wide) = self.parts(self.start), self.parts(vector)
        each = 0.5 * (np.exp(2 * (log_std - wide)) + ((mean - other) * np.exp(-wide)) ** 2 - 1) + wide - log_std
        return np.mean(self.weight * each.sum(1))

    def by_differences(self, function, step=1e-5):
        shifts = np.eye(len(self.start)) * step
        return np.array([(function(self.start + s) - function(self.start - s)) / (2 * step) for s in shifts])

    def fisher(self, step=1e-3):
        """The Hessian of the divergence, by differences of it."""
        shifts, f = np.eye(len(self.start)) * step, lambda shift: self.divergence(self.start + shift)
        return np.array(
            [[(f(a + b) - f(a - b) - f(b - a) + f(-a - b)) / (4 * step**2) for b in shifts] for a in shifts]
        )

    def step(self, config, max_kl):
        gradient = self.by_differences(self.loss)
        fisher = self.fisher() + config.cg_damping * np.eye(len(self.start))
        direction = np.linalg.solve(fisher, gradient)
        direction *= (2 * max_kl / (direction @ fisher @ direction)) ** 0.5
        for i in range(config.line_search_steps):
            size = config.line_search_decay**i
            candidate = self.start - size * direction
            if self.loss(candidate) < self.loss(self.start) and self.divergence(candidate) <= max_kl:
                return candidate, size, self.divergence(candidate)
        return self.start, 0.0, 0.0


@pytest.mark.parametrize("step", variants_but({"a shorter step": BOTH}, STEPS))
def test_a_step_is_that_of_a_program_that_inverts_the_fisher_matrix(step, engine_name):
    case, max_kl, size = STEPS[step]
    engine = engines.create(engine_name, case.agent(), case.spaces, seed=3)
    batches = random_batches(case, 1, 32)
    slow = Slow(case, batches, engine.weights())
    expected, taken, divergence = slow.step(case.config, max_kl)
    update = engine.learn(batches, case.hyper(max_kl=max_kl, epochs=1, cg_damping=case.config.cg_damping))
    found = Slow(case, batches, engine.weights()).start
    np.testing.assert_allclose(found, expected, atol=2e-3 * np.abs(expected - slow.start).max() + 1e-6)
    assert update.metrics["actor_step_size"] == pytest.approx(taken, rel=1e-5)
    assert update.metrics["actor_kl"] == pytest.approx(divergence, rel=2e-2, abs=1e-6)
    assert taken == pytest.approx(size) and divergence <= max_kl


@pytest.mark.variant("jax")
def test_the_policy_steps_with_the_last_gradient_step_of_the_critic_alone(engine_name):
    case = STEPS["the whole step"][0]
    engine = engines.create(engine_name, case.agent(), case.spaces)
    moved = []
    for _ in range(3):
        before = engine.weights()
        engine.learn(random_batches(case, 1, 8), case.hyper(epochs=3))
        after = engine.weights()
        moved.append({name.split(".")[0] for name in after if not np.array_equal(after[name], before[name])})
    assert moved == [{"critic"}, {"critic"}, {"critic", "actor"}]


def test_what_has_no_policy_to_bound_or_no_bound_is_refused(engine_name):
    def without(self, batch, noise):
        losses = TRPO.loss(self, batch, noise)
        return Losses(losses, actor=Loss(losses["actor"].value))

    def bounded(self, make, spaces):
        PPO.build(self, make, spaces)
        self.trust_regions = frozenset({"model"})

    case = STEPS["the whole step"][0]
    engine = engines.create(engine_name, etude.variant(TRPO, loss=without)(LINEAR), CHOICES)
    with pytest.raises(ConfigError, match="'actor' without a policy to bound"):
        engine.learn(random_batches(case, 1, 8), case.hyper(epochs=1))
    with pytest.raises(ConfigError, match=r"trust_regions is \['model'\], its config a PPOConfig"):
        engines.create(engine_name, etude.variant(PPO, build=bounded)(PPOConfig()), CHOICES)


def test_a_second_device_is_refused():
    with pytest.raises(ConfigError, match="TRPO bounds the divergence over a whole rollout"):
        etude.Run("trpo", "CartPole-v1", engine="torch", execution=etude.Execution(devices=2))


def test_a_rollout_in_minibatches_is_refused():
    with pytest.raises(ConfigError, match="over the whole rollout. Leave it at None"):
        TRPOConfig(minibatch_size=64)
