"""PPO, A2C and MAPPO as their papers say, with a linear actor and a linear critic for each policy: one agent, one step
and one number after the other, with gradients by hand.

It is given what a run collected and which rows it put into which minibatch (both are drawn by the run); all else is
computed here, and compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

import numpy as np
from hypothesis import assume
from policy_equations import (
    Adam,
    Descent,
    NoiseScale,
    Seen,
    Turn,
    advantages,
    entropy,
    entropy_gradient,
    log_prob_gradient,
    probabilities,
    standardised,
)
from scripted_worlds import TRUNCATED, Label, Script, label, state_of
from slow_worlds import NOBODY, Act, Moment, World
from watched import Collection, GradientStep, Phase

CLOSE = {"rtol": 2e-4, "atol": 2e-5}
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@dataclass
class Estimate:
    advantage: float
    value: float
    returned: float
    error: float = 0.0


class Policy:
    """The weights and the optimizer of the agents that share them, by the names that the run has for them."""

    def __init__(self, name: str, agents: tuple[int, ...], prefix: str, space: Any, config: Any):
        self.name, self.agents, self.prefix, self.discrete = name, agents, prefix, hasattr(space, "n")
        self.optimizer = Adam(config.optimizer.epsilon) if hasattr(config.optimizer, "epsilon") else Descent()
        self.weights: dict[str, np.ndarray] = {}

    def take(self, weights: Mapping[str, np.ndarray]) -> None:
        """Go on from these weights of the run."""
        own = f"{self.prefix}model."
        self.weights = {
            name.removeprefix(own): value.astype(np.float64) for name, value in weights.items() if name.startswith(own)
        }

    def output(self, x: np.ndarray) -> np.ndarray:
        return x @ self.weights["policy.dense0.weight"] + self.weights["policy.dense0.bias"]

    def critic(self, x: np.ndarray) -> float:
        return float((x @ self.weights["critic.dense0.weight"] + self.weights["critic.dense0.bias"])[0])

    def log_prob(self, x: np.ndarray, act: Act) -> float:
        output = self.output(x)
        if self.discrete:
            return math.log(probabilities(output, act.allowed)[int(act.sample)])
        log_std = self.weights["log_std.value"]
        return float(sum(-0.5 * ((act.sample - output) / np.exp(log_std)) ** 2 - log_std - HALF_LOG_2PI))

    def entropy(self, x: np.ndarray, act: Act) -> float:
        if self.discrete:
            return entropy(probabilities(self.output(x), act.allowed))
        return float(sum(self.weights["log_std.value"] + 0.5 + HALF_LOG_2PI))

    def zero_gradient(self) -> dict[str, np.ndarray]:
        return {name: np.zeros_like(value) for name, value in self.weights.items()}

    def add_actor_gradient(self, found: dict, x: np.ndarray, act: Act, by_log_prob: float, by_entropy: float) -> None:
        """Of `by_log_prob * log_prob + by_entropy * entropy`."""
        output = self.output(x)
        if self.discrete:
            p = probabilities(output, act.allowed)
            slope = by_log_prob * log_prob_gradient(p, int(act.sample)) + by_entropy * entropy_gradient(p)
        else:
            deviation = np.exp(self.weights["log_std.value"])
            scaled = (act.sample - output) / deviation
            slope = by_log_prob * scaled / deviation
            found["log_std.value"] += by_log_prob * (scaled**2 - 1) + by_entropy
        found["policy.dense0.weight"] += np.outer(x, slope)
        found["policy.dense0.bias"] += slope

    def add_critic_gradient(self, found: dict, x: np.ndarray, by_output: float) -> None:
        found["critic.dense0.weight"] += by_output * x[:, None]
        found["critic.dense0.bias"] += by_output


class Slow:
    """A run of PPO or A2C of one agent, or of several for each of which a policy is named, beside the real one.

    normalised_before: whether the losses that are watched get normalised observations.

    policies: their agents, by name; those that others learn are left out. team: what the names of weights begin with.
    """

    whole_episodes = False  # whether a run takes more steps than it was asked for, to end its episodes

    def __init__(
        self,
        config: Any,
        scripts: tuple[Script, ...],
        space: Any,
        environments: int,
        total: int,
        agents: int | None = None,
        policies: Mapping[str, tuple[int, ...]] | None = None,
        turns: bool = False,
        team: str = "",
        identity: bool = False,
    ):
        self.given, self.config, self.space, self.total, self.team, self.step = config, config, space, total, team, 0
        self.worlds = [World(scripts, space, agents, turns) for _ in range(environments)]
        self.alone, self.everyone = agents is None, range(agents or 1)
        self.normalised_before, self.identity = not self.alone, identity
        given = {"": (0,)} if policies is None else policies
        self.policies = {
            name: Policy(name, own, f"{name}." if name else "", space, config) for name, own in given.items()
        }
        self.of = {agent: policy for policy in self.policies.values() for agent in policy.agents}
        self.pending: list[list[Moment]] = [[] for _ in range(environments)]
        self.observed = {agent: Seen() for agent in self.of}  # what normalises observations
        self.earned = {name: Seen() for name in self.policies}  # discounted returns, which scale rewards
        self.open: set[tuple[int, int]] = set()  # agents whose turn is not yet over
        self.running = {(n, agent): 0.0 for n in range(environments) for agent in self.of}
        self.returns = dict.fromkeys(self.policies, (0.0, 1.0, 0))  # mean, deviation, phases
        self.penalty = dict.fromkeys(self.policies, getattr(config, "kl_coefficient", 0.0))
        self.phases = 0
        self.length = getattr(config, "rollout_length", 0)
        self.size = getattr(config, "minibatch_size", None)
        self.noise_scale: NoiseScale | None = None

    def begin(self, weights: Mapping[str, np.ndarray]) -> None:
        """With the weights that the run begins with."""
        for policy in self.policies.values():
            policy.take(weights)

    def go_on_with(self, config: Any) -> None:
        """A saved run goes on with other hyperparameters."""
        self.config, self.size = config, getattr(config, "minibatch_size", None)

    def learns(self, phase: Phase) -> bool:
        """Whether it was one of these policies that learned: others are not watched."""
        return not self.team or bool(phase.calls)

    def differentiate_more(self, calls: tuple[GradientStep, ...]) -> None:
        """What a piece of training computed gradients of, and has not learned from yet."""
        assert not calls

    def check_end(self) -> None:
        """Whatever makes a rollout was learned from."""
        assert any(len(own) < self.length for own in self.pending), "a whole rollout was never learned from"

    # -- what is collected ---------------------------------------------------------------------------------------------

    def collect(self, collection: Collection) -> None:
        """Compare collected steps with what the scripts make of their actions, and how likely these were; and what is
        told of the episodes that ended in them."""
        ended = []
        for part in collection.steps:
            for t, n in np.ndindex(part.shape):
                self._collect(part, t, n)
                moment = self.worlds[part.columns[n]].moments[-1]
                if moment.over:
                    ended.append(self.episode(moment, not part.terminated[t, n]))
        self.step += sum(map(len, collection.steps))
        assert self.step == collection.step
        assert sorted(collection.episodes) == sorted(ended)

    def episode(self, last: Moment, truncated: bool) -> tuple:
        """What is told of an episode that ended with this step."""
        number = sum(moment.over for moment in self.worlds[last.environment].moments) - 1
        each = None if self.alone else {f"agent_{agent}": total for agent, total in last.earned.items()}
        total = sum(last.earned.values())
        return last.environment, number, last.time + 1, total, truncated, each

    def _collect(self, part: Any, t: int, n: int) -> None:
        world, environment = self.worlds[part.columns[n]], int(part.columns[n])
        shown = {agent: vector(self._own(part.observation, agent), (t, n)) for agent in self.everyone}
        acting = [0] if self.alone else np.flatnonzero(part.observation["status"][t, n] == 1).tolist()
        told_: Label = label(shown[acting[0]])
        samples = self._places(part.extras.get("sampled_action", part.action)[t, n])
        moment = world.step(environment, told_.seed, samples, self._log_probs(part, t, n))
        assert set(moment.acts) == set(acting), (set(moment.acts), acting)
        for agent, act in moment.acts.items():
            np.testing.assert_array_equal(shown[agent], act.seen)
            np.testing.assert_array_equal(self._places(part.action[t, n])[agent], self.executed(act))
            if agent in self.of and not math.isnan(act.log_prob):
                expected = self.of[agent].log_prob(self.actor_input(act.seen, agent), act)
                np.testing.assert_allclose(act.log_prob, expected, err_msg="the policy that acted", **CLOSE)
        rewards = np.atleast_1d(part.reward[t, n])
        for agent in self.everyone:
            assert rewards[agent] == np.float32(moment.rewards.get(agent, 0.0)), (agent, rewards, moment)
        assert bool(part.terminated[t, n] or part.truncated[t, n]) == moment.over
        self.pending[environment].append(moment)

    def executed(self, act: Act) -> Any:
        """What the environment was given: a sample within the bounds."""
        return act.sample if hasattr(self.space, "n") else np.clip(act.sample, self.space.low, self.space.high)

    def _own(self, observation: Any, agent: int) -> Any:
        return observation if self.alone else observation["agents"][f"agent_{agent}"]

    def _places(self, action: np.ndarray) -> dict[int, Any]:
        if self.alone:
            return {0: action}
        width = 1 if hasattr(self.space, "n") else self.space.shape[0]
        each = action.reshape(-1, width)
        return {agent: each[agent][0] if hasattr(self.space, "n") else each[agent] for agent in self.everyone}

    def _log_probs(self, part: Any, t: int, n: int) -> dict[int, float]:
        if self.alone:
            return {0: float(part.extras["log_prob"][t, n]) if "log_prob" in part.extras else math.nan}
        if not self.team:
            return dict(enumerate(part.extras["log_prob"][t, n].tolist()))
        found = dict.fromkeys(self.everyone, math.nan)
        for name, policy in self.policies.items():
            found |= dict(zip(policy.agents, part.extras[f"{name}.log_prob"][t, n].tolist(), strict=True))
        return found

    def earn(self, rollout: list[list[Moment]]) -> None:
        """Discounted returns of each agent over its own turns, by which the rewards of its policy are divided."""
        for moment, (agent, policy) in product(chain(*rollout), self.of.items()):
            key = moment.environment, agent
            if agent in moment.acts:
                self.running[key] *= self.config.gamma
                self.open.add(key)
            if key not in self.open:
                continue
            self.running[key] += self.reward(moment, agent)
            over = agent in moment.ends or moment.over
            if over or agent in moment.acts_next:
                self.earned[policy.name].values.append(self.running[key])
                self.open.discard(key)
            if over:
                self.running[key] = 0.0

    def reward(self, moment: Moment, agent: int) -> float:
        """What came with a step, its sign where rewards are clipped."""
        found = moment.rewards.get(agent, 0.0)
        return float(np.sign(found)) if self.config.clip_reward else found

    # -- what networks see ---------------------------------------------------------------------------------------------

    def actor_input(self, seen: np.ndarray, agent: int) -> np.ndarray:
        """What an agent sees, and where they are told, which of its policy's agents it is."""
        return np.concatenate([self.told_apart(agent) if self.identity else [], self.normalised(seen, agent)])

    def told_apart(self, agent: int) -> list[float]:
        """Which of the agents of its policy it is; nothing where it is the only one."""
        own = self.of[agent].agents
        return [float(other == agent) for other in own] if len(own) > 1 else []

    def normalised(self, seen: np.ndarray, agent: int) -> np.ndarray:
        if self.config.normalize_observation:
            return self.observed[agent].normalise(seen)
        return seen.astype(np.float64)

    def critic_input(self, moment: Moment, agent: int, after: bool = False) -> np.ndarray:
        """What the critic of an agent sees before, or after, a step."""
        return self.actor_input((moment.after if after else moment.shown)[agent], agent)

    def value(self, moment: Moment, agent: int, after: bool = False) -> float:
        policy = self.of[agent]
        output = policy.critic(self.critic_input(moment, agent, after))
        mean, deviation, _ = self.returns[policy.name]
        return output * deviation + mean if getattr(self.config, "normalize_value", False) else output

    # -- what is learned from ------------------------------------------------------------------------------------------

    def rollout(self) -> list[list[Moment]]:
        """The next steps of each environment that are learned from together, which are then forgotten."""
        found = [own[: self.length] for own in self.pending]
        assert all(len(own) == self.length for own in found), "learned before the rollout was complete"
        self.pending = [own[self.length :] for own in self.pending]
        self.earn(found)
        return found

    def estimates(self, rollout: list[list[Moment]]) -> dict[tuple[int, int, int], Estimate]:
        """By environment, number of its step, and agent."""
        found = {}
        for moments in rollout:
            for agent in self.of:
                own = [i for i, moment in enumerate(moments) if agent in moment.acts]
                turns = [self.turn(moments, i, agent) for i in own]
                each = advantages(turns, self.config.gamma, self.config.gae_lambda)
                for i, turn, advantage in zip(own, turns, each, strict=True):
                    key = moments[i].environment, moments[i].number, agent
                    found[key] = Estimate(advantage, turn.value, advantage + turn.value)
        return found

    def turn(self, moments: list[Moment], i: int, agent: int) -> Turn:
        """What came of an agent's action up to its next one, or to the end of the rollout."""
        name = self.of[agent].name
        scale = float(self.earned[name].scale) if self.config.normalize_reward else 1.0
        total, last = 0.0, i
        for last in range(i, len(moments)):
            total += scale * self.reward(moments[last], agent)
            if agent in moments[last].ends or moments[last].over or agent in moments[last].acts_next:
                break
        at = moments[last]
        ended = agent in at.ends or at.over or last + 1 == len(moments)
        terminated = at.ends.get(agent, TRUNCATED) != TRUNCATED
        following = 0.0 if terminated else self.value(at, agent, after=True)
        return Turn(total, self.value(moments[i], agent), following, ended)

    def learn(self, phase: Phase, weights: Mapping[str, np.ndarray]) -> None:
        """Compare a learning phase: what was learned from, what was reported, and the weights that it led to."""
        rollout = self.rollout()
        rows = [moment for own in rollout for moment in own]
        self.span, estimates = len(rows), self.estimates(rollout)
        size = min(self.size or len(rows), len(rows))
        minibatches = self.minibatches(self.descents(phase, size), rows, estimates, size)
        per_epoch = len(rows) // size
        assert len(minibatches) == self.config.epochs * per_epoch, "gradient steps"
        for epoch in range(self.config.epochs):
            own = minibatches[epoch * per_epoch : (epoch + 1) * per_epoch]
            drawn = [id(moment) for minibatch in own for moment in minibatch if moment is not NOBODY]
            nobody = sum(not set(moment.acts) & set(self.of) for moment in rows)
            assert len(drawn) == len(set(drawn)) >= per_epoch * size - nobody, "rows of an epoch"
        means = self.gradient_steps(minibatches, estimates)
        self.adapt(phase, [[moment] for moment in minibatches[0]], lambda part: self.gradient(part, estimates))
        self.after_phase(minibatches, estimates, means)
        self.compare(phase, means)
        self.compare_explained_variance(phase, minibatches, estimates)
        self.end(rows, weights)

    def gradient_steps(self, minibatches: list, estimates: Mapping) -> dict[str, float]:
        """Those of a phase; the means of what they report where an agent of the policy acts."""
        reported: dict[str, list[float]] = {}
        rate = self.rate()
        for minibatch in minibatches:
            for policy in self.policies.values():
                found = self.gradient_step(policy, minibatch, estimates, rate)
                if any(agent in moment.acts for moment in minibatch for agent in policy.agents):
                    for name, value in found.items():
                        reported.setdefault(f"{policy.prefix}{name}", []).append(value)
        return {name: sum(values) / len(values) for name, values in reported.items()}

    def end(self, rows: list[Moment], weights: Mapping[str, np.ndarray]) -> None:
        """The end of a phase: normalisers follow what was learned from."""
        if self.config.normalize_observation:
            for moment in rows:
                for agent, act in moment.acts.items():
                    if agent in self.of:
                        self.observed[agent].values.append(act.seen.astype(np.float64))
        self.compare_weights(weights)
        self.begin(weights)  # rounding must not add up
        self.phases += 1

    def rate(self) -> float:
        """The mean of the learning rate over the environment steps that are learned from."""
        given = self.config.learning_rate
        if not hasattr(given, "start"):
            return given
        each = [min(1.0, (step + 0.5) / self.total) for step in range(self.step - self.span, self.step)]
        return sum(given.start + (given.end - given.start) * progress for progress in each) / len(each)

    def minibatches(
        self, calls: tuple[GradientStep, ...], rows: list[Moment], estimates: Mapping, size: int
    ) -> list[list[Moment]]:
        """The steps of each minibatch, of whose numbers nothing is wrong."""
        count = len(self.policies)
        assert len(calls) % count == 0
        found = []
        for first in range(0, len(calls), count):
            minibatch: list[Moment | None] = [None] * size
            for policy, call in zip(self.policies.values(), calls[first : first + count], strict=True):
                assert len(call.weight) == size * len(policy.agents)
                for place, agent in enumerate(policy.agents):
                    for i in range(size):
                        row = place * size + i
                        if call.weight[row] > 0:
                            moment = self.recognise(call, row, agent, rows)
                            assert minibatch[i] in (None, moment)
                            minibatch[i] = moment
                            self.compare_row(call, row, estimates[moment.environment, moment.number, agent])
            minibatch = [NOBODY if moment is None else moment for moment in minibatch]
            for policy, call in zip(self.policies.values(), calls[first : first + count], strict=True):
                acts = [agent in moment.acts for agent in policy.agents for moment in minibatch]
                share = max(sum(acts), 1) / len(acts)
                np.testing.assert_allclose(call.weight, np.array(acts) / share, rtol=1e-5, err_msg="weights")
                assert math.isclose(call.hyper["learning_rate"], self.rate(), rel_tol=1e-5), "learning rate"
            found.append(minibatch)
        return found

    def recognise(self, call: GradientStep, row: int, agent: int, rows: list[Moment]) -> Moment:
        """The step that a row of a batch is of."""
        seen = vector(call.observation, row)
        normalised = self.config.normalize_observation and self.normalised_before
        best, least = None, 1e-2
        for moment in rows:
            act = moment.acts.get(agent)
            if act is None or np.float32(act.log_prob) != np.float32(call.extras["log_prob"][row]):
                continue
            if not np.allclose(call.extras.get("sampled_action", call.action)[row], act.sample, atol=1e-6):
                continue
            expected = self.normalised(act.seen, agent) if normalised else act.seen
            distance = float(np.abs(seen - expected).max())
            if distance < least:
                best, least = moment, distance
        assert best is not None, "a row was learned from that is not of this rollout"
        act = best.acts[agent]
        np.testing.assert_allclose(call.action[row], self.executed(act) if self.alone else act.sample, rtol=1e-6)
        return best

    def compare_row(self, call: GradientStep, row: int, estimate: Estimate) -> None:
        """Afterwards the estimate is that of the batch: differences of nearly equal ones would tell rounding alone."""
        names = {"advantage": "advantage", "value": "value", "return": "returned"}
        for name, own in names.items():
            found = float(call.extras[name][row])
            np.testing.assert_allclose(found, getattr(estimate, own), err_msg=name, rtol=1e-3, atol=1e-4)
            setattr(estimate, own, found)

    def descents(self, phase: Phase, size: int) -> tuple[GradientStep, ...]:
        """Without the gradients that were taken to measure their noise. size: of minibatches, in examples."""
        measured = self.noise_scale.parts if self.noise_scale is not None else 0
        return phase.calls[: len(phase.calls) - measured * (size >= measured)]

    def gradient(self, minibatch: list[list[Moment]], estimates: Mapping) -> dict[str, np.ndarray]:
        """Of the one policy, by its present weights."""
        (policy,) = self.policies.values()
        return self.differentiated(policy, [moment for (moment,) in minibatch], estimates)[1]

    def adapt(
        self, phase: Phase, examples: list, gradient: Callable[[list], dict[str, np.ndarray]], steps: int = 1
    ) -> None:
        """The size of the next phase's minibatches, where the noise of gradients decides it. steps: of an example."""
        if self.noise_scale is None:
            return
        assert self.size is not None
        count = self.noise_scale.parts
        width = len(examples) // count
        each = [gradient(examples[i * width : (i + 1) * width]) for i in range(count)] if width else []
        before, self.size = self.size, self.noise_scale.next_size(self.size, each, width * steps)
        changed = [(event.before, event.after) for event in phase.adjusted if event.after != event.before]
        assert changed == [(before, self.size)] * (self.size != before), "size of minibatches"

    def gradient_step(
        self, policy: Policy, minibatch: list[Moment], estimates: Mapping, rate: float
    ) -> dict[str, float]:
        """One gradient step of a policy on the turns of its agents; what it reports."""
        found, gradient = self.differentiated(policy, minibatch, estimates)
        return found | self.descend(policy, gradient, rate)

    def differentiated(
        self, policy: Policy, minibatch: list[Moment], estimates: Mapping
    ) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """What a policy's losses on the turns of its agents report, and their gradient."""
        turns = [(moment, agent) for agent in policy.agents for moment in minibatch if agent in moment.acts]
        gradient, sums = policy.zero_gradient(), dict.fromkeys(self.reports(), 0.0)
        own = [estimates[moment.environment, moment.number, agent] for moment, agent in turns]
        each = [estimate.advantage for estimate in own]
        if self.config.normalize_advantage:
            each = standardised(each)
        for (moment, agent), estimate, advantage in zip(turns, own, each, strict=True):
            self.add_turn(policy, moment, agent, estimate, advantage, gradient, sums)
        count = max(len(turns), 1)
        found = {name: value / count for name, value in sums.items()}
        gradient = {name: value / count for name, value in gradient.items()}
        found["model"] = found["policy_loss"] + self.config.value_coefficient * found.get("value_loss", 0.0)
        found["model"] -= self.config.entropy_coefficient * found["entropy"]
        if getattr(self.config, "objective", "clip") == "penalty":
            found["kl_coefficient"] = self.penalty[policy.name]
        return found, gradient

    def descend(self, policy: Policy, gradient: dict, rate: float) -> dict[str, float]:
        """Move the weights of a policy; what is reported of its gradient."""
        limit = self.config.max_gradient_norm
        norm = policy.optimizer.step(policy.weights, gradient, rate, limit)
        if limit is None:
            return {}
        return {"model_gradient_norm": norm, "model_gradient_clipped": float(norm > limit)}

    def reports(self) -> tuple[str, ...]:
        found = ("policy_loss", "value_loss", "entropy")
        if not hasattr(self.config, "clip_range"):
            return found
        clipped = () if getattr(self.config, "objective", "clip") == "penalty" else ("clip_fraction",)
        return (*found, "approx_kl", *clipped)

    def add_turn(
        self,
        policy: Policy,
        moment: Moment,
        agent: int,
        estimate: Estimate,
        advantage: float,
        gradient: dict,
        sums: dict,
    ) -> None:
        """What one turn adds to the sums of losses and of gradients."""
        config, act = self.config, moment.acts[agent]
        x = self.actor_input(act.seen, agent)
        log_ratio = policy.log_prob(x, act) - act.log_prob
        ratio = math.exp(log_ratio)
        divergence = ratio - 1.0 - log_ratio
        if "approx_kl" not in sums:  # A2C
            surrogate, slope = -policy.log_prob(x, act) * advantage, -advantage
        elif "clip_fraction" in sums:
            near = min(max(ratio, 1.0 - config.clip_range), 1.0 + config.clip_range)
            surrogate = -min(ratio * advantage, near * advantage)
            slope = -ratio * advantage if ratio * advantage <= near * advantage else 0.0
            sums["clip_fraction"] += abs(ratio - 1.0) > config.clip_range
        else:
            surrogate = self.penalty[policy.name] * divergence - ratio * advantage
            slope = self.penalty[policy.name] * (ratio - 1.0) - ratio * advantage
        policy.add_actor_gradient(gradient, x, act, slope, -config.entropy_coefficient)
        sums["policy_loss"] += surrogate
        if "approx_kl" in sums:
            sums["approx_kl"] += divergence
        sums["entropy"] += policy.entropy(x, act)
        if "value_loss" in sums:
            self.add_value(policy, moment, agent, estimate, gradient, sums)

    def add_value(
        self, policy: Policy, moment: Moment, agent: int, estimate: Estimate, gradient: dict, sums: dict
    ) -> None:
        deviation = self.returns[policy.name][1] if getattr(self.config, "normalize_value", False) else 1.0
        value, reach = self.value(moment, agent) / deviation, getattr(self.config, "value_clip_range", None)
        before, target = estimate.value / deviation, estimate.returned / deviation
        error, slope = (value - target) ** 2, 2.0 * (value - target)
        if reach is not None:
            near = before + min(max(value - before, -reach), reach)
            if abs(value - before) > reach and (near - target) ** 2 > error:
                error, slope = (near - target) ** 2, 0.0
        sums["value_loss"] += error
        policy.add_critic_gradient(gradient, self.critic_input(moment, agent), self.config.value_coefficient * slope)

    def after_phase(self, minibatches: list[list[Moment]], estimates: Mapping, means: dict[str, float]) -> None:
        """The penalty's coefficient, and the moments of returns."""
        for name, policy in self.policies.items():
            filled = [any(agent in own.acts for own in each for agent in policy.agents) for each in minibatches]
            if not any(filled):
                continue
            if getattr(self.config, "objective", "clip") == "penalty":
                divergence = means[f"{policy.prefix}approx_kl"]
                target = self.config.kl_target
                self.penalty[name] *= 2.0 if divergence > 1.5 * target else 0.5 if divergence < target / 1.5 else 1.0
            if getattr(self.config, "normalize_value", False):
                first, second = [], []  # of the minibatches
                for minibatch in minibatches:
                    found = [
                        estimates[moment.environment, moment.number, agent].returned
                        for moment in minibatch for agent in policy.agents if agent in moment.acts
                    ]  # fmt: skip
                    if found:
                        first.append(sum(found) / len(found))
                        second.append(sum(x**2 for x in found) / len(found))
                mean, deviation, phases = self.returns[name]
                rate, square = 1.0 / min(phases + 1, 100), mean**2 + deviation**2
                mean += rate * (sum(first) / len(first) - mean)
                square += rate * (sum(second) / len(second) - square)
                assume(
                    square == 0.0 or square - mean**2 > 1e-3 * square
                )  # float32 does not tell how little they differ
                self.returns[name] = mean, math.sqrt(max(square - mean**2, 1e-8)), phases + 1

    # -- what is compared ----------------------------------------------------------------------------------------------

    def compare(self, phase: Phase, means: dict[str, float]) -> None:
        reported = {**phase.losses, **phase.metrics}
        for name, expected in means.items():
            np.testing.assert_allclose(reported[name], expected, err_msg=name, rtol=2e-3, atol=2e-4)

    def compare_explained_variance(self, phase: Phase, minibatches: list, estimates: Mapping) -> None:
        learned = [
            estimates[moment.environment, moment.number, agent]
            for minibatch in minibatches for moment in minibatch for agent in moment.acts if agent in self.of
        ]  # fmt: skip
        returned = [estimate.returned for estimate in learned]
        if not returned:
            return
        variance = float(np.var(returned))
        if variance > 1e-6 * (1.0 + float(np.mean(returned)) ** 2):  # and more than rounding
            error = float(np.var([estimate.advantage for estimate in learned]))
            name = f"{self.team}explained_variance"
            np.testing.assert_allclose(phase.metrics[name], 1 - error / variance, err_msg=name, rtol=1e-3, atol=1e-3)

    def compare_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        for policy in self.policies.values():
            for name, expected in policy.weights.items():
                own = f"{policy.prefix}model.{name}"
                np.testing.assert_allclose(weights[own], expected, err_msg=own, rtol=1e-3, atol=1e-4)


def vector(observation: Any, at: Any) -> np.ndarray:
    """What one of the agents was shown, without its mask."""
    return observation["observation"][at] if isinstance(observation, dict) else observation[at]


class SlowMAPPO(Slow):
    """Yu et al. 2022: critics see what all agents have seen last, and who is there."""

    def __init__(self, *given: Any, **more: Any):
        super().__init__(*given, **more)
        self.normalised_before, self.states = False, Seen()

    def critic_input(self, moment: Moment, agent: int, after: bool = False) -> np.ndarray:
        shown, there = (moment.after, moment.acts_next) if after else (moment.shown, set(moment.acts))
        if after and moment.ends.get(agent) == TRUNCATED:  # it would go on, and so would all whose time ran out with it
            there = there | {other for other, how in moment.ends.items() if how == TRUNCATED}
        blank = np.zeros_like(next(iter(shown.values())))
        everything = [self.normalised(shown.get(other, blank), other) for other in self.everyone]
        if self.config.critic_reads == "state":
            state = state_of(moment.seed, moment.time + after)
            everything = [self.states.normalise(state) if self.config.normalize_observation else state]
        present = [float(other in there) for other in self.everyone]
        return np.concatenate([self.told_apart(agent), *everything, present])

    def end(self, rows: list[Moment], weights: Mapping[str, np.ndarray]) -> None:
        super().end(rows, weights)
        self.states.values += [state_of(moment.seed, moment.time) for moment in rows]

    def minibatches(self, calls: tuple[GradientStep, ...], rows: list[Moment], estimates: Mapping, size: int) -> list:
        found = []
        for call in calls:
            minibatch: list[Moment | None] = [None] * size
            assert call.weight.tolist() == [1.0] * size
            for i, agent in np.ndindex(call.extras["active"].shape):
                if call.extras["active"][i, agent]:
                    own = replace(
                        call,
                        observation=self._own(call.observation, agent),
                        action=self._of_agent(call.extras.get("sampled_action", call.action), agent),
                        extras={
                            name: value[:, agent] for name, value in call.extras.items() if name != "sampled_action"
                        },
                    )
                    moment = self.recognise(own, i, agent, rows)
                    assert minibatch[i] in (None, moment)
                    minibatch[i] = moment
                    self.compare_row(own, i, estimates[moment.environment, moment.number, agent])
            assert None not in minibatch
            for moment, active in zip(minibatch, call.extras["active"], strict=True):
                assert set(moment.acts) == set(np.flatnonzero(active).tolist())
            found.append(minibatch)
        return found

    def _of_agent(self, action: np.ndarray, agent: int) -> np.ndarray:
        """The actions of one agent, of those of all."""
        own = action.reshape(len(action), len(self.everyone), -1)[:, agent]
        return own[:, 0] if hasattr(self.space, "n") else own
