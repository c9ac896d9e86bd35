"""Every row is a transition: an environment that observes (environment, episode, t) over every implementation."""

import contextlib
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from worlds import Counter, Counters, Pool, envpool

from etude.base.errors import ConfigError
from etude.envs import LoopEnvironments, NativeEnvironments, make_environment, make_environments

COLUMNS = np.arange(4)


def loop():
    return LoopEnvironments(Counters(), COLUMNS, 0)


def sync(mode, wrap=lambda simulator: simulator, copy=True):
    factories = [lambda i=i: Counter(i) for i in COLUMNS]
    return lambda: NativeEnvironments(wrap(SyncVectorEnv(factories, copy=copy, autoreset_mode=mode)), COLUMNS, 0)


def asynchronous(mode, shared_memory=True):
    factories = [lambda i=i: Counter(i) for i in COLUMNS]
    return lambda: NativeEnvironments(
        AsyncVectorEnv(factories, autoreset_mode=mode, shared_memory=shared_memory), COLUMNS, 0
    )


IMPLEMENTATIONS = {
    "loop": loop,
    **{f"sync {mode.name}": sync(mode) for mode in AutoresetMode},
    **{f"sync {mode.name} without copies": sync(mode, copy=False) for mode in AutoresetMode},
    **{f"async {mode.name}": asynchronous(mode) for mode in AutoresetMode},
    "async DISABLED over pipes": asynchronous(AutoresetMode.DISABLED, shared_memory=False),
    "async SAME_STEP over pipes": asynchronous(AutoresetMode.SAME_STEP, shared_memory=False),
    "EnvPool": lambda: make_environments("envpool:Counter-v0", COLUMNS, 0),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def environments(request, monkeypatch):
    envpool(monkeypatch)
    made = IMPLEMENTATIONS[request.param]()
    yield made
    made.close()


def test_every_row_is_a_transition_of_one_episode_and_no_reset_is_among_them(environments):
    before = environments.reset().copy()
    assert np.array_equal(before[:, 0], COLUMNS)
    assert (before[:, 2] == 0).all()
    ended_by = {"terminated": 0, "truncated": 0}
    for _ in range(40):
        after, reward, terminated, truncated, final = environments.step(np.zeros(4, np.int64))
        assert set(final) == set(np.flatnonzero(terminated | truncated))
        for i in range(4):
            number, episode, t = before[i]
            last = final.get(i, after[i])
            assert last.tolist() == [number, episode, t + 1]
            assert reward[i] == t + 1  # the reset step of an autoreset would show as 0
            if i in final:
                assert after[i].tolist() == [number, episode + 1, 0]
                assert last[2] == 3 + (episode + number) % 4
                assert truncated[i] == (episode % 2 == 1)
                assert terminated[i] != truncated[i]
        ended_by["terminated"] += int(terminated.sum())
        ended_by["truncated"] += int(truncated.sum())
        before = after
    assert min(ended_by.values()) >= 8


def test_arrays_have_the_dtypes_of_the_contract(environments):
    observation = environments.reset()
    assert observation.dtype == np.float32
    _, reward, terminated, truncated, _ = environments.step(np.zeros(4, np.int64))
    assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float32, bool, bool)
    assert reward.shape == terminated.shape == truncated.shape == (4,)


def test_returned_arrays_are_not_written_to_by_later_steps(environments):
    first = environments.reset()
    kept = [first]
    copies = [first.copy()]
    for _ in range(8):
        after, *_, final = environments.step(np.zeros(4, np.int64))
        kept += [after, *final.values()]
        copies += [after.copy(), *(value.copy() for value in final.values())]
    assert all(np.array_equal(a, b) for a, b in zip(kept, copies, strict=True))


def test_a_simulator_may_be_wrapped():
    make = sync(AutoresetMode.SAME_STEP, lambda simulator: gym.wrappers.vector.ClipReward(simulator, max_reward=2))
    environments = make()
    environments.reset()
    for _ in range(3):
        _, reward, *_ = environments.step(np.zeros(4, np.int64))
    assert (reward == 2).all()


def test_a_simulator_that_resets_in_the_next_step_and_ignores_masks_is_refused_with_what_to_do():
    class Deaf(SyncVectorEnv):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)

    def make(num_envs):
        return Deaf([lambda i=i: Counter(i) for i in range(num_envs)])

    with pytest.raises(ConfigError, match="ignores reset.*SAME_STEP"):
        make_environments(make, COLUMNS, 0)


def test_workers_that_forget_a_masked_reset_are_refused():
    with pytest.raises(ConfigError, match="NEXT_STEP"):
        asynchronous(AutoresetMode.NEXT_STEP, shared_memory=False)()


def test_a_pool_is_made_anew_for_a_seed_so_that_runs_with_one_seed_are_equal(monkeypatch):
    envpool(monkeypatch)
    seeds = []
    for run_seed in (1, 1, 2):
        Pool.made.clear()
        with contextlib.closing(make_environments("envpool:Counter-v0", COLUMNS, run_seed)) as environments:
            environments.reset()
            environments.reset()
        seeds.append(Pool.made[-2:])
    assert seeds[0] == seeds[1] and len({*seeds[0], *seeds[2]}) == 4


def test_an_unknown_task_and_a_missing_package_are_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ConfigError, match="needs envpool: pip install envpool"):
        make_environments("envpool:Counter-v0", COLUMNS, 0)
    envpool(monkeypatch)
    with pytest.raises(ConfigError, match="no task 'Pole-v0'"):
        make_environments("envpool:Pole-v0", COLUMNS, 0)


def test_where_one_environment_is_needed_a_simulator_is_refused_with_what_to_do(monkeypatch):
    envpool(monkeypatch)
    with pytest.raises(ConfigError, match="to watch an agent, name a single environment"):
        make_environment("envpool:Counter-v0", render_mode="rgb_array")


def test_a_simulator_that_does_not_say_how_it_resets_is_refused():
    class Silent(SyncVectorEnv):
        def __init__(self, *args):
            super().__init__(*args)
            self.metadata = {}

    with pytest.raises(ConfigError, match="autoreset_mode"):
        NativeEnvironments(Silent([Counter] * 2), COLUMNS[:2], 0)


@pytest.mark.parametrize("vectorization", ["loop", "native", "EnvPool"])
def test_cartpole_rows_follow_its_equations_of_motion_also_where_episodes_end(vectorization):
    if vectorization == "EnvPool":
        pytest.importorskip("envpool", reason="needs envpool")
        environments = make_environments("envpool:CartPole-v1", np.arange(16), 3)
    else:
        environments = make_environments("CartPole-v1", np.arange(16), 3, vectorization)
    assert environments.native == (vectorization != "loop")
    rng = np.random.default_rng(0)
    before, ended = environments.reset(), 0
    for _ in range(200):
        after, reward, terminated, truncated, final = environments.step(rng.integers(0, 2, 16))
        assert (reward == 1).all()  # 0 in the reset row of CartPole's own vector form
        last = after.copy()
        for i, value in final.items():
            last[i] = value
            assert abs(value[0]) > 2.4 or abs(value[2]) > 12 * np.pi / 180
            assert np.abs(after[i]).max() <= 0.05
        assert np.allclose(last[:, 0], before[:, 0] + 0.02 * before[:, 1], atol=1e-6)
        assert np.allclose(last[:, 2], before[:, 2] + 0.02 * before[:, 3], atol=1e-6)
        before, ended = after, ended + len(final)
    assert ended > 50


def test_cartpole_s_vector_form_truncates_after_500_steps_of_the_episode():
    environments = make_environments("CartPole-v1", np.arange(64), 0)
    assert environments.native
    observation = environments.reset()
    lengths, truncations = np.zeros(64, int), []
    for _ in range(600):
        action = (observation @ [0.1, 0.5, 1.0, 1.0] > 0).astype(np.int64)  # balances the pole
        observation, _, terminated, truncated, final = environments.step(action)
        lengths += 1
        truncations += lengths[truncated].tolist()
        lengths[list(final)] = 0
    assert truncations
    assert set(truncations) == {500}
