"""Learning-rate ramps on runs: the whole state of the run is left as it was."""

import copy

import numpy as np
import pytest
from run_cases import differences
from study_worlds import TINY, Pointer

import etude
from etude.base.errors import ConfigError
from etude.tuning import LRFinder


def new(engine_name, algorithm="ppo", **more):
    config = {"config": TINY} if algorithm == "ppo" else {}
    return etude.Run(algorithm, Pointer, engine=engine_name, environments=2, **config, **more)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_ramp_leaves_a_run_as_it_was(engine_name, algorithm, tmp_path):
    small = {} if algorithm == "ppo" else {"learning_starts": 16, "batch_size": 8, "network": etude.Mlp((8,))}
    run, untouched = (new(engine_name, algorithm, **small, run_dir=tmp_path / str(i)) for i in range(2))
    for each in (run, untouched):
        each.train(64)
    before, files = copy.deepcopy(run.state()), sorted(tmp_path.rglob("*"))
    finder = LRFinder(run)
    finder.find(N=10, start_lr=1e-4, end_lr=1.0, steps=2_000)
    assert len(finder.losses) == 10 and np.allclose(finder.rates[1:] / finder.rates[:-1], 10**0.4)
    assert run.step == 64 and sorted(tmp_path.rglob("*")) == files
    assert differences(before, run.state()) == []
    for each in (run, untouched):
        each.train(64)
        each.close()
    left, right = run.state(), untouched.state()
    for state in (left, right):
        state["progress"]["seconds"] = 0.0
    assert differences(left, right) == []


def test_updates_learn_with_the_rates_of_the_ramp(engine_name):
    run = new(engine_name)
    finder = LRFinder(run)
    finder.find(N=24, start_lr=1e-8, end_lr=100.0)
    assert np.abs(finder.losses[-3:]).max() > 10 * np.abs(finder.losses[:12]).max()
    with pytest.raises(ConfigError, match="of one's own"):
        finder.find(train_loss=object())
    run.close()


def test_a_run_without_updates_by_losses_is_refused(engine_name):
    run = new(engine_name, "es")
    with pytest.raises(ConfigError, match="study"):
        LRFinder(run).find(N=5)
    run.close()
