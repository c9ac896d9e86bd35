"""The parts of a run by themselves, for a training loop of one's own."""

from __future__ import annotations

from typing import Any, NamedTuple

from etude.agent import Agent
from etude.base.errors import ConfigError
from etude.protocols import Engine, Explorer, Replay, Rollout
from etude.training.build import exploration
from etude.training.build.agents import agent_for, fitted
from etude.training.build.arguments import environment_for, with_hyperparameters
from etude.training.build.parts import context_for, data_for, engine_for, with_environments
from etude.training.kinds import kind_of
from etude.training.learner import Learner
from etude.training.setup import Setup


class Assembled(NamedTuple):
    """The parts that one agent is trained with. `protocols` describes the first five.

    learner: adds steps to the replay and takes the gradient steps that are due; it holds the replay, the engine and the
    normalisers.
    """

    agent: Agent
    engine: Engine
    replay: Replay
    explorer: Explorer
    rollout: Rollout
    learner: Learner


def assemble(
    algorithm: str | Agent,
    env: Any,
    *,
    total: int,
    config: Any = None,
    data: Any = None,
    explorer: Explorer | None = None,
    setup: Setup | None = None,
    **hyperparameters: Any,
) -> Assembled:
    """The parts that `Run` would train with, for a loop of one's own. Close the rollout in the end.

    total: environment steps that schedules are stretched over. setup: seed, engine, environments, workers and what else
    `Setup` has. Other arguments: see `Run`. Raises ConfigError for algorithms that learn from recorded data alone.
    """
    config = with_hyperparameters(algorithm, env, config, hyperparameters)
    given = environment_for(env, None, None, None)
    name, agent, environment, spaces, _ = fitted(given, lambda spaces: agent_for(algorithm, given, config, spaces))
    _require_rollout(agent)
    agent, sources = data_for(data, agent, environment, spaces)
    _require_rollout(agent)  # others too learn from recorded data alone where there is no more
    exploration.check(agent, explorer, spaces)
    setup, kind = with_environments(setup or Setup(), name, agent, env), kind_of(agent)
    engine = engine_for(agent, spaces, setup)
    context = context_for(agent, engine, environment, setup, sources)
    learner: Any = kind.make_learner(context)
    learner.progress.total = total
    explorer = exploration.explorer_for(agent, spaces, explorer, total, context.count)
    rollout = kind.rollout(context, explorer)
    rollout.load(*learner.exploring_policy())
    return Assembled(agent, engine, learner.replay, explorer, rollout, learner)


def _require_rollout(agent: Agent) -> None:
    if not kind_of(agent).steps_environments:
        raise ConfigError(f"{type(agent).__name__} learns from recorded data alone: there is no rollout. Use a Run.")
