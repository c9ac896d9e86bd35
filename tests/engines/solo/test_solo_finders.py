"""Finders on agents of one's own: what they find, and that the agent is left as it was."""

import copy
import functools
import os

import cloudpickle
import numpy as np
import pytest
import solo_agents_worlds as worlds
from solo_agents import agent_for, discrete, on_policy, once, train
from solo_cases import agents_of, optimizers_for

from etude.base.errors import ConfigError, EnvironmentFault
from etude.solo.engines import load_weights, weights
from etude.solo.settings import options_from
from etude.tuning import LRFinder, OptFinder, ParallelFinder
from etude.tuning.finding.lr_finder import LearningRates
from etude.tuning.finding.parallel import SentAgentCandidate


def flat(tree, path=""):
    """The arrays and numbers of nested dicts and lists, by path."""
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else None
    if parts is None:
        return {path: tree}
    return {place: leaf for key, part in parts for place, leaf in flat(part, f"{path}.{key}").items()}


def assert_same(before, after):
    before, after = flat(before), flat(after)
    assert before.keys() == after.keys()
    assert [path for path in before if not np.array_equal(before[path], after[path])] == []


def new(engine_name, kind="DQN", **settings):
    agent = agent_for(engine_name, kind)
    agent.set(**(discrete(**settings) if kind == "DQN" else on_policy(**settings)))
    agent.optimizer = optimizers_for(agent, agents_of(engine_name))
    return agent


def changing(agent):
    """Its `update_param`, which also changes plain attributes of the agent and of its policy."""
    policy, update = agent._session_state.settings.policy, agent.update_param

    def called():
        agent.notes.append(3)
        policy.eps *= 0.9
        update()

    return called


def test_a_ramp_leaves_a_trained_agent_as_it_was(engine_name, tmp_path):
    agent, untouched = new(engine_name), new(engine_name)
    for each in (agent, untouched):
        train(each, engine_name, 4)
    agent.notes, agent.path = [1, 2], str(tmp_path / "agent.dat")
    agent.update_param = changing(agent)
    session = agent._session_state.session
    before, traces = copy.deepcopy(session.state(True)), session.learner.engine.traces
    finder = LRFinder(agent)
    finder.find(N=12, window_size=3, start_lr=1e-4, end_lr=10.0)
    assert len(finder.losses) == 12 and finder.rates[0] == 1e-4
    assert np.allclose(finder.rates[1:] / finder.rates[:-1], 1e5 ** (1 / 12))
    assert session is agent._session_state.session and session.learner.engine.traces == traces
    assert_same(before, session.state(True))
    assert agent.notes == [1, 2] and agent.total_episode == 4 and not (tmp_path / "agent.dat").exists()
    assert agent._session_state.settings.policy.eps == 0.2
    agent.path = None
    del agent.update_param
    for each in (agent, untouched):
        train(each, engine_name, 2)
    assert agent.reward_list == untouched.reward_list and agent.loss_list == untouched.loss_list


def test_a_ramp_leaves_a_new_agent_as_it_was_and_learns_with_its_rates(engine_name):
    agent = new(engine_name)
    before = weights(agent)
    finder = LRFinder(agent)
    finder.find(N=30, start_lr=1e-9, end_lr=1e3)
    assert_same(before, weights(agent))
    assert agent.total_episode == 0 and agent._session_state.session is None
    assert np.ptp(finder.losses[-4:]) > 100 * np.ptp(finder.losses[:4])  # the rate did reach the optimizer


def rate_of(optimizer, engine_name):
    return optimizer.param_groups[0]["lr"] if engine_name == "torch" else float(np.asarray(optimizer.learning_rate))


@pytest.mark.variant("jax")
def test_several_learning_rates_keep_their_ratio(engine_name):
    agent = new(engine_name, "PPO")
    rates = LearningRates(agent._session(options_from(agent, {}), None).learner.engine)
    second = agent.optimizer[1]
    rates.set(0.5)
    assert rate_of(second, engine_name) == pytest.approx(0.5)
    finder = LRFinder(agent)
    finder.find(N=6, episodes=40)
    assert len(finder.losses) == 6


def test_a_ramp_that_episodes_cut_short_says_where_it_ended(engine_name):
    finder = LRFinder(new(engine_name))
    found = finder.find(N=1000, episodes=4)
    assert len(finder.rewards) == 4 and "of 1000 updates" in found.reason


def test_an_environment_that_breaks_leaves_the_agent_as_it_was(engine_name):
    once(engine_name)
    agent = new(engine_name)
    agent.env = Breaks
    train(agent, engine_name, 2)
    session = agent._session_state.session
    before = copy.deepcopy(session.state(True))
    with pytest.raises(EnvironmentFault, match="simulator is gone"):
        LRFinder(agent).find(N=1000)
    assert session is agent._session_state.session and agent.total_episode == 2
    assert_same(before, session.state(True))


@pytest.mark.variant
def test_curves_are_drawn(engine_name, tmp_path):
    finder = LRFinder(new(engine_name))
    with pytest.raises(ConfigError, match="Call find"):
        finder.plot_reward()
    finder.find(N=20)
    finder.plot_reward(2, 1, path=tmp_path / "reward.png")
    finder.plot_loss(2, 1, path=tmp_path / "loss.png")
    axes = finder.plot_reward_change(4, 2, 1, (-0.5, 0.25), path=tmp_path / "change.png").axes[0]
    assert axes.get_ylim() == (-0.5, 0.25) and len(axes.lines[0].get_xdata()) == 17
    assert len(list(tmp_path.glob("*.png"))) == 3
    curve = finder.reward_curve
    assert finder.reward_change(4)[4:] == pytest.approx((curve[4:] - curve[:-4]) / 4)
    with pytest.raises(ConfigError, match="leave some"):
        finder.plot_reward(15, 5)


def test_an_agent_that_cannot_train_is_refused_and_left_as_it_was(engine_name):
    agent = new(engine_name)
    agent.optimizer = None
    with pytest.raises(ConfigError, match="optimizer"):
        LRFinder(agent).find(N=10)
    with pytest.raises(ConfigError, match="window_size"):
        LRFinder(agent).find(window_size=0)
    with pytest.raises(ConfigError, match="takes no argument windows"):
        LRFinder(agent).find(windows=1)
    assert agent._session_state.session is None


class Dies:
    """Its process ends in the middle of the second learning phase."""

    def update_param(self):
        super().update_param()
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 2:
            os._exit(3)


class Raises:
    """It raises when it learns."""

    def __call__(self, *arguments):
        raise ValueError("no loss today")


def two_optimizers(agent, engine_name, diverging=1e30):
    """Adam, and a gradient descent that diverges."""
    framework = agents_of(engine_name)
    return [framework.optimizer(agent.param, 1e-2), framework.sgd(agent.param, diverging)]


@pytest.mark.variant
def test_candidates_in_worker_processes_learn_as_those_in_this_process(engine_name):
    agent = new(engine_name)
    train(agent, engine_name, 3)
    session = agent._session_state.session
    before, optimizer = copy.deepcopy(session.state(True)), agent.optimizer
    finder = OptFinder(agent, two_optimizers(agent, engine_name, 1e-3))
    here = finder.find(episodes=4, jobs=1)
    assert_same(before, session.state(True))
    assert agent.optimizer is optimizer and agent.total_episode == 3
    assert [len(rewards) for rewards in here["rewards"].values()] == [4, 4]
    assert here["losses"][0] != here["losses"][1]
    there = finder.find(episodes=4, jobs=2)
    assert here["rewards"] == there["rewards"]
    assert np.allclose(here["losses"][0], there["losses"][0], rtol=1e-5)
    means = {i: np.mean(rewards) for i, rewards in there["rewards"].items()}
    assert there["best_reward"] == pytest.approx(max(means.values()))
    assert there["best_opt"] is finder.optimizers[max(means, key=means.get)]


@pytest.mark.variant
def test_a_candidate_that_diverges_is_reported_and_the_others_go_on(engine_name):
    agent = new(engine_name)
    finder = OptFinder(agent, two_optimizers(agent, engine_name))
    logs = finder.find(episodes=6, metrics="loss", jobs=1)
    assert list(logs["failed"]) == [1] and "finite" in logs["failed"][1]
    assert logs["best"] == 0 and logs["best_loss"] == pytest.approx(np.mean(logs["losses"][0]))
    header, rows = finder.table()
    assert rows[0][-1] == "best" and rows[1][2:4] == ("", "") and len(header) == len(rows[0])


def test_a_candidate_whose_process_dies_is_reported_and_the_others_go_on(engine_name):
    once(engine_name)
    agents = [new(engine_name), agent_for(engine_name, "DQN", Dies), agent_for(engine_name, "DQN", Raises)]
    for agent in agents[1:]:
        agent.set(**discrete())
    optimizers = [optimizers_for(agent, agents_of(engine_name)) for agent in agents]
    logs = ParallelFinder(agents, optimizers).find(episodes=4, jobs=2)
    assert "exited with code 3" in logs["failed"][1] and "no loss today" in logs["failed"][2]
    assert logs["best"] == 0 and len(logs["rewards"][0]) == 4


def test_agents_that_are_alike_begin_with_the_weights_of_the_first(engine_name):
    once(engine_name)
    agents = [new(engine_name) for _ in range(2)]
    load_weights(agents[1], {name: value + 1 for name, value in weights(agents[1]).items()})
    agents[1].seed = 5
    before = weights(agents[1])
    optimizers = [optimizers_for(agent, agents_of(engine_name)) for agent in agents]
    logs = ParallelFinder(agents, optimizers).find(episodes=3, jobs=1)
    assert logs["rewards"][0] == logs["rewards"][1] and logs["losses"][0] == logs["losses"][1]
    assert_same(before, weights(agents[1]))
    assert agents[1].seed == 5 and logs["own_weights"] == []


def test_what_cannot_be_compared_is_refused_before_anything_is_trained(engine_name):
    once(engine_name)
    agent = new(engine_name)
    optimizer = agent.optimizer
    with pytest.raises(ConfigError, match="one optimizer for each"):
        ParallelFinder([agent], [])
    with pytest.raises(ConfigError, match="derived from etude.RL"):
        OptFinder(object(), [optimizer])
    with pytest.raises(ConfigError, match="metrics"):
        OptFinder(agent, [optimizer]).find(metrics="speed")
    with pytest.raises(ConfigError, match="torch.optim.Optimizer"):
        OptFinder(agent, ["adam", optimizer]).find(jobs=2)
    agent.env = Unsendable()
    with pytest.raises(ConfigError, match="jobs=1"):
        OptFinder(agent, [optimizer, optimizer]).find(jobs=2)


def sent(agent):
    """The agent as a worker process makes it."""
    return cloudpickle.loads(SentAgentCandidate.of(agent, agent.optimizer, {}, 0).copy).made()


def test_an_agent_is_made_again_with_its_numbers_and_no_other_attributes(engine_name):
    agent = new(engine_name)
    agent.gamma, agent.shares = 0.5, [0.1, 0.9]
    again = sent(agent)
    assert (again.gamma, again.shares, again.env) == (0.5, [0.1, 0.9], agent.env)
    assert type(again.optimizer) is type(agent.optimizer)
    assert rate_of(again.optimizer, engine_name) == pytest.approx(1e-2)
    assert again._session_state.settings == agent._session_state.settings
    agent.hook = lambda: None
    with pytest.raises(ConfigError, match="hook of DQN was set after.*jobs=1"):
        sent(agent)


def test_an_agent_is_sent_with_an_environment_whose_methods_are_cached(engine_name):
    once(engine_name)

    class Cached(worlds.Walk):
        @functools.cache  # noqa: B019
        def space(self):
            return self.action_space

    agent = new(engine_name)
    agent.env = Cached()
    assert sent(agent).env.space() == agent.env.space()


class Breaks(worlds.Walk):
    """It breaks in its eighth episode."""

    episodes = 0

    def reset(self, **options):
        self.episodes += 1
        if self.episodes == 8:
            raise OSError("the simulator is gone")
        return super().reset(**options)


class Unsendable(worlds.Walk):
    """An environment that holds what no other process can have."""

    def __reduce_ex__(self, protocol):
        raise TypeError("holds a device")
