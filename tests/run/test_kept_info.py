"""Numbers of `info` that travel with the steps of a run, and become metrics."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from run_makers import tiny
from run_worlds import Counted
from test_failures_of_runs import LOCKSTEP

import etude
from etude import checkpoint
from etude.base.errors import ConfigError, EnvironmentFault
from etude.base.events import Collected, Warned
from etude.envs import make_environments
from etude.report.records import MetricsRecorder

PLACES = [{}, {"workers": 2}, {"workers": 2, "overlap": True}, LOCKSTEP]
NAMES = ["in process", "pool", "overlap", "lockstep"]


class Informed(Counted):
    """Its info holds the time as `x`, a flag at the end, and `late` only in odd steps."""

    def reset(self, *, seed=None, options=None):
        self.t = 0
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"x": -1.0, "success": False}

    def step(self, action):
        self.t += 1
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {"x": self.t / 10, "success": terminated or truncated, "text": "three"}
        return observation, reward, terminated, truncated, info | ({"late": 1} if self.t % 2 else {})


def collected(run, steps):
    """The extras of all collected steps, in copies, with the rewards and the ends."""
    found, events = [], []
    for event in run.steps(steps):
        events.append(event)
        if isinstance(event, Collected):
            for part in event.steps:
                ended = part.terminated | part.truncated
                extras = {name: part.extras[name].copy() for name in part.extras if name.startswith("info.")}
                found.append({**extras, "ended": ended, "column": part.columns.copy()})
    return found, events


@pytest.mark.parametrize("settings", PLACES, ids=NAMES)
def test_kept_numbers_travel_with_their_steps(settings):
    with tiny(Informed, **settings, keep_info=("x", "success")) as run:
        found, _ = collected(run, 80)
    x = np.concatenate([part["info.x"] for part in found])
    assert x.shape == (20, 4)
    assert x.dtype == np.float32
    np.testing.assert_allclose(x, np.tile(np.arange(1, 11) / 10, 2)[:, None].repeat(4, 1), rtol=1e-6)
    ended = np.concatenate([part["ended"] for part in found])
    np.testing.assert_array_equal(np.concatenate([part["info.success"] for part in found]), ended)


@pytest.mark.parametrize("settings", PLACES, ids=NAMES)
def test_what_is_missing_is_nan_with_one_warning(settings):
    with tiny(Informed, **settings, keep_info=["late"]) as run:
        found, events = collected(run, 80)
    late = np.concatenate([part["info.late"] for part in found])
    assert np.isnan(late).any(1).tolist() == [False, True] * 10
    warned = [event.message for event in events if isinstance(event, Warned) and "late" in event.message]
    assert len(warned) == 1
    assert (
        "info holds no 'late', which keep_info names; it is NaN there. At this step info holds: success, text, x."
        in warned[0]
    )


def test_whole_episodes_keep_them_too():
    for settings in ({}, {"workers": 3}):
        with etude.Run(
            "reinforce",
            Informed,
            environments=3,
            engine="torch",
            execution=etude.Execution(keep_info=("x",)),
            **settings,
        ) as run:
            found, _ = collected(run, 60)
        assert [part["info.x"][-1, 0] for part in found] == [1.0] * len(found)


class InformedSimulator(gym.vector.VectorEnv):
    """Three environments that end after 3, 4 and 5 steps, and reset themselves within the step."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012
    single_observation_space = gym.spaces.Box(-1, 9, (1,), np.float32)
    single_action_space = gym.spaces.Discrete(2)

    def __init__(self, num_envs=1):
        self.num_envs, self.t = num_envs, np.zeros(num_envs)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        self.t[:] = 0
        return self.t[:, None].astype(np.float32), {}

    def step(self, action):
        self.t += 1
        before, ended = self.t.copy(), self.t >= 3 + np.arange(self.num_envs)
        self.t[ended] = 0
        infos = {"x": np.where(ended, -1, before), "odd": before, "_odd": before % 2 == 1}
        if ended.any():
            infos["final_obs"] = [row if end else None for row, end in zip(before[:, None], ended, strict=True)]
            infos["final_info"] = {"x": before, "_x": ended}
        return self.t[:, None].astype(np.float32), np.ones(self.num_envs), ended, np.zeros(self.num_envs, bool), infos


def test_a_simulator_gives_its_arrays():
    with tiny(InformedSimulator, environments=3, vectorization="native", keep_info=("x", "odd")) as run:
        found, _ = collected(run, 60)
    x = np.concatenate([part["info.x"] for part in found])
    np.testing.assert_array_equal(x[:6, 0], [1, 2, 3, 1, 2, 3])
    np.testing.assert_array_equal(x[:6, 2], [1, 2, 3, 4, 5, 1])
    odd = np.concatenate([part["info.odd"] for part in found])
    assert np.isnan(odd[1, 1])
    assert odd[0, 1] == 1


@pytest.mark.parametrize("mode", gym.vector.AutoresetMode)
def test_statistics_that_gymnasium_records_of_episodes_are_read(mode):
    def made(num_envs):
        simulator = gym.make_vec("CartPole-v1", num_envs, "sync", vector_kwargs={"autoreset_mode": mode})
        return gym.wrappers.vector.RecordEpisodeStatistics(simulator)

    environments = make_environments(made, np.arange(3), 0, keep_info=("episode.r", "episode.l"))
    environments.reset()
    length, rng = np.zeros(3), np.random.default_rng(0)
    for _ in range(60):
        _, _, terminated, truncated, _ = environments.step(rng.integers(0, 2, 3))
        length += 1
        ended = terminated | truncated
        np.testing.assert_array_equal(environments.info, np.where(ended, length, np.nan)[:, None].repeat(2, 1))
        length[ended] = 0


class WrongAtTheEnd(Informed):
    def step(self, action):
        *rest, _ = super().step(action)
        return *rest, {"x": [] if rest[2] or rest[3] else 1.0}


def test_a_wrong_number_at_the_last_step_of_an_episode_names_that_episode():
    environments = make_environments(WrongAtTheEnd, np.arange(1), 0, keep_info=("x",))
    environments.reset()
    with pytest.raises(EnvironmentFault, match=r"environment 0, episode 0, step \d+: info\['x'\] is \[\], a list"):
        for _ in range(50):
            environments.step(np.zeros(1, np.int64))


def test_what_is_no_number_is_a_fault_of_the_environment_that_names_it():
    with (
        tiny(Informed, keep_info=("text",)) as run,
        pytest.raises(EnvironmentFault, match=r"info\['text'\] is three, a str; expected one number, for keep_info"),
    ):
        run.train(8)


def test_the_last_value_of_each_episode_is_a_metric():
    recorder, records = MetricsRecorder(40), []
    with tiny(Informed, keep_info=("x", "success", "late")) as run:
        run.train(80, lambda event: records.extend(recorder(event)))
    training = [record for record in records if "rollout/episodes" in record]
    assert [record["rollout/success_mean"] for record in training] == [1.0, 1.0]
    assert [record["rollout/x_max"] for record in training] == [1.0, 1.0]
    assert not any("rollout/late_mean" in record for record in training), "all were NaN"


@pytest.mark.parametrize("settings", [{}, {"workers": 2, "overlap": True}], ids=["in process", "overlap"])
def test_a_checkpoint_gives_them_back(settings, tmp_path):
    with tiny(Informed, keep_info=["x"], **settings) as run:
        run.train(40)
        run.save(tmp_path / "run.etude")
    with etude.load(tmp_path / "run.etude", Informed) as again:
        assert again.execution.keep_info == ("x",)
        found, _ = collected(again, 40)
        np.testing.assert_allclose(np.concatenate([part["info.x"] for part in found])[:10, 0], np.arange(1, 11) / 10)
    with etude.load(tmp_path / "run.etude", Informed, keep_info=("x", "success")) as again:
        again.train(40)
    state = checkpoint.read(tmp_path / "run.etude")
    del state["description"]["setup"]["keep_info"]  # as earlier versions wrote it
    with etude.run.from_state(state, Informed) as again:
        assert again.execution.keep_info == ()
        again.train(40)


def test_keeping_info_changes_no_number_of_a_run():
    with tiny(Informed) as one, tiny(Informed, keep_info=("x",)) as other:
        one.train(120)
        other.train(120)
        for name, weight in one.engine.weights().items():
            np.testing.assert_array_equal(weight, other.engine.weights()[name])


def test_recorded_episodes_hold_them():
    data = etude.record(Informed, 3, keep_info=("x",))
    assert [episode.extras["info.x"][-1] for episode in data.episodes] == [1.0] * 3


@pytest.mark.parametrize("wrong", ["x", 3, ("x", 3), [""]])
def test_names_that_cannot_be_kept_are_refused(wrong):
    with pytest.raises(ConfigError, match=r"keep_info = .*; expected names of numbers in info, as in \('x', 'suc"):
        tiny(keep_info=wrong)


def test_runs_that_collect_no_steps_refuse_to_keep_info():
    with pytest.raises(ConfigError, match=r"keep_info = \('x',\) is read from collected steps; A3C collects none"):
        etude.Run("a3c", "CartPole-v1", execution=etude.Execution(keep_info=("x",)))
