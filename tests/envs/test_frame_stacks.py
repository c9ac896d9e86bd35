"""`frame_stack`: observations of the last frames, stacked by etude, of which the replay stores each once."""

import copy
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import FrameStackObservation
from run_cases import differences
from space_cases import Showing

import etude
from etude import Conv, Mlp, Run, cli
from etude.base import trees
from etude.base.errors import CheckpointError, ConfigError, DataError, SpaceError
from etude.envs import configured, make_environments
from etude.presets import POINT
from etude.training.description import Environment

SMALL = {"learning_starts": 16, "train_every": 8, "batch_size": 8, "buffer_size": 100}
CONV = Conv(((4, 4, 2), (8, 3, 1)), (16,))


class Film(gym.Env):
    """Noise to look at, in episodes of 3 to 9 steps of which some terminate and some are truncated."""

    action_space = gym.spaces.Discrete(3)

    def __init__(self, space=None):
        self.observation_space = copy.deepcopy(SPACES["grey images"] if space is None else space)  # with its generator

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.left = int(self.np_random.integers(3, 10))
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        ends = self.left == 0
        return self.observation_space.sample(), float(action), ends and bool(action), ends and not action, {}


SPACES = {
    "grey images": gym.spaces.Box(0, 255, (12, 12), np.uint8),
    "colours": gym.spaces.Box(0, 255, (12, 12, 3), np.uint8),
    "vectors": gym.spaces.Box(-1, 1, (3,), np.float64),
    "single numbers": gym.spaces.Box(-1, 1, (), np.float32),
    "one of several": gym.spaces.Discrete(4, start=2),
    "several of several": gym.spaces.MultiDiscrete([3, 2]),
    "switches": gym.spaces.MultiBinary(3),
    "nested": gym.spaces.Dict(
        camera=gym.spaces.Box(0, 255, (12, 12), np.uint8),
        rest=gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,), np.float32)]),
    ),
}


class Menu(Film):
    """Only some actions are legal, those that its action mask says."""

    def __init__(self):
        parts = {"dish": gym.spaces.Box(0, 1, (2,), np.float32), "action_mask": gym.spaces.MultiBinary(3)}
        super().__init__(gym.spaces.Dict(parts))

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        return self._legal(observation), info

    def step(self, action):
        observation, *rest = super().step(action)
        return self._legal(observation), *rest

    def _legal(self, observation):
        return {**observation, "action_mask": np.int8([1, self.left % 2, self.left % 3 == 0])}


def run_of(env, stack, **more):
    return Run("dqn", env, **{"engine": "torch", "seed": 2, "environments": 2, **SMALL, "frame_stack": stack, **more})


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_stacks_equal_those_of_gymnasium_from_the_first_observation_to_the_final_ones(space):
    env, columns = partial(Film, space), np.arange(3)
    ours = make_environments(configured(env, None, None, 4), columns, run_seed=1)
    theirs = make_environments(configured(env, None, [partial(FrameStackObservation, stack_size=4)]), columns, 1)
    assert ours.spaces == theirs.spaces
    seen, expected, ends = ours.reset(), theirs.reset(), 0
    for t in range(30):
        trees.map(np.testing.assert_array_equal, seen, expected)
        action = np.full(3, t % 3)
        (seen, *_, final), (expected, *_, finally_expected) = ours.step(action), theirs.step(action)
        assert final.keys() == finally_expected.keys()
        ends += len(final)
        trees.map(np.testing.assert_array_equal, tuple(final.values()), tuple(finally_expected.values()))
    assert ends > 6


@pytest.mark.parametrize(("space", "network"), [(SPACES["grey images"], CONV), (SPACES["vectors"], Mlp((8,)))])
def test_the_replay_stores_each_frame_once_and_learns_what_it_would_from_whole_stacks(space, network):
    env, wrapper = partial(Film, space), partial(FrameStackObservation, stack_size=4)
    with run_of(env, 4, network=network, n_step=3) as ours, run_of(env, 1, network=network, n_step=3,
                                                                   wrappers=[wrapper]) as whole:  # fmt: skip
        for run in (ours, whole):
            run.train(150, evaluate_every=50, evaluate_episodes=2)  # more steps than the replay stores
        once, four = (run.learner.replay.ring.observations for run in (ours, whole))
        assert once.inner.kept.shape[1:] == space.shape and four.kept.shape[1:] == (4, *space.shape)
        assert once.inner.kept.nbytes < 0.3 * four.kept.nbytes
        batch, expected = (run.learner.replay.sample(2, 64) for run in (ours, whole))
        for name in ("observation", "next_observation", "action", "reward", "discount"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name))
        assert not differences(ours.engine.state(), whole.engine.state())
        assert ours.evaluate(3).returns == whole.evaluate(3).returns


@pytest.mark.parametrize("algorithm", ["ppo", "r2d2", "es"])
def test_other_ways_to_learn_see_the_same_stacks(algorithm):
    small = {"environments": 2, "engine": "torch", "seed": 1}
    ours = Run(algorithm, Environment("CartPole-v1", frame_stack=3), **small)
    theirs = Run(
        algorithm, Environment("CartPole-v1", wrappers=[partial(FrameStackObservation, stack_size=3)]), **small
    )
    for run in (ours, theirs):
        run.train(80)
    assert not differences(ours.engine.state(), theirs.engine.state())


@pytest.mark.parametrize("env", ["FrozenLake-v1", partial(Film, SPACES["nested"])])
def test_stacks_of_single_numbers_are_stored_whole(env):
    with run_of(env, 3, n_step=2) as run:
        run.train(40)
        batch = run.learner.replay.sample(1, 4)
        assert {leaf.shape[:3] for leaf in trees.leaves(batch.observation)} == {(1, 4, 3)}


def test_an_action_mask_is_that_of_the_newest_frame():
    environments = make_environments(configured(Menu, None, None, 3), np.arange(1), run_seed=1)
    assert environments.spaces.masked and environments.spaces.observation["action_mask"].shape == (3,)
    seen = environments.reset()
    while True:
        seen, *_, final = environments.step(np.zeros(1, np.int64))
        left = environments._envs[0].unwrapped.left
        assert seen["action_mask"].tolist() == [[1, left % 2, left % 3 == 0]] and seen["dish"].shape == (1, 3, 2)
        if final:
            break
    with run_of(Menu, 3, network=Mlp((4,))) as run:
        run.train(40)
        assert run.learner.replay.ring.observations.inner.kept["action_mask"].shape[1:] == (3,)


def test_act_takes_single_frames_and_keeps_the_last_ones():
    with run_of(Film, 3, network=CONV, learning_starts=1_000) as run:
        env = FrameStackObservation(Film(), 3)
        for seed in range(3):
            stack, first = env.reset(seed=seed)[0], True
            for _ in range(3):
                best = int(run.engine.act(stack[None]).argmax())
                assert run.act(stack[-1], first=first) == best
                stack, first = env.step(best)[0], False
        with pytest.raises(SpaceError, match=r"has shape \(3, 12, 12\); expected .*12, 12"):
            run.act(stack)
        assert run.act(stack[-1]) == int(run.engine.act(stack[None]).argmax())  # and nothing was lost


def test_a_stack_is_saved_with_its_run_and_goes_on_in_workers(tmp_path):
    path = tmp_path / "run.etude"
    with run_of("CartPole-v1", 3, network=Mlp((8,)), vectorization="loop") as run:
        run.train(40)
        run.save(path)
        again = etude.load(path, workers=1)
        for each in (run, again):
            each.train(30)
        assert not differences(run.engine.state(), again.engine.state())
        again.close()
    assert run.description()["frame_stack"] == 3 and etude.load(path, env=CartPoleEnv).environment.frame_stack == 3
    with pytest.raises(CheckpointError, match="engine/"):
        etude.load(path, frame_stack=2)


def test_recorded_data_holds_the_stacks_of_the_run_that_it_is_for():
    from etude.training.recording import record

    data = record(configured("CartPole-v1", None, None, 2), 3)
    assert data.episodes[0].observation.shape[1:] == (2, 4)
    with Run("bc", Environment("CartPole-v1", frame_stack=2), data=data, engine="torch") as run:
        run.train(2)
        assert run.evaluate(1).returns
    with pytest.raises(DataError, match="The data holds observations of"):
        Run("bc", "CartPole-v1", data=data, engine="torch")


@pytest.mark.parametrize(
    ("env", "more", "message"),
    [
        ("CartPole-v1", {"frame_stack": 0}, "frame_stack = 0; expected a whole number of at least 1: frames"),
        ("CartPole-v1", {"frame_stack": "4"}, "frame_stack = '4'; expected a whole number"),
        ("mpe2:simple_spread_v3", {"frame_stack": 2}, "stacks the observations of one agent.*frame_stack at 1"),
        (POINT, {"frame_stack": 2, "hindsight": "future"}, "frame_stack = 2 stacks goals, too"),
        (lambda num_envs: gym.make_vec("CartPole-v1", num_envs), {"frame_stack": 2}, "a vectorised simulator only"),
        (
            lambda: Showing(gym.spaces.Dict({"say": gym.spaces.Text(3)})),
            {"frame_stack": 2},
            "'say' is a text. Leave it out",
        ),
    ],
)
def test_what_cannot_be_stacked_is_refused(env, more, message):
    algorithm = "ddpg" if env == POINT else "dqn"
    with pytest.raises(ConfigError, match=message):
        Run(algorithm, env, engine="torch", **more)


def test_train_resume_evaluate_and_watch_stack_frames(tmp_path, capsys):
    options = "--steps 24 --engine torch --frame-stack 3 --set.network.widths 4 --set.learning-starts 8"
    folder = str(tmp_path / "run")
    room = "my_wrappers:Room"
    assert cli.main(["train", "dqn", room, *options.split(), "--set.batch-size", "4", "--run-dir", folder]) == 0
    assert cli.main(["resume", folder, "--steps", "32"]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", folder, "--episodes", "2"]) == 0
    assert "return 4.0" in capsys.readouterr().out
    assert cli.main(["watch", folder, "--video", str(tmp_path / "out.mp4")]) == 0
