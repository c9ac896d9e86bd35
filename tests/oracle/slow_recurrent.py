"""Recurrent PPO as its papers say; see `slow_policies`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from policy_equations import entropy, probabilities, standardised
from scripted_worlds import label
from slow_policies import CLOSE, Slow, vector
from slow_worlds import Moment
from watched import GradientStep, Phase


class SlowRecurrentPPO(Slow):
    """PPO over sequences of linear layers around a cell. Gradients are differences of the loss."""

    def begin(self, weights: Mapping[str, np.ndarray]) -> None:
        super().begin(weights)
        if not hasattr(self, "state"):
            self.state = [np.zeros(self.state_size) for _ in self.worlds]
            self.skipped = [0 for _ in self.worlds]  # steps of each environment that will not be learned from
            self.before: dict[int, np.ndarray] = {}  # the state before each step

    def mutate(self, config: Any, weights: Mapping[str, np.ndarray]) -> None:
        """Go on with another cell, or with the same: a state of another size begins anew, and what was collected with
        the one before is not learned from, nor is what belongs to the same time step."""
        before, self.config, self.given = self.state_size, config, config
        self.begin(weights)
        if self.state_size != before:
            self.state = [np.zeros(self.state_size) for _ in self.worlds]
            self.pending = [[] for _ in self.worlds]
            newest = max(len(world.moments) for world in self.worlds)
            self.skipped = [newest - len(world.moments) for world in self.worlds]

    @property
    def state_size(self) -> int:
        return sum(self.sizes)

    @property
    def sizes(self) -> tuple[int, int]:
        """Of the states of actor and critic."""
        spec = self.config.network
        each = spec.units * (2 if spec.cell == "lstm" else 1)
        return each, each

    def network(self, weights: Mapping[str, np.ndarray], part: str, x: np.ndarray, state: np.ndarray):
        """(output, next state) of one step of the actor, "policy", or of the critic."""
        own = {name.removeprefix(f"{part}."): value for name, value in weights.items() if name.startswith(f"{part}.")}
        units = self.config.network.units
        entering = x @ own["cell.input.weight"] + own["cell.input.bias"]
        if self.config.network.cell == "gru":  # Cho et al. 2014
            remembered = state @ own["cell.memory.weight"] + own["cell.memory.bias"]
            reset = _sigmoid(entering[:units] + remembered[:units])
            update = _sigmoid(entering[units : 2 * units] + remembered[units : 2 * units])
            new = np.tanh(entering[2 * units :] + reset * remembered[2 * units :])
            state = (1 - update) * new + update * state
            shown = state
        else:  # Hochreiter & Schmidhuber 1997, Gers et al. 2000
            hidden, cell = state[:units], state[units:]
            gates = entering + hidden @ own["cell.memory.weight"]
            enter, forget, candidate, output = (gates[i * units : (i + 1) * units] for i in range(4))
            cell = _sigmoid(forget) * cell + _sigmoid(enter) * np.tanh(candidate)
            shown = _sigmoid(output) * np.tanh(cell)
            state = np.concatenate([shown, cell])
        return shown @ own["after.dense0.weight"] + own["after.dense0.bias"], state

    def both(self, weights: Mapping[str, np.ndarray], seen: np.ndarray, state: np.ndarray):
        """(output of the actor, value, next state)."""
        x, actor = self.actor_input(seen, 0), self.sizes[0]
        output, after = self.network(weights, "policy", x, state[:actor])
        value, critic_after = self.network(weights, "critic", x, state[actor:])
        return output, float(value[0]), np.concatenate([after, critic_after])

    def _collect(self, part: Any, t: int, n: int) -> None:
        environment = int(part.columns[n])
        world = self.worlds[environment]
        seen = vector(part.observation, (t, n))
        moment = world.step(
            environment, label(seen).seed, {0: part.action[t, n]}, {0: float(part.extras["log_prob"][t, n])}
        )
        np.testing.assert_array_equal(seen, moment.shown[0])
        act = moment.acts[0]
        if moment.time == 0:
            self.state[environment] = np.zeros(self.state_size)
        np.testing.assert_allclose(part.extras["recurrent_state"][t, n], self.state[environment], rtol=1e-3, atol=1e-5)
        self.before[id(moment)] = self.state[environment]
        output, _, self.state[environment] = self.both(self.policies[""].weights, seen, self.state[environment])
        expected = math.log(probabilities(output, act.allowed)[int(act.sample)])
        np.testing.assert_allclose(act.log_prob, expected, err_msg="the policy that acted", **CLOSE)
        if self.skipped[environment]:
            self.skipped[environment] -= 1
        else:
            self.pending[environment].append(moment)

    def value(self, moment: Moment, agent: int, after: bool = False) -> float:
        """Of a step with its own state; of what followed, with the state after the step."""
        weights = self.policies[""].weights
        _, value, state = self.both(weights, moment.shown[0], self.before[id(moment)])
        return self.both(weights, moment.after[0], state)[1] if after else value

    def learn(self, phase: Phase, weights: Mapping[str, np.ndarray]) -> None:
        rollout, config = self.rollout(), self.config
        rows = [moment for own in rollout for moment in own]
        self.span, estimates = len(rows), self.estimates(rollout)
        length = config.sequence_length
        sequences = [own[i : i + length] for own in rollout for i in range(0, self.length, length)]
        size = max(1, min(self.size or len(rows), len(rows)) // length)
        per_epoch = len(sequences) // size
        assert len(phase.calls) == config.epochs * per_epoch, "gradient steps"
        drawn, reported, everything = [], {}, []
        for call in phase.calls:
            minibatch = [self.sequence(call, i, sequences, estimates) for i in range(size)]
            drawn += [id(own) for own in minibatch]
            everything.append([moment for own in minibatch for moment in own])
            for name, value in self.sequence_step(minibatch, estimates).items():
                reported.setdefault(name, []).append(value)
        for epoch in range(config.epochs):
            each = drawn[epoch * per_epoch * size : (epoch + 1) * per_epoch * size]
            assert len(each) == len(set(each)) == per_epoch * size, "sequences of an epoch"
        self.compare(phase, {name: sum(values) / len(values) for name, values in reported.items()})
        self.compare_explained_variance(phase, everything, estimates)
        self.end(rows, weights)

    def sequence(self, call: GradientStep, i: int, sequences: list[list[Moment]], estimates: Mapping) -> list[Moment]:
        """The sequence that a row of a batch is."""
        seen = vector(call.observation, i)
        (found,) = (own for own in sequences if np.array_equal(own[0].shown[0], seen[0]))
        assert call.weight[i].tolist() == [1.0] * len(found)
        state = call.extras["recurrent_state"][i]
        np.testing.assert_allclose(state, self.before[id(found[0])], rtol=1e-3, atol=1e-5)
        for t, moment in enumerate(found):
            np.testing.assert_array_equal(seen[t], moment.shown[0])
            assert call.action[i, t] == moment.acts[0].sample
            assert call.extras["first"][i, t] == (t > 0 and moment.time == 0)
            for name, own in {"advantage": "advantage", "value": "value", "return": "returned"}.items():
                estimate, value = estimates[moment.environment, moment.number, 0], float(call.extras[name][i, t])
                np.testing.assert_allclose(value, getattr(estimate, own), err_msg=name, rtol=1e-3, atol=1e-4)
                setattr(estimate, own, value)
        return found

    def sequence_step(self, minibatch: list[list[Moment]], estimates: Mapping) -> dict[str, float]:
        policy = self.policies[""]
        rows = [moment for own in minibatch for moment in own]
        advantages = [estimates[moment.environment, moment.number, 0].advantage for moment in rows]
        if self.config.normalize_advantage:
            advantages = standardised(advantages)
        found = self.losses(policy.weights, minibatch, estimates, advantages)
        gradient = policy.zero_gradient()
        for name, value in policy.weights.items():
            for place in np.ndindex(value.shape):
                ends = []
                for sign in (1, -1):
                    moved = {**policy.weights, name: value.copy()}
                    moved[name][place] += sign * 1e-5
                    parts = self.losses(moved, minibatch, estimates, advantages)
                    actor = parts["policy_loss"] - self.config.entropy_coefficient * parts["entropy"]
                    critic = self.config.value_coefficient * parts["value_loss"]
                    ends.append(critic if name.startswith("critic.") else actor)  # each without the other's rounding
                gradient[name][place] = (ends[0] - ends[1]) / 2e-5
        return found | self.descend(policy, gradient, self.rate())

    def losses(
        self, weights: Mapping[str, np.ndarray], minibatch: list[list[Moment]], estimates: Mapping, advantages: list
    ) -> dict[str, float]:
        config, each = self.config, iter(advantages)
        sums = dict.fromkeys(("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"), 0.0)
        count = 0
        for moments in minibatch:
            state = self.before[id(moments[0])]
            for moment in moments:
                if moment.time == 0:
                    state = np.zeros(self.state_size)
                output, value, state = self.both(weights, moment.shown[0], state)
                act, estimate, advantage = moment.acts[0], estimates[moment.environment, moment.number, 0], next(each)
                p = probabilities(output, act.allowed)
                log_ratio = math.log(p[int(act.sample)]) - act.log_prob
                ratio = math.exp(log_ratio)
                near = min(max(ratio, 1.0 - config.clip_range), 1.0 + config.clip_range)
                sums["policy_loss"] -= min(ratio * advantage, near * advantage)
                sums["clip_fraction"] += abs(ratio - 1.0) > config.clip_range
                sums["approx_kl"] += ratio - 1.0 - log_ratio
                sums["entropy"] += entropy(p)
                error = (value - estimate.returned) ** 2
                if config.value_clip_range is not None:
                    reach = config.value_clip_range
                    held = estimate.value + min(max(value - estimate.value, -reach), reach)
                    error = max(error, (held - estimate.returned) ** 2)
                sums["value_loss"] += error
                count += 1
        found = {name: value / count for name, value in sums.items()}
        found["model"] = found["policy_loss"] + config.value_coefficient * found["value_loss"]
        found["model"] -= config.entropy_coefficient * found["entropy"]
        return found


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))
