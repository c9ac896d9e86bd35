"""What agents of one's own write to files, and how they go on from them."""

import copy
import warnings

import cloudpickle
import numpy as np
import pytest
from cases import variants_but
from solo_agents import HOLDERS, NotDense, agent_for, continuous, discrete, on_policy, once, pool_of, train
from solo_agents_worlds import Walk
from solo_cases import agents_of, optimizers_for

import etude.solo
from etude import checkpoint
from etude.base.errors import CheckpointError, ConfigError
from etude.explore import EpsGreedyQPolicy
from etude.solo.engines import parameters, weights
from etude.tuning import LRFinder

pytestmark = pytest.mark.usefixtures("workers_step")
KINDS = {
    "DQN": discrete(),
    "priorities": discrete(PR=True),
    "PPO": on_policy(update_steps=12, num_updates=2),
    "DDPG": continuous(num_steps=3),
}


def new(engine_name, kind="DQN", **attributes):
    agent = agent_for(engine_name, kind if kind in ("PPO", "DDPG") else "DQN", **attributes)
    agent.set(**KINDS[kind])
    return agent


def numbers(agent):
    """All that tells whether two trainings were the same."""
    return list(agent.reward_list), list(agent.loss_list), [value.tolist() for value in parameters(agent).values()]


def changed(agent):
    """The agent with other weights, as one that was made with another seed."""
    from etude.solo.engines import load_weights

    load_weights(agent, {n: v + 0.1 if v.dtype == np.float32 else v for n, v in weights(agent).items()})
    return agent


@pytest.mark.parametrize("kind", variants_but(("DQN",), KINDS))
def test_a_restored_agent_goes_on_as_if_training_had_not_been_interrupted(kind, engine_name, tmp_path):
    whole, first, second = (new(engine_name, kind) for _ in range(3))
    train(whole, engine_name, 3)
    train(whole, engine_name, 3)
    train(first, engine_name, 3)
    first.save(tmp_path / "model.dat")
    changed(second).restore(tmp_path / "model.dat")
    assert second.total_episode == 3
    train(second, engine_name, 3)
    assert numbers(second) == numbers(whole)


def renamed_back(path):
    """Write a file's state with the names that version 0.1.0 had for its fields."""
    state = checkpoint.read(path)
    state["agent"]["record"] = state["agent"].pop("history")
    progress = state["training"]["progress"]
    (_, batches), rounds = progress.pop("followed"), progress.pop("collections")
    progress |= {"rounds": rounds, "targets": batches // KINDS["DQN"].get("update_batches", 1)}
    progress["updates"] = progress.pop("gradient_steps")
    checkpoint.write(path, state)


@pytest.mark.variant
def test_a_file_of_an_earlier_version_is_continued_with_the_same_numbers(engine_name, tmp_path):
    class Named:
        """Its target network has the name of one of an example agent's; names are the user's, and stay."""

        @property
        def target(self):
            return self.lagged_actor

        @target.setter
        def target(self, network):
            self.lagged_actor = network

    whole, first, second = (agent_for(engine_name, "DQN", Named) for _ in range(3))
    for agent in (whole, first, second):
        agent.set(**KINDS["DQN"])
    train(whole, engine_name, 6)
    train(first, engine_name, 3)
    first.save(tmp_path / "model.dat")
    renamed_back(tmp_path / "model.dat")
    changed(second).restore(tmp_path / "model.dat")
    assert any(name.startswith("lagged_actor.") for name in weights(second))
    train(second, engine_name, 3)
    assert numbers(second) == numbers(whole)


def test_a_state_that_does_not_fit_is_refused_whenever_train_is_called(engine_name, tmp_path):
    once(engine_name)
    agent, other = new(engine_name), new(engine_name)
    train(agent, engine_name, 3)
    agent.save(tmp_path / "model.dat")
    other.set(**discrete(pool_size=100))
    other.restore(tmp_path / "model.dat")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="capacity was 200, is 100"):
            train(other, engine_name, 1)
    other.set(**discrete())
    train(other, engine_name, 1)
    assert len(pool_of(other)) == 4 * 5


def test_numbers_that_were_annealed_go_on_from_where_they_were_saved(engine_name, tmp_path):
    def annealed():
        agent = agent_for(engine_name, factor=1.0, episodes_seen=0)
        agent.set(**discrete(policy=EpsGreedyQPolicy(1.0)))
        return agent

    def anneal(agent, episodes):
        def lower(episode, logs):
            agent._session_state.settings.policy.eps *= 0.7
            agent.scale *= 0.9
            agent.factor = agent.factor / 2
            agent.episodes_seen += 1

        train(agent, engine_name, episodes, callbacks=[etude.solo.LambdaCallback(on_episode_end=lower)])

    whole, first, second = annealed(), annealed(), annealed()
    for _ in range(2):
        anneal(whole, 5)
    anneal(first, 5)
    first.save(tmp_path / "model.dat")
    second.restore(tmp_path / "model.dat")
    assert (second.factor, second.episodes_seen) == (0.5**5, 5)
    anneal(second, 5)
    assert second._session_state.settings.policy.eps == pytest.approx(0.7**10)
    assert numbers(second) == numbers(whole)


def test_a_learning_rate_that_is_not_the_saved_one_is_told(engine_name, tmp_path):
    agent, other = new(engine_name), new(engine_name)
    train(agent, engine_name, 2)
    agent.save(tmp_path / "model.dat")
    other.optimizer = optimizers_for(other, agents_of(engine_name), 0.003)
    other.restore(tmp_path / "model.dat")
    with pytest.warns(UserWarning, match=r"learning rate 0\.003 .*goes on with 0\.01, .*saved"):
        train(other, engine_name, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        train(other, engine_name, 1)


@pytest.mark.parametrize("change", ["optimizer", "batch"])
def test_the_pool_stays_where_another_optimizer_or_batch_is_given(change, engine_name):
    agent = new(engine_name)
    train(agent, engine_name, 4)
    before = {name: value.copy() for name, value in pool_rows(agent).items()}
    if change == "optimizer":
        agent.optimizer = optimizers_for(agent, agents_of(engine_name), 0.003)
    else:
        agent.set(**discrete(batch=8, policy=agent._session_state.settings.policy))
    train(agent, engine_name, 1)
    assert len(pool_of(agent)) == 25
    for name, value in pool_rows(agent).items():
        assert np.array_equal(value[:20], before[name]), name
    assert agent._session_state.session.learner.progress.step == 25


def pool_rows(agent):
    ring = pool_of(agent).ring
    rows = ring.locate(np.arange(len(ring)))
    return {"action": ring.action[rows], "reward": ring.reward[rows]}


@pytest.mark.parametrize("change", ["processes", "env", "pool_size"])
def test_a_pool_that_cannot_stay_is_dropped_with_a_warning(change, engine_name):
    once(engine_name)
    agent = new(engine_name)
    train(agent, engine_name, 4)
    given = {"processes": 2} if change == "processes" else {}
    if change == "env":
        agent.env = lambda: Walk(length=7)
    elif change == "pool_size":
        agent.set(**discrete(pool_size=100))
    with pytest.warns(UserWarning, match=r"pool of 20 transitions is dropped"):
        train(agent, engine_name, 1, **given)
    assert agent.total_episode == 5


def test_training_goes_on_between_two_collections_of_one_phase_and_into_the_same_random_columns(engine_name, tmp_path):
    once(engine_name)
    options = {"random": True, "num_store": 2}
    whole, first, second = (new(engine_name, env=[lambda: Walk(length=3), Walk, Walk]) for _ in range(3))
    train(whole, engine_name, 3, **options)
    train(whole, engine_name, 5, **options)
    train(first, engine_name, 3, **options)
    first.save(tmp_path / "model.dat")
    second.restore(tmp_path / "model.dat")
    train(second, engine_name, 5, **options)
    assert len(whole.loss_list) == 4
    assert numbers(second) == numbers(whole)
    assert pool_of(second).ring.filled.tolist() == pool_of(whole).ring.filled.tolist()


@pytest.mark.variant
def test_two_calls_of_train_play_what_one_call_does(engine_name):
    one, two = new(engine_name), new(engine_name)
    train(one, engine_name, 4)
    train(two, engine_name, 1)
    train(two, engine_name, 3)
    assert numbers(one) == numbers(two)


def test_an_agent_that_has_trained_goes_back_to_what_it_saved(engine_name, tmp_path):
    once(engine_name)
    agent = new(engine_name)
    train(agent, engine_name, 2)
    agent.save(tmp_path / "model.dat")
    train(agent, engine_name, 2)
    expected = numbers(agent)
    train(agent, engine_name, 3)
    agent.restore(tmp_path / "model.dat")
    train(agent, engine_name, 2)
    assert numbers(agent) == expected


def test_an_agent_is_saved_and_restored_before_it_trains(engine_name, tmp_path):
    agent, other = new(engine_name), changed(new(engine_name))
    agent.save(tmp_path / "model.dat")
    other.restore(tmp_path / "model.dat")
    other.save(tmp_path / "again.dat")
    train(agent, engine_name, 2)
    train(other, engine_name, 2)
    assert numbers(agent) == numbers(other)


def test_without_save_data_training_goes_on_with_an_empty_pool(engine_name, tmp_path):
    once(engine_name)
    agent, other = new(engine_name), new(engine_name)
    train(agent, engine_name, 3, save_data=False)
    agent.save(tmp_path / "model.dat")
    other.restore(tmp_path / "model.dat")
    train(other, engine_name, 1)
    assert len(pool_of(other)) == 5
    assert other.total_episode == 4


@pytest.mark.variant
@pytest.mark.parametrize("mixins", [(), (NotDense,)], ids=["exported", "in the parent"])
def test_a_pool_goes_on_where_it_was(mixins, engine_name, tmp_path):
    agents = [agent_for(engine_name, "DQN", *mixins, env=[Walk, Walk]) for _ in range(2)]
    for agent in agents:
        agent.set(**discrete())
    train(agents[0], engine_name, 2, processes=2, parallel_store_and_training=False)
    agents[0].save(tmp_path / "model.dat")
    agents[1].restore(tmp_path / "model.dat")
    train(agents[0], engine_name, 2)
    train(agents[1], engine_name, 2)
    assert numbers(agents[0]) == numbers(agents[1])


def test_parameters_alone_are_saved_and_restored(engine_name, tmp_path):
    agent, other = new(engine_name), changed(new(engine_name))
    agent.save_param(tmp_path / "param.dat")
    target = {name: value for name, value in weights(other).items() if name not in parameters(other)}
    other.restore_param(tmp_path / "param.dat")
    assert same(parameters(other), parameters(agent))
    assert same(target, {name: weights(other)[name] for name in target}), "what is not in param stays"
    train(other, engine_name, 1)
    other.restore_param(tmp_path / "param.dat")
    assert same(parameters(other), parameters(agent))


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copy_of_a_trained_agent_trains_on_as_the_agent_does(way, engine_name):
    agent = new(engine_name, "priorities")
    train(agent, engine_name, 3)
    other = copy.deepcopy(agent) if way == "deepcopy" else cloudpickle.loads(cloudpickle.dumps(agent))
    assert same(weights(other), weights(agent))
    train(other, engine_name, 2)
    assert len(agent.reward_list) == 3
    train(agent, engine_name, 2)
    assert numbers(other) == numbers(agent)


@pytest.mark.parametrize("holder", HOLDERS)
def test_networks_in_an_object_of_the_users_own_are_saved_copied_and_put_back(holder, engine_name, tmp_path):
    mixin, first = HOLDERS[holder]
    agent, other = (agent_for(engine_name, "DQN", mixin) for _ in range(2))
    for each in (agent, other):
        each.set(**discrete())
    train(agent, engine_name, 3)
    assert [name.startswith(first) for name in weights(agent)] == 4 * [True] + 4 * [False]
    before = weights(agent)
    LRFinder(agent).find(N=6, start_lr=1e-2, end_lr=1.0, p=0)
    assert same(weights(agent), before)
    agent.save(tmp_path / "model.dat")
    changed(other).restore(tmp_path / "model.dat")
    copied = copy.deepcopy(agent)
    assert same(weights(other), before) and same(weights(copied), before)
    for each in (agent, other, copied):
        train(each, engine_name, 2)
    assert numbers(agent) == numbers(other) == numbers(copied)


def test_a_copy_in_keras_does_not_lose_networks_in_silence(engine_name):
    if engine_name == "torch":
        pytest.skip("torch copies networks wherever they are")
    agent = new(engine_name)
    agent.late = agents_of(engine_name).mlp(3, 2)
    with pytest.raises(ConfigError, match="late of DQN was set after the agent was made.*in __init__"):
        copy.deepcopy(agent)


def test_saving_and_restoring_are_functions_too(engine_name, tmp_path):
    once(engine_name)
    agent, other = new(engine_name), changed(new(engine_name))
    train(agent, engine_name, 1)
    etude.solo.save(agent, tmp_path / "model.dat")
    etude.solo.restore(other, tmp_path / "model.dat")
    assert same(weights(other), weights(agent))
    etude.solo.save_param(agent, tmp_path / "param.dat")
    assert same(etude.solo.restore_param(tmp_path / "param.dat"), parameters(agent))


def test_files_are_of_the_format_of_checkpoints_whatever_their_name(engine_name, tmp_path):
    once(engine_name)
    agent = new(engine_name)
    train(agent, engine_name, 1)
    agent.save(tmp_path / "model.dat")
    held = (tmp_path / "model.dat").read_bytes()
    assert held.startswith(b"\x89ETUDE"), "see docs/checkpoints.md"


def test_a_file_of_something_else_is_refused(engine_name, tmp_path):
    agent = new(engine_name)
    agent.save_param(tmp_path / "param.dat")
    with pytest.raises(CheckpointError, match="agent"):
        agent.restore(tmp_path / "param.dat")
    (tmp_path / "other.dat").write_bytes(b"\x80\x04}q\x00.")
    with pytest.raises(CheckpointError):
        agent.restore_param(tmp_path / "other.dat")
    with pytest.raises(CheckpointError):
        agent.restore(tmp_path / "missing.dat")


def test_the_file_of_another_agent_is_refused_by_name(engine_name, tmp_path):
    new(engine_name, "DDPG").save(tmp_path / "model.dat")
    with pytest.raises(CheckpointError, match="at agent/weights; expected"):
        new(engine_name).restore(tmp_path / "model.dat")


def saved(engine_name, tmp_path, episodes=7, **attributes):
    agent = new(engine_name, path=str(tmp_path / "model.dat"), **attributes)
    train(agent, engine_name, episodes)
    return agent, sorted(path.name for path in tmp_path.iterdir())


def test_one_file_is_written_over_every_so_many_episodes(engine_name, tmp_path):
    once(engine_name)
    agent, files = saved(engine_name, tmp_path, save_freq=2)
    assert files == ["model.dat"]
    other = new(engine_name)
    other.restore(tmp_path / "model.dat")
    assert other.total_episode == agent.total_episode == 7, "the end of training is saved, too"


def test_so_many_files_are_kept(engine_name, tmp_path):
    once(engine_name)
    _, files = saved(engine_name, tmp_path, save_freq=2, max_save_files=2)
    assert files == ["model-6.dat", "model-7.dat"]


def test_parameters_only_are_written_while_training(engine_name, tmp_path):
    once(engine_name)
    agent, files = saved(engine_name, tmp_path, save_freq=3, save_param_only=True)
    assert files == ["model.dat"]
    assert same(etude.solo.restore_param(tmp_path / "model.dat"), parameters(agent))


def test_the_best_only_is_kept(engine_name, tmp_path):
    once(engine_name)

    class Uneven(Walk):
        """The second episode that is played is the best."""

        resets = 0

        def reset(self, **options):
            self.resets += 1
            self.reward = {2: 1.0, 3: 3.0}.get(self.resets, 2.0)  # the first reset looks at the environment
            return super().reset(**options)

    env = Uneven()
    agent = new(engine_name, env=env, path=str(tmp_path / "model.dat"), save_best_only=True)
    train(agent, engine_name, 4)
    other = new(engine_name)
    other.restore(tmp_path / "model.dat")
    assert agent.reward_list[: other.total_episode + 1].index(max(agent.reward_list)) == other.total_episode - 1
    assert other.total_episode < 4
    assert [path.name for path in tmp_path.iterdir()] == ["model.dat"]


def saving_best(engine_name, tmp_path, trial_count=None):
    """An agent that saves its best only."""
    agent = agent_for(engine_name, env=Walk(length=1))
    agent.set(**discrete(trial_count=trial_count, batch=1))
    agent.path, agent.save_best_only = str(tmp_path / "model.dat"), True
    return agent


def earn(agent, engine_name, *rewards):
    """Train for an episode that earns each of these."""
    begin = etude.solo.LambdaCallback(on_episode_begin=lambda i, logs: setattr(agent.env, "reward", (*rewards, 0)[i]))
    train(agent, engine_name, len(rewards), callbacks=[begin])


def episodes_in(engine_name, tmp_path):
    other = new(engine_name)
    other.restore(tmp_path / "model.dat")
    return other.total_episode


def test_the_best_is_kept_by_later_calls_of_train_and_by_a_restored_agent(engine_name, tmp_path):
    once(engine_name)
    agent = saving_best(engine_name, tmp_path)
    earn(agent, engine_name, 20.0, 100.0)
    earn(agent, engine_name, -50.0, 30.0)
    assert episodes_in(engine_name, tmp_path) == 2, "100 is better than -50"
    again = saving_best(engine_name, tmp_path)
    again.restore(tmp_path / "model.dat")
    earn(again, engine_name, -50.0, 99.0)
    assert episodes_in(engine_name, tmp_path) == 2
    earn(again, engine_name, 101.0)
    assert episodes_in(engine_name, tmp_path) == 5


def test_the_best_is_the_highest_mean_over_all_of_trial_count_episodes(engine_name, tmp_path):
    once(engine_name)
    agent = saving_best(engine_name, tmp_path, trial_count=3)
    earn(agent, engine_name, 100.0, 0.0)
    assert list(tmp_path.iterdir()) == [], "no mean over three episodes yet"
    earn(agent, engine_name, 2.0)
    assert episodes_in(engine_name, tmp_path) == 3, "34 is the mean over 100, 0 and 2"
    earn(agent, engine_name, 4.0, 6.0, -9.0)
    assert episodes_in(engine_name, tmp_path) == 3
    agent.set(**discrete(trial_count=2, batch=1))
    earn(agent, engine_name, 7.0)
    assert episodes_in(engine_name, tmp_path) == 7, "means over other numbers of episodes are not compared"


def test_so_many_files_are_kept_over_all_calls_of_train_and_restorations(engine_name, tmp_path):
    once(engine_name)
    agent, _ = saved(engine_name, tmp_path, episodes=2, max_save_files=2)
    train(agent, engine_name, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model-3.dat", "model-4.dat"]
    again = new(engine_name, path=agent.path, max_save_files=2)
    again.restore(tmp_path / "model-4.dat")
    train(again, engine_name, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model-4.dat", "model-5.dat"]


def test_training_goes_on_where_a_file_cannot_be_written(engine_name, tmp_path):
    once(engine_name)
    agent = new(engine_name, path=str(tmp_path / "no" / "folder" / "model.dat"))
    (tmp_path / "no").write_text("a file where a folder is wanted")
    with pytest.warns(UserWarning, match="Training goes on without this checkpoint"):
        train(agent, engine_name, 2)
    assert agent.total_episode == 2


def test_training_goes_on_where_an_old_file_cannot_be_removed(engine_name, tmp_path):
    once(engine_name)

    class InTheWay(etude.solo.Callback):
        def on_episode_end(self, episode, logs):
            old = tmp_path / "model-2.dat"
            if old.is_file():
                old.unlink()
                old.mkdir()

    agent = new(engine_name, path=str(tmp_path / "model.dat"), save_freq=2, max_save_files=1)
    train(agent, engine_name, 6, callbacks=[InTheWay()])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model-2.dat", "model-6.dat"]
