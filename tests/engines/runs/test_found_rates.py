"""Learning-rate ramps on runs: the whole state of the run is left as it was."""

import copy

import numpy as np
import pytest
from run_cases import differences
from study_worlds import TINY, Pointer

import etude
from etude.base.errors import ConfigError, EnvironmentFault
from etude.optimizers import SGD, Adam
from etude.tuning import LRFinder, OptFinder


def new(engine_name, algorithm="ppo", **more):
    config = {"config": TINY} if algorithm == "ppo" else {}
    return etude.Run(algorithm, Pointer, engine=engine_name, environments=2, **config, **more)


@pytest.mark.variant
@pytest.mark.parametrize("algorithm", ["ppo", pytest.param("dqn", marks=pytest.mark.variant)])
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


@pytest.mark.variant
def test_updates_learn_with_the_rates_of_the_ramp(engine_name):
    run = new(engine_name)
    finder = LRFinder(run)
    finder.find(N=24, start_lr=1e-8, end_lr=100.0)
    assert np.abs(finder.losses[-3:]).max() > 10 * np.abs(finder.losses[:12]).max()
    with pytest.raises(ConfigError, match="of one's own"):
        finder.find(train_loss=object())
    run.close()


class Breaks(Pointer):
    """Every environment breaks in its fourth episode."""

    episodes = 0

    def reset(self, **options):
        self.episodes += 1
        if self.episodes == 4:
            raise OSError("the simulator is gone")
        return super().reset(**options)


@pytest.mark.variant
def test_an_environment_that_breaks_leaves_the_run_as_it_was(engine_name):
    run = etude.Run("ppo", Breaks, engine=engine_name, environments=2, config=TINY)
    run.train(16)
    before = copy.deepcopy(run.state())
    with pytest.raises(EnvironmentFault, match="simulator is gone"):
        LRFinder(run).find(N=1000)
    assert differences(before, run.state()) == []
    run.close()


@pytest.mark.variant
def test_a_run_without_updates_by_losses_is_refused(engine_name):
    run = new(engine_name, "es")
    with pytest.raises(ConfigError, match="study"):
        LRFinder(run).find(N=5)
    run.close()


@pytest.mark.variant
def test_optimizers_are_compared_from_the_weights_of_the_run(engine_name):
    run = new(engine_name)
    run.train(64)
    before = copy.deepcopy(run.state())
    finder = OptFinder(run, [SGD(), Adam(), (Adam(), 1e-3), (SGD(), 1e38)])
    here = finder.find(steps=64, jobs=1)
    assert differences(before, run.state()) == []
    assert list(here["failed"]) == [3] and [len(here["losses"][i]) for i in range(3)] == [4, 4, 4]
    assert here["losses"][1][0] == here["losses"][2][0] != here["losses"][2][1]  # the same weights, and other rates
    assert here["best_reward"] == max(np.mean(here["rewards"][i]) for i in range(3))
    assert here["best_opt"] is finder.optimizers[here["best"]]
    there = finder.find(steps=64, jobs=2)
    assert there["losses"] == here["losses"] and there["rewards"] == here["rewards"]
    run.close()


@pytest.mark.variant
def test_optimizers_of_other_kinds_and_arguments_of_other_agents_are_refused(engine_name):
    run = new(engine_name)
    with pytest.raises(ConfigError, match="etude.optimizers"):
        OptFinder(run, ["adam"]).find()
    with pytest.raises(ConfigError, match="rate above 0"):
        OptFinder(run, [(Adam(), -1.0)]).find()
    with pytest.raises(ConfigError, match="of one's own"):
        OptFinder(run, [Adam()]).find(processes=2)
    run.close()
