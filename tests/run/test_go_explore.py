"""Go-Explore: what it finds, that its demonstrations are what happened, and what it refuses."""

import gymnasium as gym
import numpy as np
import pytest

import etude
from etude.base.errors import ConfigError, EnvironmentFault
from etude.examples.deep_sea import DeepSea
from etude.training.go_explore import GoExplore


class Corridor(gym.Env):
    """A way of `length` places with pits beside it, and a reward at its end. Who walks at random falls."""

    observation_space = gym.spaces.Box(0, 100, (2,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, length=30, slips=False):
        self.length, self.slips = length, slips

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.y = 0, int(self.np_random.integers(5))
        return self._seen(), {}

    def step(self, action):
        forward = action == (3 * self.x + self.y) % 4
        if self.slips and np.random.random() < 0.5:
            forward = not forward
        self.x += bool(forward)
        fell, won = not forward, self.x == self.length
        return self._seen(), float(won), fell or won, False, {}

    def _seen(self):
        return np.array([self.x, self.y], np.float32)


class Plain(gym.Env):
    """A walled plain without rewards or an end."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        self.at = np.zeros(2, np.float32)
        return self.at, {}

    def step(self, action):
        self.at = np.clip(self.at + [(1, 0), (-1, 0), (0, 1), (0, -1)][action], -3, 3).astype(np.float32)
        return self.at, 0.0, False, False, {}


def place(observation):
    return tuple(observation.astype(int))


def test_the_reward_at_the_end_of_a_way_is_found_and_its_demonstration_happens_again():
    search = GoExplore(Corridor, place, seed=1)
    search.explore(20_000)
    assert search.best_return == 1.0 and len(search.cells) == 30
    data = search.demonstrations()
    episode, env = data.episodes[0], Corridor()
    seen, _ = env.reset(seed=1)
    assert episode.terminated and not episode.truncated and len(episode.action) == 30
    for i, action in enumerate(episode.action):
        assert np.array_equal(episode.observation[i], seen)
        seen, reward, *_ = env.step(int(action))
        assert reward == episode.reward[i]


def test_demonstrations_of_several_starts_are_data_that_is_learned_from():
    data = []
    for seed in range(4):
        search = GoExplore(lambda: DeepSea(8), lambda x: int(x.argmax()), seed=seed)
        search.explore(6_000)
        data += search.demonstrations().episodes
    given = {"network": etude.Mlp((32,)), "learning_rate": 0.01}
    with etude.Run("bc", lambda: DeepSea(8), data=data, seed=1, engine="torch", **given) as run:
        run.train(300)
        assert run.evaluate(1).mean == pytest.approx(0.99)


def test_the_same_seed_searches_alike_in_one_call_or_in_pieces():
    once, pieces = (GoExplore(Corridor, place, seed=3, explore_for=5) for _ in range(2))
    once.explore(600)
    while pieces.steps < 600:
        pieces.explore(1)
    assert once.cells == pieces.cells and once.steps == pieces.steps


def test_the_shorter_of_two_ways_as_good_is_kept():
    search = GoExplore(Plain, place, seed=1, explore_for=3, repeat=0.0)
    search.explore(10_000)
    data = search.demonstrations(12)
    lengths = [len(episode.action) for episode in data.episodes]
    assert lengths == [1] * 4 + [2] * 8 and all(episode.truncated for episode in data.episodes)


def test_the_best_returns_come_first():
    search = GoExplore("MountainCar-v0", lambda x: tuple(np.floor(x / [0.05, 0.005])), seed=1)
    search.explore(20_000)
    found = search.demonstrations(5).returns
    assert found[0] == search.best_return > -200 and list(found) == sorted(found, reverse=True)


def test_a_state_that_is_put_back_costs_no_steps_and_keeps_the_time_limit():
    def put(env, state):
        env.unwrapped.state = np.array(state)

    states = (lambda env: np.array(env.unwrapped.state), put)
    search = GoExplore("MountainCar-v0", lambda x: tuple(np.floor(x / [0.05, 0.005])), seed=1, states=states)
    search.explore(20_000)
    data = search.demonstrations(3)
    assert max(len(episode.action) for episode in data.episodes) <= 200
    assert data.returns.max() == search.best_return > -200


class Changing(Corridor):
    """Returns one array for all observations, and changes it; its infos hold action masks."""

    seen = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], self._mask()

    def step(self, action):
        return *super().step(action)[:4], self._mask()

    def _seen(self):
        self.seen[:] = self.x, self.y
        return self.seen

    def _mask(self):
        legal = np.ones(4, np.int8)
        legal[(3 * self.x + self.y + 1) % 4] = 0
        return {"action_mask": legal}


def test_observations_that_the_environment_changes_later_and_masks_in_infos_are_recorded_as_they_were():
    search = GoExplore(lambda: Changing(5), place, seed=1)
    search.explore(3_000)
    data = search.demonstrations()
    seen = data.episodes[0].observation
    assert seen["observation"][:, 0].tolist() == list(range(len(seen["observation"])))
    assert (seen["action_mask"].sum(1) == 3).all()
    with etude.Run("bc", Changing, data=data, seed=1, engine="torch") as run:
        run.train(2)


def test_an_environment_with_arguments_wrappers_and_stacked_frames_is_searched_as_it_is_made():
    env = etude.Environment(Corridor, args={"length": 3}, frame_stack=2)
    search = GoExplore(env, lambda frames: place(frames[-1]), seed=1)
    search.explore(500)
    assert search.best_return == 1.0 and search.demonstrations().episodes[0].observation.shape == (4, 2, 2)


def test_an_observation_outside_of_its_space_is_a_fault_of_the_environment():
    class Growing(Corridor):
        def _seen(self):
            return np.zeros(2 + (self.x > 0), np.float32)

    search = GoExplore(lambda: Growing(1), len, seed=1)
    search.explore(100)
    with pytest.raises(EnvironmentFault, match=r"step 1: the observation has shape \(3,\)"):
        search.demonstrations()


def test_an_environment_with_chances_of_its_own_is_refused():
    search = GoExplore(lambda: Corridor(slips=True), place, seed=1)
    with pytest.raises(EnvironmentFault, match=r"chance that reset\(seed=\) does not determine"):
        search.explore(5_000)


def test_mistakes_are_one_error():
    with pytest.raises(ConfigError, match="cell returned .*: unhashable type: 'list'; expected a tuple"):
        GoExplore(Corridor, list).explore(10)
    with pytest.raises(ConfigError, match="cell returned .*: unhashable type: 'numpy.ndarray'"):
        GoExplore(Corridor, lambda x: (x, x)).explore(10)
    with pytest.raises(ConfigError, match="this environment has several"):
        GoExplore("mpe2:simple_spread_v3", place)
    with pytest.raises(ConfigError, match="repeat = 1.0; expected a probability below 1"):
        GoExplore(Corridor, place, repeat=1.0)
    with pytest.raises(ConfigError, match=r"Call explore\(steps\) first"):
        GoExplore(Corridor, place).demonstrations()
