"""Finders on agents of one's own: what they find, and that the agent is left as it was."""

import copy

import numpy as np
import pytest
from solo_agents import agent_for, discrete, on_policy, train
from solo_cases import agents_of, optimizers_for

from etude.base.errors import ConfigError
from etude.solo.engines import weights
from etude.tuning import LRFinder


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


def test_a_ramp_leaves_a_trained_agent_as_it_was(engine_name, tmp_path):
    agent, untouched = new(engine_name), new(engine_name)
    agent.notes, agent.path = [1, 2], str(tmp_path / "agent.dat")
    for each in (agent, untouched):
        train(each, engine_name, 4)
    (tmp_path / "agent.dat").unlink()
    session = agent._session_state.session
    before, traces = copy.deepcopy(session.state(True)), session.learner.engine.traces
    finder = LRFinder(agent)
    finder.find(N=12, window_size=3, start_lr=1e-4, end_lr=10.0)
    assert len(finder.losses) == 12 and finder.rates[0] == 1e-4
    assert np.allclose(finder.rates[1:] / finder.rates[:-1], 1e5 ** (1 / 12))
    assert session is agent._session_state.session and session.learner.engine.traces == traces
    assert_same(before, session.state(True))
    assert agent.notes == [1, 2] and agent.total_episode == 4 and not (tmp_path / "agent.dat").exists()
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


def test_several_learning_rates_keep_their_ratio(engine_name):
    from etude.solo.engines.optimizers import LearningRates

    agent = new(engine_name, "PPO")
    rates = LearningRates(agent.framework, agent.optimizer)
    second = agent.optimizer[1]
    rates.set(0.5)
    found = second.param_groups[0]["lr"] if engine_name == "torch" else float(np.asarray(second.learning_rate))
    assert found == pytest.approx(0.5)
    finder = LRFinder(agent)
    finder.find(N=6, episodes=40)
    assert len(finder.losses) == 6


def test_a_ramp_that_episodes_cut_short_says_where_it_ended(engine_name):
    finder = LRFinder(new(engine_name))
    found = finder.find(N=1000, episodes=4)
    assert len(finder.rewards) == 4 and "of 1000 updates" in found.reason


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
