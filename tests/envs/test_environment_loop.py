"""Seeds of episodes, partial steps, and the replay of open episodes after a resume."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box
from worlds import Counter, Counters, Scripted

from etude.base.errors import SpaceError
from etude.base.seeding import episode_seed
from etude.base.spaces import Discrete
from etude.envs import LoopEnvironments, NativeEnvironments, make_environments


class Seeds(Scripted):
    """Observes the seed of the episode and t; ends after two steps."""

    def __init__(self):
        super().__init__(Box(0, 2.0**31, (2,), np.float64), reset=self._begin, step=self._go)
        self.seed = None

    def _begin(self, seed):
        self.seed = seed
        return np.array([seed or 0, 0], np.float64), {}

    def _go(self, t):
        return np.array([self.seed, t], np.float64), 0.0, t == 2, False, {}


def test_each_episode_is_reset_with_the_seed_of_its_run_environment_and_number():
    environments = LoopEnvironments(Seeds, np.array([5, 2]), 11)
    seen = [environments.reset()]
    for _ in range(4):
        seen.append(environments.step(np.zeros(2, np.int64))[0])
    for episode in range(3):
        for i, number in enumerate((5, 2)):
            assert seen[2 * episode][i, 0] == np.float32(episode_seed(11, number, episode))


def test_episodes_do_not_depend_on_which_environments_share_an_object():
    actions = np.random.default_rng(0).integers(0, 2, (60, 4))
    together = make_environments("CartPole-v1", np.arange(4), 7)
    apart = [make_environments("CartPole-v1", columns, 7) for columns in (np.array([0, 1, 2]), np.array([3]))]
    assert np.array_equal(together.reset(), np.concatenate([part.reset() for part in apart]))
    for action in actions:
        whole = together.step(action)
        parts = [apart[0].step(action[:3]), apart[1].step(action[3:])]
        for k in range(4):
            assert np.array_equal(whole[k], np.concatenate([part[k] for part in parts]))


def test_a_partial_step_steps_the_first_and_leaves_the_others_where_they_are():
    environments = LoopEnvironments(Counters(), np.arange(4), 0)
    environments.reset()
    environments.step(np.zeros(4, np.int64))
    observation, reward, terminated, truncated, _ = environments.step(np.zeros(2, np.int64))
    assert observation[:, 2].tolist() == [2, 2]
    assert len(reward) == len(terminated) == len(truncated) == 2
    observation, *_ = environments.step(np.zeros(4, np.int64))
    assert observation[:, 2].tolist() == [3, 3, 2, 2]


def test_some_environments_may_be_stepped_by_position_and_are_replayed_with_their_own_actions():
    first = make_environments("Pendulum-v1", np.arange(4), 5)
    observation = first.reset()
    actions = np.random.default_rng(0).uniform(-1, 1, (9, 4, 1)).astype(np.float32)
    alone = make_environments("Pendulum-v1", np.array([2]), 5)
    alone.reset()
    for action in actions[:5]:
        stepped = first.step(action[[0, 2]], (0, 2))[0]
        assert np.array_equal(stepped[1:], alone.step(action[[2]])[0])
    second = make_environments("Pendulum-v1", np.arange(4), 5)
    restored, differs = second.restore(first.state())
    assert differs == []
    assert np.array_equal(restored, np.stack([stepped[0], observation[1], stepped[1], observation[3]]))
    for action in actions[5:]:
        one, other = first.step(action), second.step(action)
        assert np.array_equal(one[0], other[0])


def test_ends_and_faults_of_a_part_name_the_right_environments():
    environments = LoopEnvironments(Seeds, np.array([5, 2, 9]), 11)
    environments.reset()
    environments.step(np.zeros(2, np.int64), (1, 2))
    observation, *_, final = environments.step(np.zeros(2, np.int64), (0, 2))
    assert list(final) == [1]
    assert final[1][0] == np.float32(episode_seed(11, 9, 0))
    assert observation[1, 0] == np.float32(episode_seed(11, 9, 1))
    environments.step(np.zeros(1, np.int64), (1,))
    assert [saved["episode"] for saved in environments.state()] == [0, 1, 1]


def test_a_second_reset_starts_the_next_episodes():
    environments = LoopEnvironments(Counters(), np.arange(2), 0)
    first, second = environments.reset(), environments.reset()
    assert (second[:, 1] == first[:, 1] + 1).all()


def test_environments_with_different_spaces_are_refused():
    made = iter([Scripted(), Scripted(Box(-1, 1, (3,)))])
    with pytest.raises(SpaceError, match="different spaces"):
        LoopEnvironments(lambda: next(made), np.arange(2), 0)


def random_actions(space, rng, *shape):
    if isinstance(space, Discrete):
        return rng.integers(0, space.n, shape)
    return rng.uniform(-1, 1, (*shape, *space.shape)).astype(np.float32)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "LunarLander-v3", "HalfCheetah-v5"])
def test_a_resumed_run_goes_on_bit_for_bit(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it runs
    rng = np.random.default_rng(1)
    first = make_environments(name, np.arange(3), 5)
    first.reset()
    for n in [3] * 40 + [2, 1, 2] + [3] * 17:
        first.step(random_actions(first.spaces.action, rng, n))
    second = make_environments(name, np.arange(3), 5)
    observation, differs = second.restore(first.state())
    assert differs == []
    third = make_environments(name, np.arange(3), 5)
    assert np.array_equal(third.restore(second.state())[0], observation)  # a resumed run can be saved again
    for action in random_actions(first.spaces.action, rng, 60, 3):
        steps = [environments.step(action) for environments in (first, second, third)]
        for other in steps[1:]:
            assert all(np.array_equal(a, b) for a, b in zip(steps[0][:4], other[:4], strict=True))
            assert sorted(steps[0][4]) == sorted(other[4])
            assert all(np.array_equal(steps[0][4][i], other[4][i]) for i in other[4])


def test_actions_recorded_before_and_after_a_resume_are_replayed_together():
    first = make_environments("Pendulum-v1", np.arange(2), 5)
    first.reset()
    actions = np.random.default_rng(0).uniform(-1, 1, (9, 2, 1)).astype(np.float32)
    for action in actions[:4]:
        first.step(action)
    second = make_environments("Pendulum-v1", np.arange(2), 5)
    second.restore(first.state())
    for action in actions[4:]:
        second.step(action)
    assert np.array_equal(second.state()[1]["actions"], actions[:, 1])


def test_an_episode_goes_on_through_several_runs_of_other_seeds():
    parent, child, grandchild = (make_environments("Pendulum-v1", np.arange(2), seed) for seed in (5, 6, 7))
    parent.reset()
    parent.step(np.ones((2, 1), np.float32))
    child.restore(parent.state())
    child.step(np.ones((2, 1), np.float32))
    observation, differs = grandchild.restore(child.state())
    assert differs == []
    parent.step(np.ones((2, 1), np.float32))
    assert np.array_equal(observation, parent.restore(parent.state())[0])


def test_an_episode_whose_replay_differs_is_reported_and_the_next_one_begun():
    class Unseeded(Counter):
        def _observe(self):
            return super()._observe() + np.random.default_rng().uniform(0, 0.1)

    makes = iter([Counter(0), Unseeded(1), Counter(2), Counter(0), Unseeded(1), Counter(2)])
    first = LoopEnvironments(lambda: next(makes), np.arange(3), 0)
    first.reset()
    first.step(np.zeros(3, np.int64))
    second = LoopEnvironments(lambda: next(makes), np.arange(3), 0)
    episodes = [saved["episode"] for saved in first.state()]
    _, differs = second.restore(first.state())
    assert differs == [1]
    assert [saved["episode"] for saved in second.state()] == [episodes[0], episodes[1] + 1, episodes[2]]
    assert [len(saved["actions"]) for saved in second.state()] == [1, 0, 1]


def test_state_before_the_first_reset_restores_to_a_first_reset():
    first, second = (LoopEnvironments(Counters(), np.arange(2), 0) for _ in range(2))
    observation, _ = second.restore(first.state())
    assert (observation[:, 2] == 0).all()
    assert [saved["episode"] for saved in second.state()] == [0, 0]


def test_the_record_of_actions_is_that_of_the_open_episodes():
    environments = LoopEnvironments(Counters(), np.arange(3), 0)
    environments.reset()
    expected: list[list[int]] = [[], [], []]
    for t in range(400):
        action = np.random.default_rng(t).integers(0, 2, 3)
        *_, final = environments.step(action)
        for i in range(3):
            expected[i] = [] if i in final else [*expected[i], int(action[i])]
        assert [saved["actions"].tolist() for saved in environments.state()] == expected
    assert sum(map(len, environments._actions)) == 8 * sum(map(len, expected))  # bytes


def test_a_simulator_resumes_at_an_episode_boundary_and_says_so_for_every_environment():
    first = make_environments("CartPole-v1", np.arange(3), 0, "native")
    start = first.reset()
    for _ in range(60):
        first.step(np.zeros(3, np.int64))
    second = make_environments("CartPole-v1", np.arange(3), 0, "native")
    observation, differs = second.restore(first.state())
    assert differs == [0, 1, 2]
    assert np.abs(observation).max() <= 0.05
    assert not np.array_equal(observation, start)  # the first episode is not played twice
    assert [s["episode"] for s in second.state()] == [s["episode"] + 1 for s in first.state()]


def test_a_simulator_refuses_a_partial_step():
    simulator = gym.vector.SyncVectorEnv([Counter] * 3, autoreset_mode="SameStep")
    environments = NativeEnvironments(simulator, np.arange(3), 0)
    environments.reset()
    with pytest.raises(SpaceError, match="all its 3"):
        environments.step(np.zeros(2, np.int64))


def test_an_environment_that_returns_one_array_for_ever_is_safe():
    class Reusing(Counter):
        def __init__(self, number=0):
            super().__init__(number)
            self.buffer = np.zeros(3, np.float32)

        def _observe(self):
            self.buffer[:] = super()._observe()
            return self.buffer

    plain = LoopEnvironments(Counters(), np.arange(3), 0)
    makes = iter(range(3))
    reusing = LoopEnvironments(lambda: Reusing(next(makes)), np.arange(3), 0)
    kept = [(plain.reset(), reusing.reset())]
    for _ in range(12):
        a, b = plain.step(np.zeros(3, np.int64)), reusing.step(np.zeros(3, np.int64))
        kept += [(a[0], b[0]), *((a[4][i], b[4][i]) for i in a[4])]
    assert all(np.array_equal(a, b) for a, b in kept)


def test_a_time_limit_of_the_user_truncates():
    make = partial(gym.wrappers.TimeLimit, max_episode_steps=3)
    environments = LoopEnvironments(lambda: make(Scripted()), np.arange(2), 0)
    environments.reset()
    flags = [environments.step(np.zeros(2, np.int64))[2:4] for _ in range(4)]
    assert [truncated.tolist() for _, truncated in flags] == [[False] * 2, [False] * 2, [True] * 2, [False] * 2]
    assert not any(terminated.any() for terminated, _ in flags)


def test_trees_of_observations_survive_a_partial_step():
    space = gym.spaces.Dict({"a": Box(-9, 9, (2,), np.float32), "b": gym.spaces.Tuple([Discrete(50)])})
    make = partial(
        Scripted,
        space,
        reset=lambda seed: ({"a": np.zeros(2, np.float32), "b": (0,)}, {}),
        step=lambda t: ({"a": np.full(2, t, np.float32), "b": (np.int64(t),)}, 0.0, False, False, {}),
    )
    environments = LoopEnvironments(make, np.arange(3), 0)
    environments.reset()
    environments.step(np.zeros(3, np.int64))
    environments.step(np.zeros(1, np.int64))
    restored, differs = LoopEnvironments(make, np.arange(3), 0).restore(environments.state())
    assert differs == []
    assert restored["b"][0].tolist() == [2, 1, 1]


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_an_environment_without_a_space_is_refused_with_what_to_set(name):
    class Forgetful(gym.Env):
        observation_space = None if name == "observation_space" else Box(-1, 1, (1,))
        action_space = None if name == "action_space" else Discrete(2)

    with pytest.raises(SpaceError, match=f"Forgetful has no {name} of gymnasium.spaces. Set self.{name} in __init__"):
        make_environments(Forgetful, np.arange(2), 0)
