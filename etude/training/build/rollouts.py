"""What acts and collects, with which weights, and where gradients come from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from etude.agent import Agent
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces, zeros
from etude.config import (
    EpisodesConfig,
    OffPolicyConfig,
)
from etude.engines.evolution import FromReturns, PerturbedActor
from etude.engines.gradients import FromLosses, FromRollouts
from etude.engines.numpy import NumpyEngine
from etude.engines.perturbed import Perturbed
from etude.envs import choose_vectorization, make_environments
from etude.explore import ByAgent, Greedy
from etude.protocols import Engine, Explorer, Rollout
from etude.rollout import InProcess, LockstepPool, Pool, PoolOptions
from etude.training.build.actor_learners import async_gradients_for
from etude.training.build.actor_priorities import JudgingActor
from etude.training.build.setup import Setup


def rollout_for(environment: Any, agent: Agent, engine: Engine, setup: Setup, explorer: Explorer) -> Rollout:
    """The rollout that the setup asks for. Where NumPy cannot act, the engine does, in this process."""
    count = setup.environments
    assert count is not None
    # Decided here, for all of them: a worker would decide for its own part.
    waits = agent.learns_from in ("gradients", "scores") and setup.vectorization == "auto"
    vectorization = choose_vectorization(environment, count, "loop" if waits else setup.vectorization)
    make = functools.partial(make_environments, environment, run_seed=setup.seed, vectorization=vectorization)
    if agent.learns_from == "gradients":
        return async_gradients_for(make, agent, engine, explorer, setup, vectorization)
    judged = judges(agent, engine)
    make_actor: Callable[[], Any] = functools.partial(JudgingActor if judged else NumpyEngine, agent, engine.spaces)
    acting_here = Perturbed(engine) if engine.structure.noisy else engine
    if agent.learns_from == "scores":
        _check_perturbed(agent, engine, vectorization)
        make_actor = functools.partial(PerturbedActor, agent, engine.spaces, setup.seed)
    if setup.workers == 0:
        actor = make_actor() if engine.exportable else acting_here
        return InProcess(make(np.arange(count)), actor, explorer, setup.seed, judged)
    if setup.overlap and not engine.exportable:
        raise ConfigError(
            "overlap=True needs a policy that NumPy can compute in the workers; convolutions and modules of your own "
            "act in this process, in step with the workers. Leave overlap off."
        )
    if setup.overlap and isinstance(agent.config, EpisodesConfig):
        raise ConfigError(
            f"overlap=True collects with weights that are one phase old; {type(agent).__name__} learns from whole "
            "episodes of its present policy. Leave overlap off."
        )
    options = PoolOptions(overlap=setup.overlap, actor_priorities=judged)
    if engine.exportable:
        return Pool(make, make_actor, explorer, setup.seed, count, setup.workers, options)
    return LockstepPool(make, acting_here, explorer, setup.seed, count, setup.workers, options)


def _check_perturbed(agent: Agent, engine: Engine, vectorization: str) -> None:
    name = type(agent).__name__
    if not engine.exportable:
        raise ConfigError(
            f"{name} acts with weights of its own in each environment, which NumPy computes; it cannot for "
            "convolutions and modules of your own. Use an Mlp."
        )
    if vectorization == "native":
        raise ConfigError(
            f"{name} needs environments that wait for each other's episodes to end; those of a native simulator do "
            "not. Leave vectorization on auto, or use loop."
        )


def best_for(spaces: Spaces) -> Explorer:
    """What takes the best actions."""
    return Greedy() if spaces.agents is None else ByAgent(Greedy(), [own.action for own in spaces.agents.values()])


def together(agent: Agent, count: int) -> int:
    """How many of so many environments are collected from in one call."""
    return 1 if agent.learns_from == "gradients" else count


def judges(agent: Agent, engine: Engine) -> bool:
    """Whether actors judge what they collect: where the config asks for it, and NumPy can."""
    config = agent.config
    return engine.exportable and isinstance(config, OffPolicyConfig) and config.actor_priorities


def acting_weights(agent: Agent, engine: Engine) -> tuple[str, ...]:
    """The names of the weights that rollouts need: those that acting reads, all where actors judge what they collect or
    differentiate; none where the engine itself acts."""
    if agent.learns_from == "gradients":
        return tuple(engine.structure.initial)
    if not engine.exportable:
        return ()
    if judges(agent, engine):
        return tuple(engine.structure.initial)
    return NumpyEngine(agent, engine.spaces).read_by_acting(zeros(engine.spaces.observation, 1))


def gradients_for(agent: Agent, engine: Engine, seed: int, count: int) -> FromLosses | FromReturns | FromRollouts:
    """Where the gradients of a learning phase come from."""
    if agent.learns_from == "gradients":
        return FromRollouts(engine)
    return FromReturns(engine, seed, count) if agent.learns_from == "scores" else FromLosses(engine)
