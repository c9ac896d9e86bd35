"""Recorded data from an environment that is played, or from what a run has collected."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from etude.base import checks, trees
from etude.base.data import Episode
from etude.base.errors import ConfigError
from etude.base.spaces import ACTION_MASK, Box, Hybrid, Spaces
from etude.base.trees import Tree
from etude.envs import action_space_of, as_given, examine, make_environments, make_for_evaluation
from etude.envs.adapter import task_data
from etude.explore import ByAgent, Greedy, Sample
from etude.explore.explorer import with_log_prob
from etude.explore.noise import UniformBox
from etude.losses.distributions import UNMASKED, NumbersAndChoices, of_choices
from etude.multi_agent.joint import AGENTS
from etude.networks.encoding import width
from etude.offline import Dataset, EpisodeRecorder, Writer
from etude.offline.blocks import Columns, split
from etude.protocols import Environments, Explorer
from etude.replay.ring import TERMINATED, TRUNCATED
from etude.rollout import InProcess
from etude.training.description import Environment, environment_source

TOGETHER = 8  # environments that are played side by side


def record(
    env: Any,
    episodes: int,
    actor: Any = None,
    explorer: Explorer | None = None,
    seed: int = 0,
    keep_info: Sequence[str] = (),
    *,
    run: Any = None,
    explore: bool = False,
    task: Any = None,
    output: Writer | None = None,
) -> Dataset:
    """Play exactly `episodes` whole episodes; `offline.write` puts them in a file.

    env: as for `Run`. actor: what acts by `act(observation [N, ...])`, such as `run.actor()`; None takes random
    actions, each allowed one alike, and keeps their log probabilities as `log_prob`.
    explorer: what turns the actor's output into actions; None takes the best ones. The log probabilities of its actions
    are recorded as `log_prob`, where it knows their distribution: off-policy estimation needs them.
    keep_info: names of numbers of `info` that are recorded with the steps, as `info.<name>`.
    run: a `Run` that acts with its present weights, in the place of an actor. explore: as it does in training, at its
        present step; else with the best actions.
    task: given to the environments when episodes begin; see `Run.set_task`. None gives none, whatever the run's is.
    output: writes the episodes as they end, with its shards complete at the end; what is returned is then empty, so
        that more than fits into memory can be recorded.
    """
    if isinstance(episodes, str | PathLike):
        raise ConfigError(
            f"record keeps episodes as data: record(env, episodes, run=run). For a video: run.watch({str(episodes)!r})."
        )
    checks.whole_number("record: episodes", episodes)
    checks.whole_number("record: seed", seed, 0)
    if run is not None and (actor is not None or explorer is not None):
        raise ConfigError("record: a run acts by itself; leave out actor and explorer.")
    if explore and run is None:
        raise ConfigError("record: explore=True takes the explorer of a run; give run=, or an actor and an explorer.")
    if actor is None and explorer is not None:
        raise ConfigError("record: an explorer needs the output of an actor; give one, such as run.actor().")
    count = min(episodes, TOGETHER)
    if run is not None:
        actor, explorer, made = run.actor(explore), run.exploring(count, explore), run.policy.check_environment(env)
    else:
        made = examine(environment_source(Environment(env) if isinstance(env, str) else env)).environment
    explorer = None if explorer is None else with_log_prob(explorer)
    environments = make_environments(made, np.arange(count), run_seed=seed, keep_info=tuple(keep_info))
    if actor is None:
        actor, agents = _RandomActor(environments.spaces), environments.spaces.agents
        explorer = ByAgent(Sample(), [own.action for own in agents.values()]) if agents else Sample()
    source, name = replace(environments.spaces, action=action_space_of(made)), env if isinstance(env, str) else None
    played, kept = _played(environments, episodes, actor, explorer or Greedy(), seed, task), []
    if output is None:
        kept = [episode for some in played for episode in some]
    else:
        try:
            output.begin(source, name)
            for some in played:
                output.write(some)
        finally:
            played.close()
            output.close()
    return Dataset(tuple(kept), source, name)


def play(env: Any, episodes: int, actor: Any, explorer: Explorer, seed: int, task: Any = None) -> tuple[Episode, ...]:
    """Exactly `episodes` whole episodes, played for their rewards. Those of an environment without a time limit are cut
    off after 10,000 steps. Other arguments: see `record`."""
    environments, _ = make_for_evaluation(env, np.arange(min(episodes, TOGETHER)), seed)
    played = _played(environments, episodes, actor, explorer, seed, task)
    return tuple(episode for some in played for episode in some)


def _played(
    environments: Environments, episodes: int, actor: Any, explorer: Explorer, seed: int, task: Any
) -> Generator[list[Episode], None, None]:
    """Exactly `episodes` whole episodes, some at a time. The environments are closed in the end."""
    rollout, recorder = InProcess(environments, actor, explorer, seed), EpisodeRecorder()
    try:
        if task is not None:
            environments.set_task(task_data(task))
        # As many episodes of each environment, so that short ones are not recorded more often than long ones.
        for _ in range(-(-episodes // len(environments.columns))):
            for steps in rollout.collect_episodes(0):
                recorder.add(steps)
            yield recorder.episodes[:episodes]
            episodes -= len(recorder.episodes)
            recorder.episodes.clear()
    finally:
        rollout.close()


def replayed(run: Any) -> Dataset:
    """All episodes that the replay of a `Run` holds and that it collected, the mixture of policies that it learned
    from; the open ones are truncated where they are."""
    ring = run.learner.replay.ring
    rows = ring.oldest(ring.filled)
    reward, kind = ring.outcome(rows)
    newest = np.cumsum(ring.filled)[ring.filled > 0] - 1
    timeout = (kind & TRUNCATED) != 0
    timeout[newest] |= kind[newest] == 0
    columns = Columns(
        ring.observation(rows), ring.actions(rows), reward, (kind & TERMINATED) != 0, timeout, ring.following(rows),
        ring.stored(rows),
    )  # fmt: skip
    episodes, _ = split(columns, "the replay of this run")
    source = Spaces(ring.spaces.observation, action_space_of(run.environment))
    name = as_given(run.environment)
    return Dataset(tuple(episodes), source, name if isinstance(name, str) else None)


class _RandomActor:
    """Acts like agents that know nothing: all logits alike, but for those that an action mask forbids."""

    state_size = 0  # it keeps none

    def __init__(self, spaces: Spaces):
        self._spaces = spaces

    def act(self, observation: Tree) -> Any:
        """A uniform distribution over the actions for [N, ...] observations; of several agents, a tuple of these."""
        if self._spaces.agents is not None:
            return tuple(_RandomActor(own).act(observation[AGENTS][name]) for name, own in self._spaces.agents.items())
        space, mask = self._spaces.action, observation[ACTION_MASK] if self._spaces.masked else UNMASKED
        zeros = np.zeros((len(trees.leaves(observation)[0]), width(space)), np.float32)
        if isinstance(space, Hybrid):
            numbers = width(space.numbers)
            choices: Any = of_choices(space.choices, zeros[:, numbers:], mask)
            return NumbersAndChoices(UniformBox(zeros[:, :numbers]), choices)
        return UniformBox(zeros) if isinstance(space, Box) else of_choices(space, zeros, mask)
