"""`adjust` and its relatives: which hyperparameters of an agent move, in which direction, and where they are used."""

import functools

import cloudpickle
import numpy as np
import pytest
from cases import BOTH, variants_but
from solo_agents import agent_for, discrete, on_policy, once, pool_of, train
from solo_agents_worlds import Walk
from solo_cases import S, agents_of, batches, engine_for

from etude.base.data import PolicyVersion
from etude.base.errors import ConfigError, DataError
from etude.explore import EpsGreedyQPolicy, GaussianWhiteNoiseProcess
from etude.networks.dense import Affine, DenseActor
from etude.solo import LambdaCallback
from etude.solo.engines import parameters
from etude.solo.learner import acting_in_worker

pytestmark = pytest.mark.usefixtures("workers_step")
RATED = ("alpha", "lr", "eps", "tau", "gamma", "beta1", "beta2", "clip", "beta")
COUNTED = ("batch", "freq", "store", "num_updates")
BOLDER = {"alpha", "lr", "tau", "gamma", "clip", "batch", "num_store", "num_updates"}  # grow with the ESS
CAREFUL = {"batch", "num_store", "eps", "beta1", "beta2", "beta", "update_batches"}  # grow with the noise
EVERYTHING = {f"{name}_params": {"rate": 0.5} for name in RATED} | {f"{name}_params": {} for name in COUNTED}


def prioritised(engine_name="torch", episodes=3, **settings):
    """A DQN with priorities that has learned."""
    agent = agent_for(engine_name, tau=0.01, clip=0.2, beta=0.4)
    agent.set(**discrete(PR=True, **settings))
    train(agent, engine_name, episodes)
    return agent


def not_on(engine_name, skipped):
    """For what two engines in Keras share."""
    if engine_name == skipped:
        pytest.skip("the other engine below Keras runs it")


def directions(events):
    return {event.name: np.sign(event.after - event.before) for event in events}


def test_every_documented_hyperparameter_follows_the_effective_sample_size(engine_name):
    once(engine_name)
    agent = prioritised(update_batches=8)
    agent._session_state.session.learner.set_count("num_store", 4)
    pool = pool_of(agent)
    expected = agent.compute_ess_from_weights(pool.selector.all_priorities(pool.ring))
    events = agent.adjust(target_ess=1.0, **EVERYTHING)
    names = {"alpha", "lr", "eps", "tau", "gamma", "beta1", "beta2", "clip", "beta", "batch", "update_batches",
             "num_store", "num_updates"}  # fmt: skip
    assert directions(events) == {name: 1 if name in BOLDER else -1 for name in names}
    assert events[0].reason == f"ess {expected:.3g}"
    assert agent.tau == pytest.approx(0.015), "at most by its rate"
    assert agent.gamma == pytest.approx(1 - 0.1 / 1.5)
    assert agent.optimizer.param_groups[0]["lr"] == pytest.approx(0.015)
    assert agent.optimizer.param_groups[0]["betas"] == pytest.approx((0.85, 0.9985))


def test_every_documented_hyperparameter_follows_the_gradient_noise(engine_name):
    once(engine_name)
    agent = prioritised(update_batches=2)
    events = agent.adjust(target_noise=1e-9, num_samples=3, **EVERYTHING)
    grown = {name for name, sign in directions(events).items() if sign > 0}
    assert grown == CAREFUL
    assert set(directions(events)) - grown == {"alpha", "lr", "tau", "gamma", "clip", "num_updates"}


def test_bounds_alignment_and_scale_hold(engine_name):
    once(engine_name)
    agent = prioritised()
    lr, batch = {"rate": 9.0, "max": 0.02}, {"min": 4, "max": 14, "align": 5}
    events = agent.adjust(target_ess=1e-6, lr_params=lr, batch_params=batch, num_updates_params={"max": 7})
    assert {event.name: event.after for event in events} == {"lr": 0.02, "batch": 10.0, "num_updates": 7.0}
    train(agent, engine_name, 1)
    learner = agent._session_state.session.learner
    assert learner.count_of("batch") == 10
    (event,) = agent.adjust(target_ess=1e6, batch_params=batch)
    assert event.after == 5.0
    assert [event.after for event in agent.adjust(target_ess=1e6, num_updates_params={"scale": 1e9})] == [8.0]


def test_an_adjusted_batch_is_bounded_by_the_pool_whatever_the_user_allows(engine_name):
    once(engine_name)
    agent, heard = agent_for(engine_name), []
    agent.set(**discrete(PR=True, batch=32))
    agent.adjust_func = lambda: agent.adjust(target_ess=1.0, batch_params={"max": 512})
    train(agent, engine_name, 60, callbacks=[LambdaCallback(on_adjusted=heard.append)])
    grown = [(event.before, event.after) for event in heard if event.before != event.after]
    assert grown == [(32, 64), (64, 128)], "the pool holds 200"
    assert len(agent.loss_list) == 60 - 6, "all but those before the pool held 32"


def test_a_batch_between_bounds_that_no_power_of_2_lies_in_stays_within_them(engine_name):
    once(engine_name)
    agent = prioritised(batch=64, episodes=20)
    sizes = [
        agent._session_state.session.learner.count_of("batch")
        for target in (1e6, 1e-6)
        if agent.adjust(target_ess=target, batch_params={"min": 48, "max": 60})
    ]
    assert sizes == [48, 60]


def test_what_is_adjusted_after_the_last_learning_phase_is_heard_when_training_ends(engine_name):
    once(engine_name)
    agent, heard = prioritised(), []

    def adjust(episode, logs):
        agent.adjust(target_ess=1.0, num_updates_params={})

    train(agent, engine_name, 1, callbacks=[LambdaCallback(on_episode_end=adjust, on_adjusted=heard.append)])
    assert [(event.before, event.after) for event in heard] == [(2, 8)]


@pytest.mark.parametrize(("align", "sizes"), [(None, [6, 24]), (4, [12, 24])])
def test_batches_are_divided_over_replicas_whatever_their_size(align, sizes, engine_name):
    once(engine_name)
    agent = prioritised(batch=12, episodes=5)
    adjuster = agent._session_state.session.adjuster
    adjuster.replicas = 2 if align is None else 3
    least = {"min": 1, "max": 24, "align": align}
    found = []
    for target in (1e6, 1e-6):
        agent.adjust(target_ess=target, batch_params=least)
        found.append(agent._session_state.session.learner.count_of("batch"))
    assert found == sizes


def test_optimizers_and_policies_in_lists_are_adjusted_each(engine_name):
    once(engine_name)
    agent = agent_for(engine_name, "PPO", env=[Walk, Walk])
    agent.set(**on_policy(update_steps=1_000, policy=[EpsGreedyQPolicy(0.1), EpsGreedyQPolicy(0.4)]))
    train(agent, engine_name, 1)
    events = agent.adabatch(2, 1e-9, lr_params={}, eps_params={})
    assert [event.name for event in events] == ["lr[0]", "lr[1]", "eps[0]", "eps[1]"]
    assert [policy.eps for policy in agent._session_state.settings.policy] == pytest.approx([0.11, 0.44])


def test_where_there_is_no_signal_nothing_changes_and_an_event_says_why_once(engine_name):
    once(engine_name)
    agent, heard = agent_for(engine_name), []
    agent.set(**discrete(PR=True))
    agent.adjust_func = lambda: agent.adjust(batch_params={}, lr_params={})
    train(agent, engine_name, 1, callbacks=[LambdaCallback(on_adjusted=heard.append)])
    assert [(event.name, event.before == event.after) for event in heard] == [("batch", True), ("lr", True)]
    assert all("no errors have been reported yet" in event.reason for event in heard)
    agent.gamma = 1.0
    (event,) = agent.adjust(target_noise=1e-9, num_samples=2, gamma_params={})
    assert "moves in proportion" in event.reason
    assert agent.adjust(target_noise=1e-9, num_samples=2, gamma_params={}) == ()


def test_gradients_that_are_not_finite_change_nothing(engine_name):
    once(engine_name)
    agent = prioritised()
    pool_of(agent).ring.reward[:] = np.nan
    (event,) = agent.adabatch(2, lr_params={})
    assert (event.before, event.after) == (0.01, 0.01)
    assert "gradients are infinite or NaN" in event.reason


def test_what_is_adjusted_is_heard_after_the_learning_phase_that_uses_it(engine_name):
    once(engine_name)
    agent, heard = prioritised(), []
    agent.adjust_func = lambda: agent.adjust(target_ess=1.0, num_updates_params={})
    hooks = {"on_update": lambda event: heard.append(event.gradient_steps), "on_adjusted": heard.append}
    before = agent._session_state.session.learner.progress.gradient_steps
    train(agent, engine_name, 1, callbacks=[LambdaCallback(**hooks)])
    steps, adjusted = heard
    assert (adjusted.name, adjusted.after) == ("num_updates", steps - before)


def test_a_hyperparameter_that_the_user_sets_moves_from_there(engine_name):
    once(engine_name)
    agent = prioritised()
    agent.adjust(target_ess=1.0, tau_params={"rate": 0.5})
    agent.tau = 0.5
    (event,) = agent.adjust(target_ess=1.0, tau_params={"rate": 0.5})
    assert (event.before, event.after) == (0.5, 0.75)
    (event,) = agent.adjust(target_ess=1.0, tau_params={"rate": 0.5})
    assert event.after == 1.0, "a probability"


@pytest.mark.parametrize("name", variants_but({"DQN": BOTH}, ["DQN", "PPO"]))
def test_gradients_are_those_that_a_step_would_take_and_change_nothing(name, engine_name):
    framework = agents_of(engine_name)
    agent = getattr(framework, name)()
    groups = agent.param if name == "DQN" else [list(group) for group in agent.param]
    optimizers = [framework.sgd(group, 0.5) for group in ([groups] if name == "DQN" else groups)]
    agent.param = groups
    engine = engine_for(agent, engine_name, optimizers)
    before = engine.weights()
    assert len(engine.gradients(batches(k=2))) == 2
    (found,) = engine.gradients(batches(k=1))
    for key, value in engine.weights().items():
        np.testing.assert_array_equal(value, before[key])
    engine.learn(batches(k=1), {})
    moved = [(before[key] - value) / 0.5 for key, value in engine.parameters().items()]
    for step, gradient in zip(moved, found.values(), strict=True):
        np.testing.assert_allclose(step, gradient, atol=2e-6)


def test_settings_of_optimizers_are_traced_anew_at_their_first_change_alone(engine_name):
    agent = agents_of(engine_name).DQN()
    engine, traces = engine_for(agent, engine_name), []
    engine.learn(batches(k=2), {})
    for value in (0.5, 0.6, 0.7):
        traces.append(engine.traces)
        for name in ("beta1", "beta2", "learning_rate"):
            (setting,) = engine.optimizer_settings(name)
            setting.write(value)
            assert setting.read() == pytest.approx(value)
        engine.learn(batches(k=2), {})
    assert engine.traces == traces[-1]
    assert (traces[1] > traces[0]) == (engine_name != "torch")


def test_a_learning_rate_that_torch_keeps_in_a_tensor_is_a_setting_too(engine_name):
    once(engine_name)
    import torch

    agent = agents_of(engine_name).DQN()
    engine = engine_for(agent, engine_name, torch.optim.Adam(agent.param, torch.tensor(1e-2)))
    (rate,) = engine.optimizer_settings("learning_rate")
    engine.restore(engine.state())  # which replaces the optimizer's groups
    rate.write(0.5)
    assert rate.read() == float(engine.optimizers[0].param_groups[0]["lr"]) == 0.5


def test_a_step_with_adjusted_betas_is_that_of_an_optimizer_made_with_them(engine_name):
    if engine_name == "torch":
        import torch

        made = lambda param: torch.optim.Adam(param, 1e-2, betas=(0.5, 0.6))  # noqa: E731
    else:
        agents_of(engine_name)
        import keras

        made = lambda param: keras.optimizers.Adam(1e-2, beta_1=0.5, beta_2=0.6)  # noqa: E731
    one, other = agents_of(engine_name).DQN(), agents_of(engine_name).DQN()
    adjusted, given = engine_for(one, engine_name), engine_for(other, engine_name, made(other.param))
    adjusted.load(given.weights())
    for name, value in (("beta1", 0.5), ("beta2", 0.6)):
        adjusted.optimizer_settings(name)[0].write(value)
    for engine in (adjusted, given):
        engine.learn(batches(k=3), {})
    for key, value in given.parameters().items():
        np.testing.assert_allclose(adjusted.parameters()[key], value, atol=1e-6)


def test_sizes_of_batches_that_were_learned_before_are_not_compiled_again(engine_name):
    not_on(engine_name, "tensorflow")
    if engine_name == "torch":
        pytest.skip("eager torch compiles nothing")
    agent = prioritised(engine_name)
    engine, traces = agent._session_state.session.learner.engine, {}
    for target in (1.0, 1e6, 1.0, 1e6):
        agent.adjust(target_ess=target, batch_params={"min": 4, "max": 8})
        train(agent, engine_name, 1)
        traces.setdefault(target, engine.traces)
    assert engine.traces == max(traces.values())


def test_workers_explore_with_the_epsilon_that_comes_with_the_weights():
    policy = EpsGreedyQPolicy(0.1)
    weights = {"k": np.zeros((S, 2), np.float32), "b": np.zeros(2, np.float32)}
    actor = DenseActor([Affine("k", "b")], weights, np.asarray)
    make_actor = functools.partial(acting_in_worker, actor, [None, policy])
    make_actor, explorer = cloudpickle.loads(cloudpickle.dumps((make_actor, policy)))
    make_actor().load({}, PolicyVersion(0, {"1": 0.7}))
    assert (policy.eps, explorer.eps) == (0.1, 0.7)


def test_an_adjusted_epsilon_acts_the_same_with_and_without_workers(engine_name):
    once(engine_name)

    def stored(**options):
        agent = agent_for(engine_name)
        agent.set(**discrete(PR=True))
        agent.adjust_func = lambda: agent.adjust(target_ess=1e6, eps_params={"rate": 4.0}, lr_params={})
        train(agent, engine_name, 6, **options)
        return agent, pool_of(agent).ring.action.tolist()

    (one, alone), (_, beside) = stored(), stored(processes=1, parallel_store_and_training=False)
    assert alone == beside
    assert one._session_state.settings.policy.eps == 1.0


def test_a_restored_agent_goes_on_with_what_was_adjusted(engine_name, tmp_path):
    not_on(engine_name, "tensorflow")

    def made():
        agent = agent_for(engine_name, tau=0.01)
        agent.set(**discrete(PR=True))
        p = {"rate": 0.3}
        noise = {"target_noise": 1e-2, "num_samples": 2}
        rest = dict.fromkeys(("lr_params", "tau_params", "eps_params", "beta1_params", "gamma_params"), p)
        agent.adjust_func = lambda: (agent.adjust(batch_params={}, alpha_params=p), agent.adjust(**noise, **rest))
        return agent

    def numbers(agent):
        learner = agent._session_state.session.learner
        optimizer = [
            setting.read() for name in ("learning_rate", "beta1") for setting in learner.engine.optimizer_settings(name)
        ]
        own = (agent.tau, agent.gamma, learner.count_of("batch"), learner.policies[0].eps, *optimizer)
        return own, agent.loss_list, [value.tolist() for value in parameters(agent).values()]

    whole, first, second = made(), made(), made()
    train(whole, engine_name, 5)
    train(first, engine_name, 3)
    first.save(tmp_path / "model.dat")
    second.restore(tmp_path / "model.dat")
    train(second, engine_name, 2)
    assert numbers(second) == numbers(whole)


def test_windows_of_processes_drop_their_oldest_transitions(engine_name):
    once(engine_name)
    agent, heard = agent_for(engine_name, "PPO", env=[Walk, Walk]), []
    agent.set(**on_policy(PR=True, num_updates=1))
    agent.window_size_func = lambda p: 3 if p else None
    train(agent, engine_name, 1, callbacks=[LambdaCallback(on_adjusted=heard.append)])
    assert pool_of(agent).ring.filled.tolist() == [5, 2]
    assert [(event.name, event.before, event.after) for event in heard] == [("window", 10, 7)]
    agent.window_size_func = lambda p: 1_000
    train(agent, engine_name, 1)
    assert pool_of(agent).ring.filled.tolist() == [1, 1]
    agent.window_size_func = lambda p: "many"
    with pytest.raises(ConfigError, match=r"window_size_func\(0\) returned a str"):
        train(agent, engine_name, 1)


def test_a_window_keeps_as_many_transitions_as_are_effective(engine_name):
    once(engine_name)
    agent = prioritised(episodes=1, alpha=1.0)
    selector = pool_of(agent).selector
    selector.error[:5], selector.small = [3.0, 1.0, 0.0, 0.0, 0.0], 1e-12
    selector._changes = len(selector.error)
    assert agent.compute_ess_from_weights([3.0, 1.0, 0.0, 0.0, 0.0]) == pytest.approx(1.6)
    assert agent.adjust_window_size() == int(5 - 1.6)
    assert agent.adjust_window_size(0, scale=0.5) == int(0.5 * 3.4)
    assert agent.adjust_window_size(scale=10.0) == 4
    assert agent.adjust_window_size(ema=4.0) == 1
    with pytest.raises(ConfigError, match="p = 1"):
        agent.adjust_window_size(1)
    for weights in ([1.0], [0.0, 0.0], [1.0, np.nan]):
        with pytest.raises(DataError, match="compute_ess_from_weights"):
            agent.compute_ess_from_weights(weights)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"lr_params": {"speed": 1}}, "keys rate, min, max, smooth"),
        ({"batch_params": {"rate": 1}}, "keys scale, min, max, align"),
        ({"lr_params": 0.1}, "expected a dict"),
        ({"lr_params": {"rate": "fast"}}, "rate = 'fast'"),
        ({"lr_params": {"rate": 0}}, "above 0"),
        ({"lr_params": {"smooth": 2.0}}, "smooth = 2.0"),
        ({"lr_params": {"min": 2, "max": 1}}, "min = 2 is above max = 1"),
        ({"batch_params": {"align": 1.5}}, "whole number"),
        ({"speed_params": {}}, "no argument speed_params"),
        ({"target_ess": -1.0, "lr_params": {}}, "positive"),
        ({"target_noise": 1e-3}, "num_samples = None"),
        ({"target_noise": 1e-3, "num_samples": 1}, "at least 2"),
        ({"target_noise": 1e-3, "num_samples": 2, "target_ess": 5.0}, "no target_ess"),
    ],
)
def test_bad_arguments_are_refused_with_what_to_do(arguments, match, engine_name):
    once(engine_name)
    agent = prioritised()
    with pytest.raises(ConfigError, match=match):
        agent.adjust(**arguments)


def test_what_an_agent_lacks_is_named(engine_name):
    once(engine_name)
    agent = agent_for(engine_name, "DDPG")
    with pytest.raises(ConfigError, match="has not been trained"):
        agent.adjust(batch_params={})
    agent.set(noise=GaussianWhiteNoiseProcess(), batch=4, pool_size=100)
    train(agent, engine_name, 1)
    with pytest.raises(ConfigError, match="PR=True"):
        agent.adjust(batch_params={})
    agent.optimizer = [agents_of(engine_name).sgd(group, 0.1) for group in agent.param]
    train(agent, engine_name, 1)
    lacking = {"eps": "EpsGreedyQPolicy", "alpha": "PR=True", "freq": "update_batches", "num_updates": "one pass",
               "clip": "no float", "beta1": "beta1 of the optimizers"}  # fmt: skip
    for name, match in lacking.items():
        with pytest.raises(ConfigError, match=match):
            agent.adjust(target_noise=1.0, num_samples=2, **{f"{name}_params": {}})
