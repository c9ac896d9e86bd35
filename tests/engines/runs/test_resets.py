"""Networks that start again while the replay stays (`reset_every`)."""

import numpy as np
import pytest

import etude
from etude.base.errors import ConfigError

SMALL = {"network": etude.Mlp((8,)), "learning_starts": 10, "batch_size": 8}


def made(engine_name, algorithm="sac", **changes):
    env = "Pendulum-v1" if algorithm == "sac" else "CartPole-v1"
    return etude.Run(algorithm, env, engine=engine_name, seed=3, **{**SMALL, **changes})


def test_all_networks_and_the_optimizer_start_again_and_the_replay_stays(engine_name, tmp_path):
    with made(engine_name, reset_every=20, normalize_observation=True, run_dir=tmp_path) as run:
        first = run.engine.weights()
        steps = run.train(25).totals["gradient_steps"]
        assert steps < 20
        before = run.engine.state()
        run.train(20 - steps)  # a gradient step for each: the last one resets
        state, weights = run.engine.state(), run.engine.weights()
        assert state["step"] == 0 and len(run.learner.replay) == 25 + 20 - steps
        for name, value in weights.items():
            if name.startswith("normaliser."):
                assert not np.array_equal(value, first[name])
            elif value.std() > 0:
                assert not np.allclose(value, before["values"][name]) and not np.array_equal(value, first[name]), name
        assert np.array_equal(weights["critic.dense0.weight"], weights["critic_target.dense0.weight"])
        for moment in run.engine.layout.moments:
            assert not any(np.any(value) for value in state[moment].values())
        run.train(30)
    with etude.load(tmp_path) as again, made(engine_name, reset_every=20, normalize_observation=True) as whole:
        whole.train(run.step)
        for name, value in whole.engine.weights().items():
            assert np.array_equal(value, again.engine.weights()[name]), name


def test_modules_whose_first_weights_nobody_knows_are_refused(engine_name):
    if engine_name != "torch":
        pytest.skip("a module of torch")
    import torch

    with pytest.raises(ConfigError, match="reset_every = 5, and a network is a module of your own"):
        made(engine_name, "dqn", network=lambda: torch.nn.Linear(4, 2), reset_every=5)
    with pytest.raises(ConfigError, match="reset_every"):
        etude.config("dqn", reset_every=0)
