"""When the code of an agent of one's own is compiled again, and when not."""

import numpy as np
import pytest
from solo_cases import agents_of, batches, engine_for


@pytest.fixture
def compiles(engine_name):
    if engine_name == "torch":
        pytest.skip("eager torch compiles nothing")


def loss_of(engine, seed=0, **changes):
    """The first loss of a batch, without learning from it."""
    before = engine.state()
    loss = engine.learn(batches(k=1, seed=seed, **changes), {}).losses["loss"]
    engine.restore(before)
    return loss


@pytest.mark.every_engine
def test_a_changed_float_takes_effect_and_nothing_is_compiled_again(engine_name):
    agent = agents_of(engine_name).DQN()
    engine = engine_for(agent, engine_name)
    first = loss_of(engine)
    traces = engine.traces
    agent.scale = np.float32(3.0)
    assert loss_of(engine) == pytest.approx(3 * first, rel=1e-5)
    agent.scale, agent.gamma = 1.0, 0.0
    assert loss_of(engine) != pytest.approx(first, rel=1e-3)
    agent.gamma = 0.9
    assert loss_of(engine) == pytest.approx(first, rel=1e-6)
    assert engine.traces == traces


@pytest.mark.parametrize("name, value", [("double", True), ("power", 4), ("_offset", 5.0)])
def test_a_changed_constant_takes_effect(name, value, engine_name):
    agent = agents_of(engine_name).DQN()
    engine = engine_for(agent, engine_name)
    rng = np.random.default_rng(0)  # the two networks shall differ
    engine.load({name: rng.standard_normal(value.shape) for name, value in engine.parameters().items()})
    first, traces = loss_of(engine), engine.traces
    former = getattr(agent, name)
    setattr(agent, name, value)
    assert loss_of(engine) != pytest.approx(first, rel=1e-4)
    again = engine.traces
    assert (again > traces) == (engine_name != "torch")
    setattr(agent, name, former)
    assert loss_of(engine) == pytest.approx(first, rel=1e-6)
    assert engine.traces == again, "the first version was kept"


def test_what_the_loss_does_not_read_may_change(compiles, engine_name):
    agent = agents_of(engine_name).DQN()
    agent.episodes, agent.history = 0, []
    engine = engine_for(agent, engine_name)
    engine.learn(batches(), {})
    traces = engine.traces
    for episode in range(3):
        agent.episodes = episode
        agent.history.append(episode)
        engine.learn(batches(), {})
    assert engine.traces == traces


def test_a_changed_array_takes_effect(compiles, engine_name):
    framework = agents_of(engine_name)

    class Scaled(framework.DQN):
        def __call__(self, *arguments):
            return super().__call__(*arguments) * self.factor

    agent = Scaled()
    agent.factor = np.ones(8, np.float32)
    engine = engine_for(agent, engine_name)
    first = loss_of(engine)
    agent.factor *= 2
    assert loss_of(engine) == pytest.approx(2 * first, rel=1e-5)


def test_few_numbers_of_steps_are_compiled(compiles, engine_name):
    engine = engine_for(agents_of(engine_name).DQN(), engine_name)
    for k in (1, 2, 4, 8):
        engine.learn(batches(k=k), {})
    traces = engine.traces
    for k in (3, 5, 6, 7, 1, 8):
        assert engine.learn(batches(k=k), {}).td_error.shape == (k, 8)
    assert engine.traces == traces


def test_a_changed_learning_rate_takes_effect_and_nothing_is_compiled_again(engine_name):
    framework = agents_of(engine_name)
    agent = framework.DQN()
    optimizer = framework.optimizer(agent.param)
    engine = engine_for(agent, engine_name, optimizer)
    engine.learn(batches(), {})
    traces, before = engine.traces, engine.parameters()
    if engine_name == "torch":
        optimizer.param_groups[0]["lr"] = 0.0
    else:
        optimizer.learning_rate = 0.0
    engine.learn(batches(), {})
    assert all(np.array_equal(value, before[name]) for name, value in engine.parameters().items())
    assert engine.traces == traces


def test_a_changed_constant_of_the_optimizer_takes_effect(engine_name):
    framework = agents_of(engine_name)
    agent = framework.DQN()
    optimizer = framework.sgd(agent.param, 0.1)
    engine = engine_for(agent, engine_name, optimizer)

    def distance():
        before = engine.parameters()
        engine.learn(batches(), {})
        return max(np.abs(value - before[name]).max() for name, value in engine.parameters().items())

    assert 1e-4 < distance() < 0.5
    if engine_name == "torch":
        optimizer.param_groups[0]["weight_decay"] = 9.0
        assert distance() > 0.5
    else:
        optimizer.clipnorm = 1e-9
        assert distance() < 1e-7
