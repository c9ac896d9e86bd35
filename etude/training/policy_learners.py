"""The learning half of a run in which several policies learn, each from its own agents' part of the same steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, NoReturn

from etude.base.checks import Stored
from etude.base.data import CollectedSteps, CollectRequest, PolicyVersion, Steps
from etude.base.errors import ConfigError
from etude.base.events import Learned
from etude.engines.by_policy import PolicyEngines, joined_names
from etude.multi_agent.by_policy import PolicyAgents
from etude.protocols import Weights
from etude.training.league import LeagueTable
from etude.training.learner import Learner
from etude.training.progress import RunProgress, check_progress

OPTIONAL = ("adapting", "waiting")  # components of a run that hold one of each learner that has it
LEARNING = ("replay", *OPTIONAL)  # what acting does not need
BY_POLICY = (*LEARNING, "engine", "layer_noise", "moments", "scale")


class PolicyLearners:
    """A learner for each policy that learns: a `loop.RunLearning`. Collects until the first of them is due.

    A policy that does not learn at present stores nothing; what an on-policy one has stored by then is forgotten.
    frozen_weights: the names of the weights that policies act with which never learn.
    """

    def __init__(
        self,
        agent: PolicyAgents,
        engine: PolicyEngines,
        learners: Mapping[str, Learner],
        leagues: Mapping[str, LeagueTable],
        frozen_weights: tuple[str, ...],
        count: int,
    ):
        self.of: dict[str, Learner] = dict(learners)
        self.leagues: dict[str, LeagueTable] = dict(leagues)
        self.count: int = count
        self.progress: RunProgress = RunProgress()
        self._agent, self._engine, self._frozen = agent, engine, frozen_weights
        self._learning: tuple[str, ...] = ()  # those that learn from the steps that were taken last
        self._paused: set[str] = set()  # those whose next steps do not continue what they have stored

    @property
    def explores_anew(self) -> bool:
        """Whether one of them has drawn noise in layers."""
        return any(learner.explores_anew for learner in self.of.values())

    @property
    def replay(self) -> NoReturn:
        """Raises ConfigError: each policy has its own."""
        raise ConfigError("Each policy has a replay of its own: run.learner.of[policy].replay.")

    def collect_request(self, left: int, after: int = 0) -> CollectRequest:
        """Up to the first learning phase of a policy that learns, or until others learn."""
        turns, now = self._agent.turns, self._time_step()
        step = now + after * self.count
        learning = turns.at(step)
        if learning != turns.at(now):
            return CollectRequest(0)  # they have stored nothing yet that could be collected ahead for
        requests = [self.of[policy].collect_request(left, after) for policy in learning]
        until = turns.steps_left(step)
        first = min(requests, key=lambda request: request.steps or 0)
        if until is None or first.steps is None:
            return first
        return first._replace(steps=min(first.steps, max(1, -(-until // self.count))))

    def take(self, steps: CollectedSteps) -> None:
        """Store each policy's part of collected steps, where it learns, and count them."""
        assert isinstance(steps, Steps)
        self._learning = self._agent.turns.at(self._time_step())
        self.progress.count(steps)
        for league in self.leagues.values():
            league.record(steps)
            league.follow(steps)
        for policy, learner in self.of.items():
            learner.progress.total = self.progress.total
            if policy in self._learning:
                learner.take(self._part(policy, steps))
                if not self.progress.begun(self.count):
                    self._paused.discard(policy)
            else:
                learner.skip(steps)
                self._paused.add(policy)

    def learn_if_due(self) -> Learned | None:
        """The learning phases that are due, as one."""
        phases = {policy: self.of[policy].learn_if_due() for policy in self._learning}
        found = {policy: learned for policy, learned in phases.items() if learned is not None}
        if not found:
            return None
        self.progress.gradient_steps = sum(learner.progress.gradient_steps for learner in self.of.values())
        losses = {name: value for learned in found.values() for name, value in learned.losses.items()}
        metrics = {
            name if name.startswith(f"{policy}.") else f"{policy}.{name}": value  # agents name their own by policy
            for policy, learned in found.items()
            for name, value in learned.metrics.items()
        }
        for league in self.leagues.values():
            league.update(self.progress.step)
            metrics |= league.metrics()
        self._load_leagues()
        seconds = sum(learned.seconds for learned in found.values())
        adjusted = tuple(
            dataclasses.replace(event, step=self.progress.step, name=f"{policy}.{event.name}")
            for policy, learned in found.items()
            for event in learned.adjusted
        )
        return Learned(self.progress.step, self.progress.gradient_steps, losses, metrics, seconds, adjusted)

    def follow_moments(self) -> bool:
        """Take the observations that were stored last into the normalisers of those that learn; whether there were
        any."""
        moved = [self.of[policy].follow_moments() for policy in self._learning]
        if any(moved):
            for league in self.leagues.values():
                league.follow_moments(self.progress.step)
            self._load_leagues()
        return any(moved)

    def _load_leagues(self) -> None:
        """Let the engines of leagues act with their present copies."""
        for policy, league in self.leagues.items():
            self._engine.of[policy].load(league.weights())

    def acting_weights(self) -> Weights:
        """What acting needs; nothing where the engines themselves act."""
        acting = {policy: learner.acting_weights() for policy, learner in self.of.items()}
        return joined_names(acting) | self._unlearned()

    def exploring_policy(self) -> tuple[Weights, PolicyVersion]:
        """What rollouts act with, and its version."""
        explored = {policy: learner.exploring_policy()[0] for policy, learner in self.of.items()}
        version = PolicyVersion(self.progress.gradient_steps, {})
        return joined_names(explored) | self._unlearned(), version

    def _unlearned(self) -> Weights:
        """What policies act with that do not learn."""
        copies = {policy: league.weights() for policy, league in self.leagues.items()}
        return joined_names(copies) | self._engine.weights(self._frozen)

    def trained_weights(self) -> Weights:
        """What losses train, by name."""
        return joined_names({policy: learner.trained_weights() for policy, learner in self.of.items()})

    def state(self) -> dict[str, Any]:
        """Arrays and plain data, by component and by policy, from which `restore` goes on."""
        states = {policy: learner.state() for policy, learner in self.of.items()}
        parts = {name: {policy: state[name] for policy, state in states.items() if name in state} for name in LEARNING}
        return self.policy_state() | {name: part for name, part in parts.items() if part}

    def policy_state(self) -> dict[str, Any]:
        """The part of `state` that `restore` needs to act only."""
        states = {policy: learner.policy_state() for policy, learner in self.of.items()}
        names = [name for name in BY_POLICY if name not in LEARNING]
        found = {name: {policy: state[name] for policy, state in states.items()} for name in names}
        learners = {
            policy: {"progress": state["progress"], "paused": policy in self._paused}
            for policy, state in states.items()
        }
        found["engine"] |= {policy: self._engine.of[policy].state() for policy in self._agent.frozen}
        if self.leagues:
            found["leagues"] = {policy: league.state() for policy, league in self.leagues.items()}
        return found | {"progress": asdict(self.progress), "learners": learners}

    def check_state(self, held: dict[str, Stored]) -> None:
        """Raise CheckpointError where `restore` cannot continue from these components; nothing is changed."""
        check_progress(held["progress"])
        if "learners" not in held:
            held["progress"].refuse("the progress of each policy beside it")
        learners = held["learners"].fields(self.of)
        engines = held["engine"].fields((*self.of, *self._agent.frozen))
        if self.leagues and "leagues" not in held:
            held["progress"].refuse("the leagues beside it")
        for policy, league in held["leagues"].fields(self.leagues).items() if self.leagues else ():
            self.leagues[policy].check_state(league)
        for policy in self._agent.frozen:
            self._engine.of[policy].check_state(engines[policy])
        parts = {name: held[name].table() for name in BY_POLICY if name in held}
        for policy, learner in self.of.items():
            own = learners[policy].fields(("progress", "paused"))
            own.pop("paused").flag()
            for name, by_policy in parts.items():
                if policy not in by_policy and name in OPTIONAL:
                    continue
                if policy not in by_policy:
                    held[name].refuse(f"{policy!r} in it", f"a table without {policy!r}")
                own[name] = by_policy[policy]
            learner.check_state(own)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed; without its replay, to act only."""
        for policy in self._agent.frozen:
            self._engine.of[policy].restore(state["engine"][policy])
        self.progress = RunProgress(**state["progress"])
        parts = [name for name in BY_POLICY if name in state]
        for policy, learner in self.of.items():
            progress = state["learners"][policy]["progress"]
            own = {name: state[name][policy] for name in parts if policy in state[name]}
            learner.restore(own | {"progress": progress})
        for policy, league in self.leagues.items():
            league.restore(state["leagues"][policy])
        self._load_leagues()
        self._paused = {policy for policy, own in state["learners"].items() if own["paused"]}

    def _time_step(self) -> int:
        """The environment step at which the present time step began."""
        return self.progress.step - self.progress.begun(self.count)

    def _part(self, policy: str, steps: Steps) -> Steps:
        own = self._agent.subsets[policy].steps(steps, policy)
        return replace(own, restarted=own.restarted | True) if policy in self._paused else own
