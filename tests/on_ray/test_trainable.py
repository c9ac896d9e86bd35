"""Runs as trials of Ray Tune."""

import time

import numpy as np
import pytest
from study_worlds import TINY, Pointer

import etude
from etude.base.errors import ConfigError

tune = pytest.importorskip("ray.tune")
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining  # noqa: E402

pytestmark = pytest.mark.usefixtures("local_ray")


class Paying(Pointer):
    """Without pay, every return is 0."""

    def __init__(self, pay=1.0):
        self.pay = pay

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, self.pay * (1 + reward), *rest


TRIAL = {
    "algorithm": "ppo", "env": Paying, "config": TINY, "engine": "torch", "environments": 2, "steps": 128,
    "evaluate_every": 32, "evaluate_episodes": 2,
}  # fmt: skip


class Sleeping(Paying):
    """Takes at most 256 steps per second."""

    def step(self, action):
        time.sleep(1 / 256)
        return super().step(action)


class Watched(etude.ray.Trainable):
    """Its results hold the rate that the engine was called with last, and where the trial was loaded."""

    loaded_at = -1

    def load_checkpoint(self, checkpoint_dir):
        super().load_checkpoint(checkpoint_dir)
        self.loaded_at = self._run.step

    def step(self):
        learn, rates = self._made().engine.learn, []

        def watched(batches, hyper):
            rates.append(float(hyper["learning_rate"]))
            return learn(batches, hyper)

        self._run.engine.learn = watched
        result = super().step()
        self._run.engine.learn = learn
        return {**result, "rate": rates[-1], "loaded_at": self.loaded_at}


def tuned(space, folder, trainable=etude.ray.Trainable, **how):
    """Trials one after the other in one actor."""
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 2}),
        param_space={**TRIAL, **space},
        tune_config=tune.TuneConfig(metric="eval/mean_reward", mode="max", reuse_actors=True, **how),
        run_config=tune.RunConfig(storage_path=str(folder), name="tuned", verbose=0),
    )
    return tuner.fit()


def test_a_trial_that_is_reset_goes_on_from_a_checkpoint_with_its_own_rate(tmp_path):
    first = Watched({**TRIAL, "learning_rate": 0.01})
    first.train()
    first.save_checkpoint(str(tmp_path))
    before = {name: value.copy() for name, value in first._run.engine.weights().items()}
    straight = first.train()
    assert straight["rate"] == pytest.approx(0.01) and straight["timesteps_total"] == 64

    assert first.reset({**TRIAL, "learning_rate": 0.01, "seed": np.int64(3)})
    first.load_checkpoint(str(tmp_path))
    after = first._run.engine.weights()
    assert all(np.array_equal(before[name], after[name]) for name in before) and first._run.execution.seed == 3

    assert first.reset({**TRIAL, "learning_rate": np.float64(0.02)})
    first.load_checkpoint(str(tmp_path))
    copied = first.train()
    assert copied["rate"] == pytest.approx(0.02) and copied["step"] == 64 and not copied["done"]
    with etude.load(tmp_path / "run.etude", env=Paying) as run:
        assert run.step == 32
    first.stop()


def test_the_steps_per_second_of_an_iteration_are_those_of_its_training():
    trial = etude.ray.Trainable({**TRIAL, "env": Sleeping, "environments": 1, "steps": 32})
    result = trial.train()
    trial.stop()
    assert result["step"] == 32 and 0 < result["time/fps"] <= 256


@pytest.mark.long
def test_asha_stops_the_worse_of_two_trials(tmp_path):
    scheduler = ASHAScheduler(time_attr="timesteps_total", max_t=128, grace_period=32, reduction_factor=2)
    results = tuned({"env_args": tune.grid_search([{"pay": 1.0}, {"pay": 0.0}])}, tmp_path, scheduler=scheduler)
    assert not results.errors
    assert {result.config["env_args"]["pay"]: result.metrics["step"] for result in results} == {1.0: 128, 0.0: 32}
    assert results.get_best_result().metrics["timesteps_total"] == 128


@pytest.mark.long
def test_a_copy_of_population_based_training_learns_with_its_changed_rate(tmp_path):
    scheduler = PopulationBasedTraining(
        time_attr="timesteps_total", perturbation_interval=32, quantile_fraction=0.5, resample_probability=0.0,
        hyperparam_mutations={"learning_rate": tune.loguniform(1e-4, 1e-1)}, synch=True,
    )  # fmt: skip
    space = {"env_args": tune.grid_search([{"pay": 0.0}, {"pay": 1.0}]), "learning_rate": 0.01, "steps": 64}
    results = tuned(space, tmp_path, Watched, scheduler=scheduler)
    assert not results.errors
    copied, parent = (result.metrics for result in results)
    assert copied["config"]["env_args"] == {"pay": 1.0} and copied["loaded_at"] == 32 and copied["step"] == 64
    assert copied["rate"] == pytest.approx(copied["config"]["learning_rate"]) != pytest.approx(0.01)
    assert parent["rate"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": None}, "expected algorithm and env"),
        ({"learning_rat": 0.1}, "learning_rat"),
        ({"steps": None}, "no preset"),
        ({"evaluate_every": 50}, "does not divide"),
        ({"learning_rate": -1.0}, "learning_rate"),
    ],
)
def test_a_config_that_no_run_can_be_made_from_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        etude.ray.Trainable({**TRIAL, **changes})
