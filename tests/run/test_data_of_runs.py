"""Runs that learn from recorded and collected steps: what `data=` takes, and what batches are drawn from."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from run_makers import DQN_TINY, PPO_TINY, run_given
from run_worlds import Counted

import etude
from etude import Mlp, offline
from etude.algorithms import ALGORITHMS, R2D2Config, SACConfig
from etude.base.errors import CheckpointError, ConfigError, DataError
from etude.base.events import Collected, Learned
from etude.examples.point import PointWorld
from etude.replay import Buffer, MixedReplay
from etude.training.description import Execution
from etude.training.kinds import kind_for
from etude.training.sources import SAMPLER

SAC_TINY = SACConfig(network=Mlp((4,)), learning_starts=16, train_every=8, batch_size=9, buffer_size=500)


@pytest.fixture(scope="module")
def cart():
    return etude.record("CartPole-v1", 20, seed=5)


@pytest.fixture(scope="module")
def pendulum():
    return etude.record("Pendulum-v1", 3, seed=5)


def run_on(data, algorithm="dqn", env="CartPole-v1", **more):
    configs = {"dqn": DQN_TINY, "sac": SAC_TINY}
    settings = {"config": configs.get(algorithm), "engine": "torch", "seed": 1, "environments": 4, **more}
    return run_given(algorithm, env, data=data, **settings)


def mixed(dataset, share=0.5):
    return [(dataset, share), (SAMPLER, 1 - share)]


def test_a_path_and_its_share_stand_for_its_episodes(cart, tmp_path):
    paths = [str(tmp_path / name) for name in ("one.h5", "two.parquet")]
    for path in paths:
        offline.write(path, cart)
    run = run_on({paths[0]: 0.7, paths[1]: 0.2, SAMPLER: 0.1})
    assert isinstance(run.learner.replay, MixedReplay)
    assert run.learner.replay.shares == pytest.approx({paths[0]: 0.7, paths[1]: 0.2, SAMPLER: 0.1})
    assert [len(run.learner.replay.buffers[path]) for path in paths] == [len(cart)] * 2
    described = run.description()["data"]
    assert described["transitions"] == 2 * len(cart) and described["online"] == pytest.approx(0.1)
    assert [each["name"] for each in described["sources"]] == paths


def test_the_order_in_which_sources_are_named_does_not_matter_for_the_sampler(cart):
    runs = [run_on(data) for data in (mixed(cart), mixed(cart)[::-1])]
    learned = [[e.losses for e in run.steps(80) if isinstance(e, Learned)] for run in runs]
    assert learned[0] == learned[1] != []


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_no_number(cart, workers):
    runs = [run_on(mixed(cart), workers=count) for count in (0, workers)]
    learned = []
    for run in runs:
        with run:
            learned.append([e.losses for e in run.steps(120) if isinstance(e, Learned)])
    assert learned[0] == learned[1] != []


def test_workers_may_collect_ahead(cart):
    with run_on(mixed(cart), workers=2, overlap=True) as run:
        assert run.train(160).step == 160
        assert len(run.learner.replay.ring) == 160


def test_every_batch_holds_the_shares(cart):
    run = run_on(mixed(cart, 0.75))
    batches, learn = [], run.engine.learn
    run.engine.learn = lambda batch, hyper: batches.append(batch) or learn(batch, hyper)
    run.train(160)
    recorded = run.learner.replay.buffers["recorded"].ring.rows
    assert len(batches) > 5
    assert all((batch.index < recorded).sum(1).tolist() == [6] * len(batch.index) for batch in batches)  # of 8


def test_recorded_rewards_are_clipped_and_scaled_as_collected_ones(pendulum):
    config = dataclasses.replace(SAC_TINY, clip_reward=True, normalize_reward=True, normalize_observation=True)
    run = run_on(mixed(pendulum), "sac", "Pendulum-v1", config=config)
    ring = run.learner.replay.buffers["recorded"].ring
    assert set(ring.reward[: len(pendulum)].tolist()) == {-1.0}
    seen = np.concatenate([episode.observation[:-1] for episode in pendulum.episodes])
    moments = run.learner.moments.moments["all"]
    np.testing.assert_allclose(moments.mean, seen.mean(0), rtol=1e-5, atol=1e-6)
    assert run.learner.scale.moments.seen == len(pendulum)
    run.train(80)
    views = [buffer.view.reward_scale for buffer in run.learner.replay.buffers.values()]
    assert views[0] == views[1] != 1.0


def test_recorded_priorities_of_a_file_are_not_taken_for_errors(cart):
    """Files may hold any extras."""
    episodes = tuple(
        dataclasses.replace(each, extras={"priority": np.full(len(each.reward), 7, np.float32)})
        for each in cart.episodes
    )
    config = dataclasses.replace(DQN_TINY, priority_exponent=0.6)
    run = run_on(mixed(dataclasses.replace(cart, episodes=episodes)), config=config)
    assert run.learner.replay.buffers["recorded"].selector.error.max() == 1.0


@pytest.mark.parametrize(
    "changes", [{"n_step": 3, "priority_exponent": 0.6}, {"priority_exponent": 0.6, "actor_priorities": True}]
)
def test_views_and_priorities_of_transitions_are_mixed(cart, changes):
    run = run_on(mixed(cart), config=dataclasses.replace(DQN_TINY, **changes))
    run.train(160)
    errors = [buffer.selector.error for buffer in run.learner.replay.buffers.values()]
    assert all(len(set(error[error >= 0].tolist())) > 3 for error in errors)


def test_goals_of_recorded_episodes_are_relabelled():
    goals = etude.record(PointWorld, 6)
    config = dataclasses.replace(SAC_TINY, hindsight="future", hindsight_goals=1_000)
    run = run_on(mixed(goals), "sac", PointWorld, config=config)
    run.train(40)
    batch = run.learner.replay.buffers["recorded"].sample(1, 200)
    stored = {tuple(goal) for each in goals.episodes for goal in each.observation["desired_goal"].tolist()}
    wanted = {tuple(goal) for goal in batch.observation["desired_goal"][0].tolist()}
    assert len(wanted - stored) > 50


def test_stacked_frames_of_recorded_episodes_are_stored_once():
    run = run_on(None, frame_stack=3)
    run.train(160)
    data = etude.replayed(run)
    other = run_on(mixed(data), frame_stack=3)
    assert other.learner.replay.buffers["recorded"].ring.frame_stack == 3
    assert other.train(80).step == 80
    sampled = other.learner.replay.buffers["recorded"].sample(1, 64)
    known = {each.tobytes() for episode in data.episodes for each in episode.observation}
    assert {each.tobytes() for each in sampled.observation[0]} <= known


def test_sequences_are_mixed_where_no_state_is_stored(cart):
    config = R2D2Config(
        network=etude.Recurrent(Mlp((4,)), 4), learning_starts=16, train_every=8, batch_size=8, buffer_size=500,
        sequence_length=6, burn_in=2, stored_state=False,
    )  # fmt: skip
    assert run_on(mixed(cart), "r2d2", config=config).train(80).totals["gradient_steps"] > 0
    with pytest.raises(ConfigError, match="recorded episodes hold no recurrent states. Give stored_state=False"):
        run_on(mixed(cart), "r2d2", config=dataclasses.replace(config, stored_state=True))


def test_a_run_of_its_own_loop_has_the_data(cart):
    parts = etude.assemble(
        "dqn", "CartPole-v1", total=100, config=DQN_TINY, data=mixed(cart), execution=Execution(engine="torch")
    )
    assert len(parts.replay.buffers["recorded"]) == len(cart)
    parts.rollout.close()


def test_off_policy_algorithms_learn_from_data_alone_in_gradient_steps(cart):
    run = run_on(cart, environments=None)
    events = list(run.steps(250))
    assert [e.step for e in events if isinstance(e, Learned)] == [100, 200, 250]
    assert not any(isinstance(event, Collected) for event in events)
    assert isinstance(run.learner.replay, Buffer) and events[0].description["steps"] == "gradient"
    with pytest.raises(ConfigError, match="steps no environment"):
        run_on(cart, environments=None, workers=1)


def test_offline_algorithms_learn_from_several_sources(cart):
    run = run_on([(cart, 1), (cart, 3)], "bc", config=etude.algorithms.BCConfig(network=Mlp((4,))), environments=None)
    assert run.learner.replay.shares == {"recorded": 0.25, "recorded 2": 0.75}
    assert run.train(100).step == 100


def test_what_was_collected_is_what_a_run_replays(cart):
    run = run_on(mixed(cart))
    run.train(160)
    assert len(etude.replayed(run)) == 160


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"no.h5": 0.5, SAMPLER: 0.5}, "no.h5: there is no such file"),
        ({SAMPLER: 1.0}, "names no recorded data"),
        ({"a.h5": 0.0, SAMPLER: 1.0}, "the share of 'a.h5' is 0.0; expected a positive number"),
        ({"a.h5": float("nan"), SAMPLER: 1.0}, "the share of 'a.h5' is nan"),
        ({"a.h5": "half", SAMPLER: 1.0}, "the share of 'a.h5' is 'half'"),
        ([("a.h5", 0.5), (SAMPLER, 0.2), (SAMPLER, 0.3)], "twice"),
        ([(3, 0.5), (SAMPLER, 0.5)], "data is a int"),
    ],
)
def test_sources_that_cannot_be_are_refused_with_the_reason(data, message):
    with pytest.raises((ConfigError, DataError), match=message):
        run_on(data)


def test_data_is_refused_where_it_does_not_belong(cart, pendulum):
    with pytest.raises(ConfigError, match="PPO learns from an environment and takes no data; .*dqn"):
        run_on(mixed(cart), "ppo", config=PPO_TINY)
    with pytest.raises(DataError, match="The data holds observations"):
        run_on(mixed(pendulum))
    with pytest.raises(ConfigError, match="rewrite= changes collected steps"):
        run_on(mixed(cart), rewrite=lambda steps: steps)
    with pytest.raises(ConfigError, match="episodes of one agent"):
        run_on(mixed(cart), env="mpe2:simple_spread_v3")
    with pytest.raises(ConfigError, match="BC learns from recorded data alone"):
        run_on(mixed(cart), "bc", config=None)
    with pytest.raises(ConfigError, match="GAIL compares its steps with one expert's"):
        run_on(mixed(cart), "gail", config=None)


def test_a_changed_description_of_sources_is_refused(cart):
    state = run_on(mixed(cart)).state()
    for change in ({"online": 2.0}, {"sources": 3}, {"sources": [{"name": SAMPLER, "share": 0.5}]}):
        described = {**state["description"], "data": {**state["description"]["data"], **change}}
        with pytest.raises(CheckpointError, match="description/data"):
            etude.run.from_state({**state, "description": described}, trust=True)


def test_where_a_callback_fails_the_run_with_data_is_saved(cart, tmp_path):
    def fails(event):
        if isinstance(event, Learned) and event.step >= 80:
            raise ValueError("on purpose")

    run = run_on(mixed(cart), run_dir=tmp_path / "run")
    with pytest.raises(ValueError, match="on purpose"):
        run.train(200, fails)
    run.close()
    again = etude.load(tmp_path / "run")
    assert again.step >= 80 and isinstance(again.learner.replay, MixedReplay)
    assert again.train(40).reason == "steps"


def test_every_off_policy_algorithm_of_one_agent_takes_data():
    taking = {
        name for name, (agent, config) in ALGORITHMS.items()
        if kind_for(agent.__name__, agent.learns_from, config).takes_data
    }  # fmt: skip
    assert taking >= {"apex_ddpg", "apex_dqn", "c51", "ddpg", "discrete_sac", "dqn", "qr_dqn", "r2d2", "rainbow", "sac"}
    assert "td3" in taking and "ppo" not in taking


def test_a_run_without_data_has_the_replay_that_it_had():
    assert type(run_on(None, env=Counted).learner.replay) is Buffer
