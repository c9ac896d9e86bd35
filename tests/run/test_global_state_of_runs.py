"""Critics that read the global state of an environment of several agents, `state()`."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from run_makers import DQN_TINY, assert_same_weights, run_given
from several_worlds import Coming, Counting, Hidden, Meeting

import etude
from etude import Mlp, Run
from etude.algorithms import DQN, MAPPO, MADDPGConfig, MAPPOConfig, MATD3Config, QMIXConfig
from etude.base.errors import ConfigError, EnvironmentFault, SpaceError
from etude.envs import make_environments, with_global_state
from etude.multi_agent import League
from etude.replay import MultiAgentTransitions, Ring

OFF_POLICY = {"network": Mlp((4,)), "batch_size": 8, "learning_starts": 16, "train_every": 8, "critic_reads": "state"}
CONFIGS = {
    "mappo": MAPPOConfig(network=Mlp((4,)), rollout_length=16, minibatch_size=16, epochs=1, critic_reads="state"),
    "maddpg": MADDPGConfig(**OFF_POLICY),
    "matd3": MATD3Config(**OFF_POLICY, n_step=2),
    "qmix": QMIXConfig(**OFF_POLICY, n_step=2, priority_exponent=0.6, normalize_observation=True),
}


def made(algorithm, env=Hidden, **more):
    settings = {"config": CONFIGS[algorithm], "engine": "torch", "environments": 2, "seed": 1, **more}
    return run_given(algorithm, partial(env), **settings)


@pytest.mark.long_but("mappo", "qmix", "maddpg")
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_a_run_whose_critics_read_the_state_goes_on_bit_for_bit_where_it_was_saved(algorithm, tmp_path):
    with made(algorithm) as run:
        run.train(70)
        run.save(tmp_path / "run.etude")
        run.train(70)
        expected = run.engine.weights()
    with etude.load(tmp_path / "run.etude", env=partial(Hidden)) as again:
        assert again.agent.config.critic_reads == "state"
        again.train(70)
        assert_same_weights(again.engine.weights(), expected)


@pytest.mark.long_but("mappo", "matd3")
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_workers_collect_the_same_states_as_one_process(algorithm):
    found = []
    for workers in (0, 2):
        with made(algorithm, workers=workers) as run:
            run.train(80)
            found.append(run.engine.weights())
    assert_same_weights(found[1], found[0])


@pytest.mark.parametrize("algorithm", ["mappo", "maddpg"])
def test_states_are_collected_ahead_with_overlap(algorithm):
    with made(algorithm, workers=2, overlap=True) as run:
        run.train(160)
        stored = run.learner.replay.ring.observation(np.arange(8))["state"]
    assert set(stored[:, 0]) <= {0.0, 1.0} and set(stored[:, 1]) <= {0.0, 1.0, 2.0}


@pytest.mark.parametrize("algorithm", ["maddpg", "matd3"])
def test_only_critics_read_the_state(algorithm):
    with made(algorithm) as run, made(algorithm, config=None) as plain:
        shapes = {name: value.shape for name, value in run.engine.weights().items()}
        assert shapes["ann.actor.dense0.weight"][0] == 1
        assert shapes["ann.critic.dense0.weight"][-2] == 2 + 4 + 2  # the state, two actions, and who is there
        assert "state" in run.engine.spaces.observation.spaces
        assert "state" not in plain.engine.spaces.observation.spaces


def states(environments, steps):
    """The global states that are observed in these time steps, and the final ones."""
    seen, final = [environments.reset()["state"]], []
    for _ in range(steps):
        observation, *_, ended = environments.step(np.zeros((len(environments.columns), 2), np.int64))
        seen.append(observation["state"])
        final += [last["state"] for last in ended.values()]
    return np.stack(seen), final


def test_an_observation_holds_the_state_and_that_of_an_ended_episode_its_last_one():
    environments = make_environments(with_global_state(Hidden), np.arange(1), run_seed=0)
    seen, final = states(environments, 7)
    assert seen[:, 0, 1].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [last.tolist() for last in final] == [[seen[0, 0, 0], 3], [seen[3, 0, 0], 3]]


def test_an_environment_that_takes_turns_shows_its_state_at_every_turn():
    class Stated(Counting):
        def state(self):
            return np.array([self.time], np.float64)

    with Run("mappo", Stated, config=CONFIGS["mappo"], environments=2, engine="torch", seed=1) as run:
        run.train(64)
        assert run.engine.spaces.observation["state"].dtype == np.float32


@pytest.mark.parametrize("n", [1, 2])
def test_what_is_bootstrapped_from_is_the_state_that_followed_the_last_of_n_steps(n):
    with made("maddpg", env=lambda: Hidden(ann_leaves_early=True)) as run:
        run.train(40)
        ring = run.learner.replay.ring
    assert isinstance(ring, Ring)
    rows = ring.locate(np.arange(len(ring))[None])
    batch = MultiAgentTransitions(0.9, n)(ring, rows, np.ones(rows.shape, np.float32))
    side, time = np.moveaxis(batch.observation["state"], -1, 0)
    next_side, next_time = np.moveaxis(batch.next_observation["state"], -1, 0)
    whole = time + n <= 3
    known = batch.extras["active"].any(-1)
    np.testing.assert_array_equal(next_side[known], side[known])
    inside = known & whole & (np.arange(rows.shape[1]) < rows.shape[1] - 2 * n)  # not cut where the stored steps end
    np.testing.assert_array_equal(next_time[inside], (time + n)[inside])
    ends = known & (time == 2)
    assert ends.any() and (next_time[ends] == 3).all() and (batch.discount[ends][:, 1] > 0).all()


def test_policies_of_different_algorithms_store_the_state_only_where_a_critic_reads_it(tmp_path):
    members = {"ann": MAPPO(CONFIGS["mappo"]), "bob": DQN(DQN_TINY)}
    with Run(members, partial(Hidden), environments=2, engine="torch", seed=1) as run:
        run.train(64)
        spaces = {name: engine.spaces.observation.spaces for name, engine in run.engine.of.items()}
        assert ("state" in spaces["ann"], "state" in spaces["bob"]) == (True, False)
        run.save(tmp_path / "run.etude")
        run.train(64)
        expected = run.engine.weights()
    with etude.load(tmp_path / "run.etude", env=partial(Hidden)) as again:
        again.train(64)
        assert_same_weights(again.engine.weights(), expected)


def test_a_league_copies_a_policy_whose_critic_reads_the_state():
    config = MAPPOConfig(
        network=Mlp((4,)), rollout_length=16, epochs=1, critic_reads="state", normalize_observation=True
    )
    members = {"ann": MAPPO(config), "bob": League("ann", every=32)}
    with Run(members, partial(Hidden), environments=2, engine="torch", seed=1) as run:
        run.train(96)
        assert len(run.learner.leagues["bob"].copies) == 4


@pytest.mark.parametrize("algorithm", ["mappo", "maddpg"])
def test_a_policy_acts_where_there_is_no_state(algorithm):
    config = dataclasses.replace(CONFIGS[algorithm], normalize_observation=True)
    with made(algorithm, config=config) as run:
        run.train(32)
        assert set(run.act({"ann": np.zeros(1, np.float32)})) == {"ann"}
        assert len(run.evaluate(episodes=2, env=partial(Hidden, length=5)).returns) == 2
        assert len(etude.record(partial(Hidden), 2, run=run).episodes) == 2


class Shapeless(Hidden):
    """`state()` returns no array, and nothing says what it is."""

    state_space = None

    def state(self):
        return {"side": "left"}


class Broken(Hidden):
    def state(self):
        raise RuntimeError("no side yet")


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        (Meeting, SpaceError, r"critic_reads = 'state', and state\(\) of .* raised NotImplementedError.*observations"),
        (Broken, SpaceError, r"state\(\) of .* raised RuntimeError: no side yet.*Define state\(\)"),
        (Shapeless, SpaceError, r"returned \{'side': 'left'\}; expected an array of numbers, or .* a state_space"),
    ],
)
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_an_environment_without_a_usable_state_is_refused(algorithm, env, error, message):
    with pytest.raises(error, match=message):
        made(algorithm, env)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros(3, np.float32), r"state.* has shape \(3,\); expected Box.*2"),
        (np.array([np.nan, 0], np.float32), "state.* is nan at flat index 0; every value must be finite"),
    ],
)
def test_a_state_that_is_not_of_its_space_ends_the_run_saved(wrong, message, tmp_path):
    run = made("maddpg", env=lambda: Hidden(wrong=wrong), run_dir=tmp_path / "run")
    with run, pytest.raises(EnvironmentFault, match=message):
        run.train(100)
    with etude.load(tmp_path / "run", env=partial(Hidden)) as again:
        assert 0 < again.step < 60
        again.train(20)


def test_what_critics_read_is_one_of_two():
    for config in (MAPPOConfig, MADDPGConfig, MATD3Config, QMIXConfig):
        with pytest.raises(ConfigError, match=r"critic_reads = 'all'; expected 'observations' or 'state'"):
            config(critic_reads="all")


def test_observations_hold_no_state_that_nobody_reads():
    with Run("mappo", partial(Hidden), environments=1, engine="torch") as run:
        assert set(run.engine.spaces.observation.spaces) == {"agents", "status"}
    assert set(make_environments(Coming, np.arange(1), run_seed=0).reset()) == {"agents", "status"}
