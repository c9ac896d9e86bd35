"""The learning half of several runs of one agent that are trained together: one loop, and one compiled call for all."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from etude.base import trees
from etude.base.data import CollectedSteps, CollectRequest, PolicyVersion, Steps, Update
from etude.base.events import Learned
from etude.protocols import Weights
from etude.training.learner import Learner
from etude.training.progress import RunProgress

Phase = Generator[tuple[Any, dict[str, float]], Update | None, Learned]


class PopulationLearner:
    """A learner for each of N members: a `loop.Learning`. All have taken equally many steps, and learn at the same
    times; their environments come one member after the other.

    population: an `engines.population.Population`, whose members are the engines of the learners.
    """

    def __init__(self, population: Any, members: Sequence[Learner]):
        self._population, self.members = population, tuple(members)
        self.count, self.progress = sum(learner.count for learner in members), RunProgress()
        self.diverged: dict[int, str] = {}  # by member, its first losses that were not finite
        self._initial = [learner.engine.state() for learner in members]

    def collect_request(self, left: int, after: int = 0) -> CollectRequest:
        """What to collect next; at least one time step of all environments."""
        return self.members[0].collect_request(max(left // len(self.members), self.members[0].count), after)

    def take(self, *parts: CollectedSteps) -> None:
        """Store each member's part of collected steps, and count them."""
        for steps in parts:
            assert isinstance(steps, Steps)
            self.progress.count(steps)
            for i, learner in enumerate(self.members):
                learner.progress.total = self.progress.total // len(self.members)
                learner.take(part(steps, i, learner.count))

    def learn_if_due(self) -> Learned | None:
        """The learning phases that are due, together; losses and metrics are means over the members that have not
        diverged."""
        due = [learner.updates_due() for learner in self.members]
        if not due[0].gradient_steps:
            return None
        phases = [learner.phase(own) for learner, own in zip(self.members, due, strict=True)]
        requests, learned = _sent(phases, [None] * len(phases))
        while requests:
            self._population.learn([batches for batches, _ in requests], [hyper for _, hyper in requests])
            updates = [self._update(i, *request) for i, request in enumerate(requests)]
            requests, learned = _sent(phases, updates)
        for learner in self.members:
            learner.after_updates()
        self.progress.gradient_steps = sum(own.gradient_steps for own in learned)
        sound = [own for i, own in enumerate(learned) if i not in self.diverged] or learned
        losses, metrics = _means([own.losses for own in sound]), _means([own.metrics for own in sound])
        seconds = max(own.seconds for own in learned)
        return Learned(self.progress.step, self.progress.gradient_steps, losses, metrics, seconds)

    def follow_moments(self, steps: CollectedSteps) -> bool:
        """Take collected observations into each member's normaliser; whether there is one."""
        assert isinstance(steps, Steps)
        return any([own.follow_moments(part(steps, i, own.count)) for i, own in enumerate(self.members)])

    def exploring_policy(self) -> tuple[Weights, PolicyVersion]:
        """No weights: the population acts with those that it has."""
        return {}, PolicyVersion(self.progress.gradient_steps, {})

    def trained_weights(self) -> Weights:
        """What losses train, by name, of all members: [N, ...]."""
        return self._population.weights()

    def _update(self, i: int, batches: Any, hyper: dict[str, float]) -> Update:
        """What a member's engine reported. A member whose losses are not finite starts again from its first weights, so
        that it can go on acting, and counts as diverged."""
        learner = self.members[i]
        update = learner.gradients.learn(batches, hyper, learner.progress.gradient_steps)
        bad = {name: value for name, value in update.losses.items() if not math.isfinite(value)}
        if not bad:
            return update
        self.diverged.setdefault(i, ", ".join(f"{name} = {value}" for name, value in bad.items()))
        learner.engine.restore(self._initial[i])
        return Update({}, {}, None, update.gradient_steps)


def part(steps: Steps, member: int, count: int) -> Steps:
    """The environments of one of several members that have `count` each, numbered from 0."""
    own = slice(member * count, (member + 1) * count)
    ended = (steps.final_index[:, 1] >= own.start) & (steps.final_index[:, 1] < own.stop)
    return Steps(
        observation=trees.rows(steps.observation, (slice(None), own)),
        action=steps.action[:, own],
        reward=steps.reward[:, own],
        terminated=steps.terminated[:, own],
        truncated=steps.truncated[:, own],
        next_observation=trees.rows(steps.next_observation, own),
        final_observation=trees.rows(steps.final_observation, ended),
        final_index=steps.final_index[ended] - (0, own.start),
        columns=steps.columns[own] - own.start,
        restarted=steps.restarted[own],
        extras={name: values[:, own] for name, values in steps.extras.items()},
        episodes=tuple(
            end._replace(environment=end.environment - own.start)
            for end in steps.episodes
            if own.start <= end.environment < own.stop
        ),
    )


def _sent(phases: list[Phase], updates: Sequence[Update | None]) -> tuple[list[Any], list[Learned]]:
    """What the phases yield next, or return; they all end at the same time."""
    requests, learned = [], []
    for phase, update in zip(phases, updates, strict=True):
        try:
            requests.append(phase.send(update))
        except StopIteration as ended:
            learned.append(ended.value)
    return requests, learned


def _means(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for own in each for name in own)
    return {name: sum(own[name] for own in each if name in own) / sum(name in own for own in each) for name in names}
