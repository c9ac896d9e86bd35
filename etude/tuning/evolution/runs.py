"""Mutated copies of runs: the child goes on from the whole state of its parent, with another config."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from etude.base import trees
from etude.base.checks import Stored
from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.engines.activations import ActivationSample, in_numpy
from etude.engines.numpy import NumpyEngine
from etude.engines.parameter_layout import ParameterLayout
from etude.envs import make_environments
from etude.replay import Buffer, MixedReplay
from etude.rollout import InProcess
from etude.run import Run, from_state
from etude.training.learner import Learner
from etude.tuning.evolution.generations import Tournament
from etude.tuning.evolution.mutations import Mutations
from etude.tuning.evolution.structure import PARAMETERS, Mutation
from etude.tuning.evolution.transfer import MEASURED, transfer

ROWS = 256  # of a sample
ENVIRONMENTS = 8  # that a sample is collected from
SAMPLE = 15_485_863  # added to a run's seed for the episodes of samples


def mutated(run: Run, mutations: Mutations, rng: np.random.Generator, seed: int | None = None) -> tuple[Run, Mutation]:
    """(a copy of a run after one mutation, what changed). The run stays as it is.

    The copy has the run's step, replay, normalisers, target networks and optimizer moments. seed: of the copy; None
    draws one. Raises ConfigError for a run of several policies, and as `Mutations.check`.
    """
    config, mutation = mutations(check_one_policy(run).agent.config, rng)
    drawn = int(rng.integers(2**31))
    return copied(run, config, mutation, drawn if seed is None else seed), mutation


def copied(run: Run, config: Any, mutation: Mutation, seed: int) -> Run:
    """A copy of a run with the config that a mutation of its own led to; see `mutated`."""
    before = check_one_policy(run).agent.config
    made = run.described().learning(config, run.agent)
    own = {"agent": made.algorithm} if made.config is None else {"config": config}

    def fit(child: Run, state: dict[str, Any]) -> dict[str, Any]:
        return fitted(child, state, before, mutation)

    return from_state(run.state(), run.environment, trust=True, fit=fit, seed=seed, explorer=run.explorer, **own)


class Descendant(NamedTuple):
    """A member of the next generation. parent: its place in the generation before. mutation: what changed."""

    run: Run
    parent: int
    mutation: Mutation


def next_generation(
    runs: Sequence[Run],
    histories: Sequence[Sequence[float]],
    tournament: Tournament,
    mutations: Mutations,
    rng: np.random.Generator,
) -> list[Descendant]:
    """The runs that take the place of these: with elitism the best one itself, and mutated copies of the parents that
    win tournaments. The other runs are closed.

    histories: the fitness values of each run so far, those of its ancestors included.
    """
    parents = tournament(histories, rng)
    born = []
    for place, parent in enumerate(parents):
        if place == 0 and tournament.elitism:
            born.append(Descendant(runs[parent], parent, Mutation()))
        else:
            child, mutation = mutated(runs[parent], mutations, rng)
            born.append(Descendant(child, parent, mutation))
    for run in runs:
        if all(run is not each.run for each in born):
            run.close()
    return born


def fitted(child: Run, state: dict[str, Any], before: Any, mutation: Mutation) -> dict[str, Any]:
    """The state of the parent's run as one that the child restores. before: the parent's config."""
    engine, replay = check_one_policy(child).engine, check_one_policy(child).replay
    layout = engine.layout
    assert isinstance(layout, ParameterLayout)
    ring = state["replay"].get("ring", {})
    if isinstance(replay, Buffer) and "filled" in ring and not ring["filled"].any():
        own = replay.ring.state()  # made for a recurrent state of the child's size
        state = {**state, "replay": {**state["replay"], "ring": own}}
    if not in_numpy(layout):  # modules of the user's own, whose architecture no mutation changes
        return {**state, "engine": transfer(state["engine"], layout, layout, mutation)}
    agent = copy.copy(child.agent)
    agent.config = before
    parent = NumpyEngine(agent, engine.spaces)
    parent.load(state["engine"]["values"])
    if parent.state_size != engine.state_size:  # the rollout begins anew
        state = {name: part for name, part in state.items() if name != "waiting"}
    sample = sample_from(child, state, parent) if mutation.kind in (*MEASURED, PARAMETERS) else None
    return {**state, "engine": transfer(state["engine"], parent.layout, layout, mutation, sample)}


def sample_from(run: Run, state: dict[str, Any], actor: Any) -> ActivationSample:
    """What activations are measured on: a batch of the saved replay. Where that is empty, as on-policy replays are
    between two learning phases, observations of steps that the actor takes, on environments of their own."""
    replay, length = check_one_policy(run).replay, run.agent.config.example_length
    if "replay" in state:
        replay.check_state(Stored(state["replay"], "replay"))
        replay.restore(state["replay"])
    if len(replay) >= ROWS:
        batch = _first(replay.sample(1, max(1, ROWS // length)))
        observation = batch.observation
        if "mine" in batch.extras:  # whole games, which losses read; what acts reads windows
            held: Any = next(iter(replay.buffers.values())) if isinstance(replay, MixedReplay) else replay
            observation = held.ring.observation(held.sample(1, ROWS).index[0])
        elif length > 1:
            observation = _flat(observation)
        return ActivationSample(observation, batch)
    seed = run.setup.seed + SAMPLE
    environments = make_environments(run.environment, np.arange(ENVIRONMENTS), run_seed=seed)
    rollout = InProcess(environments, actor, run.exploring(ENVIRONMENTS), seed)
    try:
        return ActivationSample(_flat(rollout.collect(ROWS // ENVIRONMENTS, state["progress"]["step"]).observation))
    finally:
        rollout.close()


def _flat(observation: trees.Tree) -> trees.Tree:
    """[A, B, ...] as [A * B, ...]."""
    return trees.map(lambda x: x.reshape(-1, *x.shape[2:]), observation)


def _first(batches: Batch) -> Batch:
    """The first of stacked batches."""
    arrays = {field.name: getattr(batches, field.name) for field in dataclasses.fields(batches)}
    first: dict[str, Any] = {
        name: None if x is None else trees.map(lambda own: own[0], x) for name, x in arrays.items()
    }
    return Batch(**first)


def check_one_policy(run: Run) -> Learner:
    """The learner of a run; ConfigError where it has several policies of different algorithms."""
    if not isinstance(run.learner, Learner):
        raise ConfigError(
            "Evolution mutates runs of one algorithm, and this one trains a dict of policies. Evolve an algorithm for "
            "several agents, such as maddpg, matd3 or mappo."
        )
    return run.learner
