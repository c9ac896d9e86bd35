"""What an engine learns of an agent of one's own, and that it is what the framework learns by hand."""

import dataclasses

import numpy as np
import pytest
from cases import BOTH, variants_but
from solo_cases import CONTINUOUS, A, S, agents_of, batches, engine_for, optimizers_for
from solo_reference import steps_by_hand

from etude.base.data import Batch
from etude.base.spaces import Discrete, Spaces, Tuple

pytestmark = pytest.mark.every_engine

CONTINUOUS_ACTIONS = {"DQN": False, "PPO": False, "DDPG": True}
KINDS = variants_but({"DQN": BOTH, "PPO": ("jax",), "DDPG": ("tensorflow",)}, CONTINUOUS_ACTIONS)
every_kind = pytest.mark.parametrize("kind", KINDS)


def learned(engine, calls=1, **changes):
    """The losses of several calls, stacked."""
    updates = [engine.learn(batches(seed=i, **changes), {}) for i in range(calls)]
    return np.array([list(update.losses.values()) for update in updates])


@every_kind
def test_losses_and_weights_are_those_of_a_loop_written_by_hand(kind, engine_name):
    continuous = CONTINUOUS_ACTIONS[kind]
    framework = agents_of(engine_name)
    agent, reference = getattr(framework, kind)(), getattr(framework, kind)()
    engine = engine_for(agent, engine_name)
    optimizers = optimizers_for(reference, framework)
    for i in range(3):
        expected = steps_by_hand(reference, engine_name, optimizers, batches(seed=i, continuous=continuous))
        found = list(engine.learn(batches(seed=i, continuous=continuous), {}).losses.values())
        np.testing.assert_allclose(found, expected.mean(0), rtol=1e-4, atol=1e-6)
    own = [framework.values(v) for group in _groups(agent) for v in group]
    others = [framework.values(v) for group in _groups(reference) for v in group]
    for mine, theirs in zip(own, others, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)


def _groups(agent):
    return agent.param if isinstance(agent.param[0], list) else [agent.param]


@every_kind
@pytest.mark.parametrize("jit_compile", [True, False])
def test_steps_in_one_call_are_those_of_as_many_calls(kind, jit_compile, engine_name):
    continuous = CONTINUOUS_ACTIONS[kind]
    if engine_name != "tensorflow" and not jit_compile:
        pytest.skip("tensorflow only: the others do not look at jit_compile")
    framework = agents_of(engine_name)
    at_once, apart = (engine_for(getattr(framework, kind)(), engine_name, jit_compile=jit_compile) for _ in range(2))
    many = batches(k=5, continuous=continuous)
    together = at_once.learn(many, {})
    single = [apart.learn(_one(many, i), {}) for i in range(5)]
    for name in together.losses:
        assert together.losses[name] == pytest.approx(np.mean([update.losses[name] for update in single]), rel=1e-4)
    for name, value in at_once.weights().items():
        np.testing.assert_allclose(value, apart.weights()[name], rtol=1e-4, atol=1e-6)
    if together.td_error is not None:
        np.testing.assert_allclose(
            together.td_error, np.concatenate([u.td_error for u in single]), rtol=1e-3, atol=1e-5
        )


def _one(many, i):
    return Batch(**{f.name: getattr(many, f.name)[i : i + 1] for f in dataclasses.fields(many) if f.name != "extras"})


def test_a_constant_reward_is_worth_one_over_one_minus_gamma(engine_name):
    agent = agents_of(engine_name).DQN(gamma=0.8)
    engine = engine_for(agent, engine_name)
    shape = (32, 16)
    observation = np.ones((*shape, S), np.float32)
    ones = np.ones(shape, np.float32)
    action = np.random.default_rng(0).integers(0, A, shape)
    steps = Batch(observation, action, ones, ones, observation, ones, np.zeros(shape, np.int64))
    for _ in range(30):
        engine.learn(steps, {})
        engine.update_param()
    np.testing.assert_allclose(engine.act(observation[0, :2]), 1 / (1 - 0.8), rtol=0.02)


def test_each_loss_trains_its_own_parameters_only(engine_name):
    engine = engine_for(agents_of(engine_name).DDPG(), engine_name)
    before = engine.weights()
    update = engine.learn(batches(continuous=True), {})
    moved = {name.split(".")[0] for name, value in engine.weights().items() if not np.array_equal(value, before[name])}
    assert moved == {"actor", "critic"}
    assert list(update.losses) == ["loss0", "loss1"]
    assert (update.td_error, update.ratio, update.steps) == (None, None, 4)


def test_a_loss_is_a_scalar_or_one_value_per_example_alone_or_in_a_list(engine_name):
    framework = agents_of(engine_name)
    even = batches()
    even = dataclasses.replace(even, weight=np.ones_like(even.weight))
    found = []
    for mode in ("per example", "scalar", "listed"):
        agent = framework.DQN()
        agent.mode = mode
        found.append(engine_for(agent, engine_name).learn(even, {}).losses)
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0] == pytest.approx(found[2], rel=1e-5)
    assert list(found[0]) == ["loss"]


def test_importance_weights_multiply_losses_per_example(engine_name):
    framework = agents_of(engine_name)
    many = batches(k=1)
    none = dataclasses.replace(many, weight=np.zeros_like(many.weight))
    engine = engine_for(framework.DQN(), engine_name)
    before = engine.weights()
    assert engine.learn(none, {}).losses == {"loss": 0.0}
    for name, value in engine.weights().items():
        assert np.array_equal(value, before[name]), name


def test_reported_errors_and_ratios_come_back_for_every_example(engine_name):
    agent = agents_of(engine_name).DQN()
    engine = engine_for(agent, engine_name)
    many = batches(k=1)
    q, next_q = engine.act(many.observation[0]), engine.act(many.next_observation[0])
    wanted = many.reward[0] + 0.9 * many.discount[0] * next_q.max(-1)
    error = np.take_along_axis(q, many.action[0][:, None], 1)[:, 0] - wanted
    update = engine.learn(many, {})
    np.testing.assert_allclose(update.td_error[0], error, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(update.ratio[0], 2 * error, rtol=1e-3, atol=1e-5)


def test_what_update_param_copies_is_learned_with(engine_name):
    agent = agents_of(engine_name).DQN()
    engine = engine_for(agent, engine_name)
    engine.learn(batches(), {})
    weights = engine.weights()
    name = next(iter(engine.parameters()))
    assert not np.array_equal(weights[name], weights[name.replace("q.", "target.")])
    before = engine.learn(batches(seed=1), {}).td_error
    engine.load(weights)
    engine.update_param()
    weights = engine.weights()
    assert np.array_equal(weights[name], weights[name.replace("q.", "target.")])
    assert not np.allclose(engine.learn(batches(seed=1), {}).td_error[0], before[0], rtol=1e-3)


def test_values_live_in_the_variables_of_the_user(engine_name):
    framework = agents_of(engine_name)
    agent = framework.DQN()
    engine = engine_for(agent, engine_name)
    engine.learn(batches(), {})
    trained, reported = framework.variables(agent.q), list(engine.parameters().values())
    for variable, value in zip(trained, reported, strict=True):
        np.testing.assert_array_equal(framework.values(variable), value)
    framework.copy_weights(agent.target, agent.q)  # the user's own code, beside the engine
    s = batches().observation[0]
    expected = framework.values(agent.target(framework.array(s)))
    np.testing.assert_allclose(engine.act(s), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [1, 3, 8, 13])
def test_any_number_of_observations_is_acted_on(n, engine_name):
    framework = agents_of(engine_name)
    agent = framework.DQN()
    s = np.random.default_rng(n).standard_normal((n, S))  # float64, as some environments have it
    found = engine_for(agent, engine_name).act(s)
    assert found.shape == (n, A)
    assert found.dtype == np.float32
    expected = framework.values(agent.q(framework.array(s.astype(np.float32))))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_several_agents_act_and_learn_together(engine_name):
    spaces = Spaces(Tuple([CONTINUOUS.observation] * 2), Discrete(A))
    many, other = batches(), batches(seed=1)
    joint = dataclasses.replace(
        many,
        observation=(many.observation, other.observation),
        next_observation=(many.next_observation, other.next_observation),
        reward=np.stack([many.reward, other.reward], -1),
    )
    framework = agents_of(engine_name)
    agent = framework.Team()
    engine = engine_for(agent, engine_name, spaces=spaces, agents=2)
    s = (many.observation[0][:3], other.observation[0][:3])
    output = engine.act(s)
    assert isinstance(output, tuple)
    for i in range(2):
        expected = framework.values(agent.actors[i](framework.array(s[i])))
        np.testing.assert_allclose(output[i], expected, rtol=1e-4, atol=1e-5)
    first = engine.learn(joint, {}).losses
    for _ in range(20):
        last = engine.learn(joint, {}).losses
    assert all(last[name] < first[name] for name in ("loss0", "loss1"))
    assert not engine.exportable
    assert engine.actor() is None
