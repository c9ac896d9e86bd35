"""V-trace (IMPALA, APPO), REINFORCE, A3C and evolution strategies as their papers say; see `slow_policies`."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import assume
from policy_equations import Adam, Seen, centred_ranks, probabilities, returns, standardised, vtrace
from scripted_worlds import TRUNCATED, Script, label
from slow_policies import CLOSE, Estimate, Slow, vector
from slow_worlds import Act, Moment
from watched import Collection, GradientStep, Phase


class SlowUnrolls(Slow):
    """IMPALA and APPO of one agent: minibatches of the whole rollouts of environments, with V-trace.

    Espeholt et al. 2018; Luo et al. 2020 for the target policy of APPO.
    """

    def begin(self, weights: Mapping[str, np.ndarray]) -> None:
        super().begin(weights)
        if not hasattr(self, "before"):
            self.steps_taken, self.before = 0, copy.deepcopy(self.policies[""])

    def learn(self, phase: Phase, weights: Mapping[str, np.ndarray]) -> None:
        rollout, config = self.rollout(), self.config
        environments = len(rollout)
        self.span = rows = environments * self.length
        size = max(1, min(self.size or rows, rows) // self.length)
        per_epoch = environments // size
        calls = self.descents(phase, size)
        assert len(calls) == config.epochs * per_epoch, "gradient steps"
        reported: dict[str, list[float]] = {}
        drawn: list[int] = []
        first: list[list[Moment]] = []
        for call in calls:
            assert call.weight.tolist() == [[1.0] * self.length] * size
            own = [self.unroll(call, i, rollout) for i in range(size)]
            first = first or own
            drawn += [id(moments) for moments in own]
            for name, value in self.minibatch(own).items():
                reported.setdefault(name, []).append(value)
        for epoch in range(config.epochs):
            each = drawn[epoch * per_epoch * size : (epoch + 1) * per_epoch * size]
            assert len(each) == len(set(each)) == per_epoch * size, "rollouts of an epoch"
        self.compare(phase, {name: sum(values) / len(values) for name, values in reported.items()})
        self.adapt(phase, first, lambda part: self.differentiated_unrolls(part)[1], self.length)
        self.end([moment for own in rollout for moment in own], weights)

    def unroll(self, call: GradientStep, i: int, rollout: list[list[Moment]]) -> list[Moment]:
        """The environment's rollout that a row of a batch is."""
        seen = vector(call.observation, i)
        (found,) = (own for own in rollout if np.array_equal(own[0].shown[0], seen[0]))
        scale = float(self.earned[""].scale) if self.config.normalize_reward else 1.0
        for t, moment in enumerate(found):
            np.testing.assert_array_equal(seen[t], moment.shown[0])
            np.testing.assert_allclose(call.action[i, t], moment.acts[0].sample)
            np.testing.assert_allclose(call.extras["log_prob"][i, t], moment.acts[0].log_prob, rtol=1e-6)
            np.testing.assert_allclose(call.reward[i, t], scale * self.reward(moment, 0), rtol=1e-4, atol=1e-6)
            terminated = moment.over and moment.ends[0] != TRUNCATED
            assert math.isclose(call.discount[i, t], 0.0 if terminated else self.config.gamma, rel_tol=1e-6)
            assert call.extras["goes_on"][i, t] == (not moment.over)
            np.testing.assert_array_equal(vector(call.next_observation, (i, t)), moment.after[0])
        return found

    def minibatch(self, rollouts: list[list[Moment]]) -> dict[str, float]:
        """One gradient step; what it reports."""
        found, gradient = self.differentiated_unrolls(rollouts)
        found |= self.descend(self.policies[""], gradient, self.rate())
        self.steps_taken += 1
        if hasattr(self.config, "clip_range") and self.steps_taken % self.config.target_update_every == 0:
            self.before = copy.deepcopy(self.policies[""])
        return found

    def differentiated_unrolls(self, rollouts: list[list[Moment]]) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """What the losses report, and their gradient."""
        config, policy = self.config, self.policies[""]
        appo = hasattr(config, "clip_range")
        rows: list[tuple[Moment, float, float, float]] = []  # step, value, target, advantage
        for moments in rollouts:
            turns = []
            for i in range(len(moments)):
                turn, act = self.turn(moments, i, 0), moments[i].acts[0]
                actor = self.before if appo else policy
                turn.log_ratio = actor.log_prob(self.actor_input(act.seen, 0), act) - act.log_prob
                turns.append(turn)
            targets, each = vtrace(turns, config.gamma, config.trace_lambda, config.rho_bar, config.c_bar)
            rows += zip(moments, [turn.value for turn in turns], targets, each, strict=True)
        advantages = [row[3] for row in rows]
        if appo and config.normalize_advantage:
            advantages = standardised(advantages)
        gradient = policy.zero_gradient()
        sums = dict.fromkeys(("policy_loss", "value_loss", "entropy"), 0.0)
        sums |= dict.fromkeys(("kl", "clip_fraction") if appo else ("approx_kl", "rho_clipped"), 0.0)
        for (moment, value, target, _), advantage in zip(rows, advantages, strict=True):
            act = moment.acts[0]
            x = self.actor_input(act.seen, 0)
            log_prob = policy.log_prob(x, act)
            if appo:
                slope = self.add_appo(policy, x, act, log_prob, advantage, gradient, sums)
            else:
                ratio = math.exp(log_prob - act.log_prob)
                sums["policy_loss"] -= log_prob * advantage
                sums["approx_kl"] += ratio - 1.0 - (log_prob - act.log_prob)
                assume(not 1e-4 < ratio / config.rho_bar - 1.0 < 2e-3)  # more than rounding, or a good deal more
                sums["rho_clipped"] += ratio > 1.001 * config.rho_bar
                slope = -advantage
            sums["entropy"] += policy.entropy(x, act)
            sums["value_loss"] += (value - target) ** 2
            policy.add_actor_gradient(gradient, x, act, slope, -config.entropy_coefficient)
            critic_slope = config.value_coefficient * 2.0 * (value - target)
            policy.add_critic_gradient(gradient, self.critic_input(moment, 0), critic_slope)
        found = {name: value / len(rows) for name, value in sums.items()}
        gradient = {name: value / len(rows) for name, value in gradient.items()}
        found["model"] = found["policy_loss"] + config.value_coefficient * found["value_loss"]
        found["model"] += getattr(config, "kl_coefficient", 0.0) * found.get("kl", 0.0)
        found["model"] -= config.entropy_coefficient * found["entropy"]
        return found, gradient

    def add_appo(
        self, policy: Any, x: np.ndarray, act: Act, log_prob: float, advantage: float, gradient: dict, sums: dict
    ) -> float:
        """The slope of the clipped surrogate objective by the log probability."""
        config = self.config
        acted_over_before = act.log_prob - self.before.log_prob(x, act)
        ratio = math.exp(log_prob - act.log_prob + min(acted_over_before, math.log(2.0)))
        near = min(max(ratio, 1.0 - config.clip_range), 1.0 + config.clip_range)
        sums["policy_loss"] -= min(ratio * advantage, near * advantage)
        sums["clip_fraction"] += abs(ratio - 1.0) > config.clip_range
        before = probabilities(self.before.output(x), act.allowed)
        now = probabilities(policy.output(x), act.allowed)
        sums["kl"] += sum(p * math.log(p / q) for p, q in zip(before, now, strict=True) if p > 0)
        slope = config.kl_coefficient * (now - before)
        gradient["policy.dense0.weight"] += np.outer(x, slope)
        gradient["policy.dense0.bias"] += slope
        return -ratio * advantage if ratio * advantage <= near * advantage else 0.0


class SlowReinforce(Slow):
    """Williams 1992, with the baseline of Sutton & Barto 2018, section 13.4: one gradient step on whole episodes."""

    whole_episodes = True

    def check_end(self) -> None:
        assert not any(self.pending), "an episode was never learned from"

    def rollout(self) -> list[list[Moment]]:
        found, self.pending = self.pending, [[] for _ in self.pending]
        assert all(own and own[-1].over for own in found), "an episode that has not ended was learned from"
        self.earn(found)
        return found

    def reports(self) -> tuple[str, ...]:
        return ("policy_loss", "value_loss", "entropy") if self.config.baseline else ("policy_loss", "entropy")

    def value(self, moment: Moment, agent: int, after: bool = False) -> float:
        return super().value(moment, agent, after) if self.config.baseline else 0.0

    def learn(self, phase: Phase, weights: Mapping[str, np.ndarray]) -> None:
        rollout = self.rollout()
        (call,) = phase.calls
        rows = [moment for own in rollout for moment in own]
        self.span, size = len(rows), 256
        while size < len(rows):
            size *= 2
        expected = [size / len(rows)] * len(rows) + [0.0] * (size - len(rows))
        np.testing.assert_allclose(np.sort(call.weight)[::-1], expected, rtol=1e-5)
        estimates = {}
        for moments in rollout:
            turns = [self.turn(moments, i, 0) for i in range(len(moments))]
            for moment, turn, total in zip(moments, turns, returns(turns, self.config.gamma), strict=True):
                estimates[moment.environment, moment.number, 0] = Estimate(total - turn.value, turn.value, total)
        learned = []
        for row in np.flatnonzero(call.weight):
            (moment,) = (own for own in rows if np.array_equal(own.shown[0], vector(call.observation, row)))
            np.testing.assert_allclose(call.action[row], moment.acts[0].sample)
            estimate = estimates[moment.environment, moment.number, 0]
            np.testing.assert_allclose(call.extras["return"][row], estimate.returned, rtol=1e-3, atol=1e-4)
            learned.append(id(moment))
        assert sorted(learned) == sorted(map(id, rows)), "every step once"
        self.compare(phase, self.gradient_steps([rows], estimates))
        self.end(rows, weights)


class SlowA3C(Slow):
    """Mnih et al. 2016, algorithm S3: every environment's gradient is taken with the weights that its rollout began
    with, and applied in turn."""

    def begin(self, weights: Mapping[str, np.ndarray]) -> None:
        if self.phases == 0:
            super().begin(weights)
            self.held = [copy.deepcopy(self.policies[""].weights) for _ in self.worlds]
            self.gradients: list[tuple[dict, dict]] = []  # taken and not yet applied
            self.asked = 0

    def collect(self, collection: Collection) -> None:
        assert collection.steps == (), "workers return gradients"
        self.step = collection.step

    def check_end(self) -> None:
        assert self.phases == self.step // self.length, "gradients"

    def differentiate_more(self, calls: tuple[GradientStep, ...]) -> None:
        for call in calls:
            self.differentiate(call)

    def differentiate(self, call: GradientStep) -> None:
        """The gradient of the next environment's rollout."""
        environment, policy = self.asked % len(self.worlds), copy.deepcopy(self.policies[""])
        self.asked += 1
        policy.weights, present = self.held[environment], self.policies[""].weights
        self.policies[""].weights = policy.weights
        moments = []
        for t in range(self.length):
            told = label(vector(call.observation, t))
            world = self.worlds[environment]
            moment = world.step(environment, told.seed, {0: call.action[t]}, {0: float(call.extras["log_prob"][t])})
            np.testing.assert_array_equal(moment.shown[0], vector(call.observation, t))
            act = moment.acts[0]
            np.testing.assert_allclose(act.log_prob, policy.log_prob(self.actor_input(act.seen, 0), act), **CLOSE)
            moments.append(moment)
        estimates = self.estimates([moments])
        for t, moment in enumerate(moments):
            self.compare_row(call, t, estimates[environment, moment.number, 0])
        taken: dict[str, np.ndarray] = {}
        self.descend = lambda own, gradient, rate: taken.update(gradient) or {}  # type: ignore[method-assign]
        reported = self.gradient_step(self.policies[""], moments, estimates, 0.0)
        del self.descend
        self.policies[""].weights = present
        self.gradients.append((taken, reported))

    def learn(self, phase: Phase, weights: Mapping[str, np.ndarray]) -> None:
        for call in phase.calls:
            self.differentiate(call)
        self.span, (gradient, reported) = self.length, self.gradients.pop(0)
        policy = self.policies[""]
        self.compare(phase, reported | self.descend(policy, gradient, self.rate()))
        self.compare_weights(weights)
        policy.take(weights)
        environment = self.phases % len(self.worlds)
        self.held[environment] = copy.deepcopy(policy.weights)
        self.phases += 1


class SlowES:
    """Salimans et al. 2017, algorithm 1 with mirrored noise and centred ranks, for a linear policy."""

    names = ("policy.dense0.weight", "policy.dense0.bias")

    def __init__(self, config: Any, scripts: tuple[Script, ...], environments: int):
        self.config, self.scripts, self.count = config, scripts, environments
        self.optimizer, self.observed = Adam(config.optimizer.epsilon), Seen()

    def begin(self, weights: Mapping[str, np.ndarray]) -> None:
        self.weights = {name: weights[f"model.{name}"].astype(np.float64) for name in self.names}

    def learn(self, round_: Collection, phase: Phase, noise: np.ndarray, weights: Mapping[str, np.ndarray]) -> None:
        """One round: an episode of every environment. noise: [pairs, weights] that was drawn."""
        fitness, everything = [0.0] * self.count, []
        for part in round_.steps:
            column = int(part.columns[0])
            sign = 1 if column % 2 == 0 else -1
            weight, bias = self._parted(self._joined() + sign * self.config.sigma * noise[column // 2])
            for t in range(len(part.reward)):
                seen = vector(part.observation, (t, 0))
                told = label(seen)
                script = self.scripts[told.seed % len(self.scripts)]
                mask = script.mask(told.time)
                x = self.observed.normalise(seen) if self.config.normalize_observation else seen.astype(np.float64)
                output = np.where(np.ones(3, bool) if mask is None else np.array(mask), x @ weight + bias, -np.inf)
                assert output[part.action[t, 0]] >= output.max() - 1e-6, "the weights of this environment act"
                fitness[column] += script.reward(told.time)
                everything.append(seen.astype(np.float64))
            assert told.time + 1 == script.length, "a whole episode"
        ranks = centred_ranks(fitness)
        gradient = self.config.weight_decay * self._joined()
        for pair, own in enumerate(noise):
            gradient -= (ranks[2 * pair] - ranks[2 * pair + 1]) * own / (self.count * self.config.sigma)
        own = dict(zip(self.names, self._parted(gradient), strict=True))
        norm = self.optimizer.step(self.weights, own, self.config.learning_rate, self.config.max_gradient_norm)
        expected = {"return_mean": np.mean(fitness), "return_deviation": np.std(fitness), "gradient_norm": norm}
        for name, value in expected.items():
            np.testing.assert_allclose(phase.metrics[name], value, err_msg=name, rtol=1e-4, atol=1e-5)
        for name, value in self.weights.items():
            np.testing.assert_allclose(weights[f"model.{name}"], value, err_msg=name, rtol=1e-3, atol=1e-4)
        self.begin(weights)
        self.observed.values += everything

    def _joined(self) -> np.ndarray:
        return np.concatenate([self.weights[name].ravel() for name in self.names])

    def _parted(self, vector: np.ndarray) -> list[np.ndarray]:
        shape = self.weights[self.names[0]].shape
        return [vector[: np.prod(shape)].reshape(shape), vector[np.prod(shape) :]]
