"""`set` and `train` of agents of one's own, in every mode, on tiny environments."""

import warnings

import numpy as np
import pytest
from solo_agents import (
    Masked,
    NotDense,
    OfTriplets,
    Reaching,
    agent_for,
    continuous,
    discrete,
    on_policy,
    once,
    pool_of,
    train,
)
from solo_agents_worlds import Old, OneWay, Reach, Walk

from etude.explore import EpsGreedyQPolicy, GaussianWhiteNoiseProcess, SoftmaxPolicy
from etude.solo.engines import parameters

pytestmark = [pytest.mark.usefixtures("workers_step"), pytest.mark.variant]  # which knows no engine
LONG = lambda: Walk(length=7)  # noqa: E731
SHORT = lambda: Walk(length=3)  # noqa: E731


def trained(engine_name, *mixins, kind="DQN", env=None, episodes=3, settings=None, **options):
    """An agent that has been trained."""
    agent = agent_for(engine_name, kind, *mixins, env=env)
    agent.set(**(discrete() if settings is None else settings))
    train(agent, engine_name, episodes, **options)
    return agent


def moved(agent, engine_name, kind="DQN"):
    """Whether what is trained is no longer what it was when an agent of this kind was made."""
    before = parameters(agent_for(engine_name, kind))
    return any(not np.array_equal(value, before[name]) for name, value in parameters(agent).items())


@pytest.mark.variant
def test_in_process_an_episode_of_each_environment_is_played_and_learned_from(engine_name):
    agent = trained(engine_name, env=[SHORT, LONG], episodes=4)
    assert agent.reward_list == [5.0] * 4  # the mean of 3 and 7
    assert len(agent.loss_list) == agent.total_episode == 4
    assert agent.time > 0
    assert len(pool_of(agent)) == 4 * (3 + 7)
    assert agent._session_state.session.learner.batches == 8
    assert moved(agent, engine_name)


def test_nothing_is_learned_before_the_pool_holds_a_batch(engine_name):
    once(engine_name)
    agent = trained(engine_name, settings=discrete(batch=12), episodes=2)
    assert agent.loss_list == []
    assert not moved(agent, engine_name)
    train(agent, engine_name, 1)
    assert len(agent.loss_list) == 1


@pytest.mark.parametrize("processes", [None, 2])
def test_actions_that_an_agent_masks_are_never_taken(engine_name, processes):
    agent = trained(
        engine_name, Masked, env=OneWay, settings=discrete(policy=EpsGreedyQPolicy(0.9)), processes=processes
    )
    assert moved(agent, engine_name) and agent.evaluate(2).returns == (5.0, 5.0)


def test_a_pool_of_one_batch_holds_it_however_many_environments_share_it(engine_name):
    once(engine_name)
    agent = trained(engine_name, env=[Walk] * 7, settings=discrete(pool_size=64, batch=64), episodes=4)
    assert len(pool_of(agent)) == 70, "the next multiple of 7"
    assert len(agent.loss_list) == 3, "of the episodes after which it holds 70 of 64"


def test_on_policy_episodes_that_are_shorter_than_update_steps_fill_a_batch_and_are_learned_from(engine_name):
    settings = on_policy(batch=64, update_steps=3)
    agent = trained(engine_name, kind="PPO", settings=settings, episodes=100)
    assert len(agent.loss_list) == 7, "of every 13 episodes of 5 steps, which hold a batch of 64"
    assert moved(agent, engine_name, "PPO")


def test_an_environment_of_the_user_is_stepped_itself_and_stays_open(engine_name):
    once(engine_name)
    env = Walk()
    agent = trained(engine_name, env=env, episodes=2)
    assert env.t == 0, "reset for the third episode"
    assert agent.reward_list == [5.0, 5.0]


@pytest.mark.parametrize(
    "mixins",
    [pytest.param((), id="exported"), pytest.param((NotDense,), id="in the parent", marks=pytest.mark.variant)],
)
def test_a_pool_of_processes_learns_what_one_process_learns(mixins, engine_name):
    one = trained(engine_name, *mixins, env=[SHORT, LONG])
    pool = trained(engine_name, *mixins, env=[SHORT, LONG], processes=2, parallel_store_and_training=False)
    assert pool._session_state.session.learner.engine.exportable == (not mixins)
    assert pool.reward_list == one.reward_list == [5.0] * 3
    assert pool.loss_list == one.loss_list


@pytest.mark.variant
def test_an_exported_network_collects_while_this_process_learns(engine_name):
    agent = trained(engine_name, env=[SHORT, LONG], processes=2, episodes=4)
    assert agent.reward_list == [5.0] * 4
    assert len(agent.loss_list) == 4
    assert len(pool_of(agent)) == 40, "what was collected ahead for a fifth episode is no part of training"
    train(agent, engine_name, 2, processes=2)
    assert agent.reward_list == [5.0] * 6


def test_a_pool_in_files_is_the_same_pool(engine_name, tmp_path):
    once(engine_name)
    one = trained(engine_name)
    settings = discrete(pool_folder=tmp_path / "pool")
    other = trained(engine_name, settings=settings)
    assert len(list((tmp_path / "pool").iterdir())) > 2
    assert other.loss_list == one.loss_list
    other.set(**(settings | {"batch": 3}))
    train(other, engine_name, 3)
    assert len(other.loss_list) == 6, "the folder goes from the old pool to the new one"


def test_without_a_pool_network_there_are_no_processes(engine_name):
    once(engine_name)
    agent = trained(engine_name, processes=2, pool_network=False)
    assert agent._session_state.session.learner.count == 1


@pytest.mark.parametrize("processes", [None, 2])
def test_several_collections_make_one_learning_phase(processes, engine_name):
    once(engine_name)
    agent = trained(engine_name, env=[SHORT, LONG], episodes=6, num_store=3, processes=processes)
    assert len(agent.reward_list) == 6
    assert len(agent.loss_list) == 2


def test_prioritised_replay_keeps_the_errors_that_the_loss_reports(engine_name):
    agent = trained(engine_name, settings=discrete(PR=True, initial_TD=50.0, num_updates=1), episodes=1)
    error = pool_of(agent).selector.error
    drawn = np.flatnonzero((error >= 0) & (error != 50.0))
    assert 1 <= len(drawn) <= 4
    assert (error[drawn] < 10).all()
    assert pool_of(agent).selector.deviation is None


@pytest.mark.variant
def test_on_policy_the_pool_is_emptied_and_update_param_is_called(engine_name):
    agent = trained(engine_name, kind="PPO", settings=on_policy(), episodes=1)
    assert len(pool_of(agent)) == 5
    assert lag(agent) > 0
    train(agent, engine_name, 1)
    assert len(pool_of(agent)) == 0
    assert lag(agent) == 0
    assert moved(agent, engine_name, "PPO")


def lag(agent):
    """How far the old policy is from the actor."""
    weights = agent._session_state.session.learner.engine.weights()
    actor = [value for name, value in weights.items() if name.startswith("actor")]
    old = [value for name, value in weights.items() if name.startswith("old")]
    return max(np.abs(a - b).max() for a, b in zip(actor, old, strict=True))


@pytest.mark.variant
def test_on_policy_with_priorities_the_pool_is_cut_and_ratios_count(engine_name):
    agent = trained(engine_name, kind="PPO", settings=on_policy(PR=True, num_updates=3), episodes=1)
    assert len(pool_of(agent)) == 5
    selector = pool_of(agent).selector
    assert selector.reported and selector.mix == 0.5
    assert selector.deviation[selector.error >= 0].max() > 0
    train(agent, engine_name, 1, window_size_ppo=3)
    assert len(pool_of(agent)) == 3


def test_on_policy_workers_do_not_collect_with_the_policy_before_the_last(engine_name):
    once(engine_name)
    agent = trained(engine_name, kind="PPO", settings=on_policy(), env=[Walk, Walk], processes=2)
    assert agent.reward_list == [5.0] * 3
    assert agent._session_state.session.learner.engine.exportable


@pytest.mark.variant
def test_several_steps_make_one_transition(engine_name):
    agent = trained(engine_name, settings=discrete(num_steps=3))
    batch = pool_of(agent).sample(1, 64)
    assert sorted({round(float(r), 4) for r in batch.reward.ravel()}) == [1.0, 1.9, 2.71]
    assert len(agent.loss_list) == 3


@pytest.mark.variant
@pytest.mark.parametrize("processes", [None, 2])
def test_goals_are_relabelled_in_hindsight(processes, engine_name):
    env = None if processes is None else [Reach, Reach]
    agent = trained(
        engine_name, Reaching, kind="DDPG", env=env or Reach, settings=continuous(HER=True), processes=processes
    )
    assert len(agent.loss_list) == 3
    goals = pool_of(agent).sample(1, 64).observation["desired_goal"]
    assert np.isclose(goals, 0.5).any() and not np.isclose(goals, 0.5).all()


@pytest.mark.variant
def test_triplets_come_from_one_trajectory(engine_name):
    agent = trained(engine_name, OfTriplets, settings=discrete(TRL=True))
    assert len(agent.loss_list) == 3
    first, second = pool_of(agent).sample(1, 16).observation
    assert (first[..., 0] < second[..., 0]).all(), "the share of the episode that is over"


@pytest.mark.variant
@pytest.mark.parametrize("processes", [None, 2])
def test_several_agents_learn_from_joint_transitions(processes, engine_name):
    agent = trained(engine_name, kind="Team", settings=discrete(MARL=True), processes=processes)
    assert agent.reward_list == [5.0 * (1 + 2)] * 3
    assert len(agent.loss_list) == 3
    assert pool_of(agent).sample(1, 4).reward[0].tolist() == [[1.0, 2.0]] * 4


def test_several_agents_may_be_scored_and_ended_by_a_function_of_the_user(engine_name):
    once(engine_name)

    class Scored:
        def reward_done_func_ma(self, r, d):
            return r[1] - r[0], bool(d.any())

    agent = trained(engine_name, Scored, kind="Team", settings=discrete(MA=True))
    assert agent.reward_list == [5.0] * 3


def test_a_list_of_policies_gives_one_to_each_process(engine_name):
    once(engine_name)
    env = [Walk, lambda: Walk(reward=2.0)]  # the reward tells where a step was taken
    settings = discrete(policy=[EpsGreedyQPolicy(0.0), EpsGreedyQPolicy(1.0)], pool_size=1000, num_updates=1)
    agent = agent_for(engine_name, env=env)
    agent.set(**settings)
    train(agent, engine_name, 12)
    batch = pool_of(agent).sample(1, 400)
    random = batch.reward[0] == 2.0
    best = np.asarray(agent._session_state.session.learner.engine.act(batch.observation[0])).argmax(-1)
    agreed = best == batch.action[0]
    assert 0 < random.sum() < 400
    assert agreed[~random].mean() > 0.8 > agreed[random].mean()


def test_a_list_of_noises_gives_one_to_each_process(engine_name):
    once(engine_name)
    settings = continuous(noise=[GaussianWhiteNoiseProcess(sigma=0.0), GaussianWhiteNoiseProcess(mu=5.0, sigma=0.01)])
    agent = trained(engine_name, kind="DDPG", settings=settings, processes=2, episodes=2)
    batch = pool_of(agent).sample(1, 64)
    action = batch.action.ravel()
    assert set((action == 1.0).tolist()) == {True, False}, "the pool holds actions as they were executed"
    assert (batch.reward.ravel()[action == 1.0] == 1.0).all(), "the environment gets an action within its bounds"
    assert (np.abs(action) <= 1.0).all()


def test_epsilon_is_that_of_the_policy(engine_name):
    once(engine_name)
    policy = EpsGreedyQPolicy(0.3)
    trained(engine_name, settings=discrete(policy=policy, epsilon=0.05), episodes=1)
    assert policy.eps == 0.05


def test_probabilities_are_sampled_from(engine_name):
    once(engine_name)
    agent = trained(engine_name, kind="PPO", settings=on_policy(policy=SoftmaxPolicy(), update_steps=1000))
    assert set(pool_of(agent).sample(1, 15).action.ravel().tolist()) == {0, 1}


def test_an_environment_of_the_old_style_is_adapted_with_one_warning(engine_name):
    agent = agent_for(engine_name, env=[Old(), Old()])
    agent.set(**discrete())
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        train(agent, engine_name, 2)
        train(agent, engine_name, 1)
    about = [str(each.message) for each in heard if "Old" in str(each.message)]
    assert len(about) == 1 and "reset" in about[0]
    assert agent.reward_list == [5.0] * 3
