"""What the tests of agents of one's own have in common: the agents of each framework, batches, engines."""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace

import numpy as np

from etude.base.data import Batch
from etude.base.spaces import Box, Discrete, Spaces
from etude.solo.engines import AgentInterface, make_engine
from etude.solo.learner import unchanged

S, A = 3, 2
SPACES = Spaces(Box(-1.0, 1.0, (S,), np.float32), Discrete(A))
CONTINUOUS = Spaces(SPACES.observation, Box(-1.0, 1.0, (1,), np.float32))


def agents_of(engine_name):
    """The module of agents for an engine."""
    if engine_name == "torch":
        return importlib.import_module("solo_torch_agents")
    os.environ["KERAS_BACKEND"] = engine_name
    return importlib.import_module("solo_keras_agents")


def arguments(batch):
    return batch.observation, batch.action, batch.next_observation, batch.reward, 1 - batch.discount


def optimizers_for(agent, framework, rate=1e-2):
    """One Adam for each list in `param`."""
    param = list(agent.param)
    if isinstance(param[0], list):
        return [framework.optimizer(group, rate) for group in param]
    if type(param[0]).__name__ == "generator":
        agent.param = param = [list(group) for group in param]
        return [framework.optimizer(group, rate) for group in param]
    return framework.optimizer(param, rate)


def engine_for(agent, engine_name, optimizers=None, **changes):
    """An engine; changes: fields of AgentInterface, or seed and jit_compile."""
    framework = agents_of(engine_name)
    settings = {name: changes.pop(name) for name in ("seed", "jit_compile") if name in changes}
    calling = AgentInterface(**{"spaces": SPACES, "loss_arguments": arguments, "convert": unchanged} | changes)
    optimizers = optimizers_for(agent, framework) if optimizers is None else optimizers
    kind = "torch" if engine_name == "torch" else "keras"
    return make_engine(agent, optimizers, calling, framework=kind, **settings)


def batches(k=4, n=8, seed=0, continuous=False):
    """k random batches of n transitions."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.standard_normal((k, n, *shape)).astype(np.float32)  # noqa: E731
    action = np.tanh(normal(1)) if continuous else rng.integers(0, A, (k, n))
    done = (rng.random((k, n)) < 0.2).astype(np.float32)
    weight = rng.uniform(0.5, 1.0, (k, n)).astype(np.float32)
    return Batch(normal(S), action, normal(), 1 - done, normal(S), weight, np.zeros((k, n), np.int64))


def agent_of(framework, **attributes):
    """An agent of which only these attributes matter."""
    return SimpleNamespace(**attributes)
