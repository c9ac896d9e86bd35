"""The moments of other weights, or none, are refused before an engine takes them: torch ended the process with some."""

import copy

import numpy as np
import pytest

from etude import Mlp, Run
from etude.algorithms import DQNConfig
from etude.base.errors import CheckpointError

NAME = "q.dense0.weight"


def trained(engine_name):
    config = DQNConfig(network=Mlp((4,)), learning_starts=8, train_every=8, batch_size=8, buffer_size=100)
    run = Run("dqn", "CartPole-v1", config=config, engine=engine_name, seed=1)
    run.train(16)
    return run


WRONG = {
    "shorter": lambda x: x[:-1],
    "longer": lambda x: np.concatenate([x, x]),
    "of the same size": lambda x: x.reshape(2, -1),
    "flat": lambda x: x.reshape(-1),
    "one number": lambda x: x.reshape(-1)[0],
    "none": lambda x: x[:0],
    "whole numbers": lambda x: x.astype(np.int64),
    "text": lambda x: "moments",
    "not finite": lambda x: x + np.nan,
    "infinite": lambda x: x + np.inf,
}


def test_wrong_moments_and_weights_are_refused_and_the_engine_goes_on(engine_name):
    with trained(engine_name) as run:
        good = copy.deepcopy(run.state())
        for part in ("first", "second", "values"):
            for what, change in WRONG.items():
                state = copy.deepcopy(good)
                state["engine"][part][NAME] = change(state["engine"][part][NAME])
                with pytest.raises(CheckpointError, match=f"engine/{part}/{NAME}"):
                    run.restore(state)
                    pytest.fail(f"{part} {what}")
            state = copy.deepcopy(good)
            state["engine"][part]["q.other"] = state["engine"][part].pop(NAME)
            with pytest.raises(CheckpointError, match=f"engine/{part}"):
                run.restore(state)
        state = copy.deepcopy(good)
        state["engine"]["second"][NAME] = -np.abs(state["engine"]["second"][NAME]) - 1
        with pytest.raises(CheckpointError, match="expected numbers from 0"):
            run.restore(state)
        run.train(16)
        assert all(np.isfinite(value).all() for value in run.engine.weights().values())


def test_moments_of_another_width_are_taken_as_the_engines_own(engine_name):
    with trained(engine_name) as run:
        state = copy.deepcopy(run.state())
        for part in ("values", "first", "second"):
            state["engine"][part] = {name: x.astype(np.float64) for name, x in state["engine"][part].items()}
        run.restore(state)
        run.train(16)
        assert all(value.dtype == np.float32 for value in run.engine.weights().values())
