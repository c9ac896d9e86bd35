"""What an engine says of an agent of one's own that cannot be trained."""

import numpy as np
import pytest
import python_programs
from solo_cases import agents_of, batches, engine_for, optimizers_for

from etude.base.errors import ConfigError, NumericalError


def losses(change):
    """An agent whose loss is `change(loss per example, agent, s)`."""

    def make(framework):
        class Changed(framework.DQN):
            def __call__(self, s, *others):
                return change(super().__call__(s, *others), self, s)

        return Changed()

    return make


def learn(agent, engine_name, optimizers=None):
    return engine_for(agent, engine_name, optimizers).learn(batches(), {})


@pytest.mark.parametrize("optimizers, lists", [(2, False), (1, True)])
def test_as_many_optimizers_as_lists_in_param(optimizers, lists, engine_name):
    framework = agents_of(engine_name)
    agent = framework.DDPG() if lists else framework.DQN()
    given = [framework.optimizer(framework.variables(agent.actor if lists else agent.q)) for _ in range(optimizers)]
    with pytest.raises(ConfigError, match=f"got {optimizers} optimizer.*has {3 - optimizers} list"):
        engine_for(agent, engine_name, given)


def test_one_optimizer_cannot_train_two_lists(engine_name):
    framework = agents_of(engine_name)
    agent = framework.DDPG()
    optimizer = framework.optimizer(agent.param[0])
    with pytest.raises(ConfigError, match="same optimizer twice"):
        engine_for(agent, engine_name, [optimizer, optimizer])


def test_an_optimizer_of_another_framework_is_refused(engine_name):
    agent = agents_of(engine_name).DQN()
    wanted = "torch.optim.Optimizer" if engine_name == "torch" else "keras.optimizers.Optimizer"
    with pytest.raises(ConfigError, match=f"given a builtins.str to train with; expected a {wanted}"):
        engine_for(agent, engine_name, ["adam"])


def test_param_of_something_else_is_refused(engine_name):
    framework = agents_of(engine_name)
    agent = framework.DQN()
    optimizer = optimizers_for(agent, framework)
    agent.param = [np.zeros(3)]
    with pytest.raises(ConfigError, match="param of DQN holds a numpy"):
        engine_for(agent, engine_name, optimizer)
    agent.param = []
    with pytest.raises(ConfigError, match="param of DQN holds no trainable variables"):
        engine_for(agent, engine_name, optimizer)


def test_an_optimizer_of_other_variables_is_refused(engine_name):
    framework = agents_of(engine_name)
    agent, other = framework.DQN(), framework.DQN()
    optimizer = framework.optimizer(other.param)
    if engine_name != "torch":
        engine_for(other, engine_name, optimizer)
    with pytest.raises(ConfigError, match="made for other variables|they are not the 4"):
        engine_for(agent, engine_name, optimizer)


def test_as_many_losses_as_optimizers(engine_name):
    agent = losses(lambda loss, agent, s: [loss, loss, loss])(agents_of(engine_name))
    with pytest.raises(ConfigError, match="returned 3 losses for 1 optimizers"):
        learn(agent, engine_name)


def test_a_loss_of_a_wrong_shape_is_refused(engine_name):
    agent = losses(lambda loss, agent, s: loss[:, None])(agents_of(engine_name))
    with pytest.raises(ConfigError, match=r"loss of shape \(8, 1\) for a batch of 8; expected a scalar or .*\(8,\)"):
        learn(agent, engine_name)


@pytest.mark.parametrize("value", [1.5, None])
def test_a_loss_that_is_no_array_is_refused(value, engine_name):
    agent = losses(lambda loss, agent, s: value)(agents_of(engine_name))
    with pytest.raises(ConfigError, match=f"returned {value} as a loss"):
        learn(agent, engine_name)


def test_an_error_of_a_wrong_shape_is_refused(engine_name):
    def report(loss, agent, s):
        agent.prioritized_replay.update(s)
        return loss

    with pytest.raises(ConfigError, match=r"got TD of shape \(8, 3\) for a batch of 8"):
        learn(losses(report)(agents_of(engine_name)), engine_name)


def test_a_loss_that_is_not_finite_is_told(engine_name):
    agent = losses(lambda loss, agent, s: loss / (loss - loss))(agents_of(engine_name))
    with pytest.raises(NumericalError, match="The loss became loss = "):
        learn(agent, engine_name)


@pytest.mark.every_engine
def test_a_variable_that_its_loss_does_not_use_is_named(engine_name):
    framework = agents_of(engine_name)
    agent = framework.DQN()
    agent.param = framework.variables(agent.q) + framework.variables(agent.target)
    with pytest.raises(ConfigError, match=r"the loss does not depend on 'target\.0\.\w+', which param trains with it"):
        learn(agent, engine_name)


def test_losses_in_another_order_than_param_are_told(engine_name):
    framework = agents_of(engine_name)

    class Crossed(framework.DDPG):
        def __call__(self, *arguments):
            return super().__call__(*arguments)[::-1]

    engine = engine_for(Crossed(), engine_name)
    with pytest.raises(ConfigError, match=r"loss 0 does not depend on 'actor\.0\.\w+'.*order of the lists"):
        engine.learn(batches(continuous=True), {})


def test_an_unknown_framework_is_refused(engine_name):
    from etude.solo.engines import make_engine

    with pytest.raises(ConfigError, match="Unknown framework 'mxnet'; expected keras or torch"):
        make_engine(None, [], None, framework="mxnet")


def test_code_that_needs_numbers_is_told_what_to_do(engine_name):
    if engine_name == "torch":
        pytest.skip("eager torch has numbers")
    with pytest.raises(ConfigError, match=r"Wild\.__call__ turned an array into a Python number"):
        learn(agents_of(engine_name).Wild(), engine_name)


def test_a_variable_that_no_attribute_holds_is_named(engine_name):
    if engine_name != "jax":
        pytest.skip("jax only: elsewhere variables need not be found to be read")
    framework = agents_of(engine_name)
    hidden = framework.mlp(3, 2)
    agent = losses(lambda loss, agent, s: loss + hidden(s)[:, 0])(framework)
    with pytest.raises(ConfigError, match="uses the variable 'sequential.*/kernel', which none of"):
        learn(agent, engine_name)


def test_what_xla_cannot_compile_needs_jit_compile_false(engine_name):
    if engine_name != "tensorflow":
        pytest.skip("tensorflow only")
    import tensorflow as tf

    make = losses(lambda loss, agent, s: loss + 0 * tf.strings.to_number(tf.strings.as_string(s[:, 0])))
    framework = agents_of(engine_name)
    with pytest.raises(ConfigError, match="XLA cannot compile Changed.__call__.*jit_compile=False"):
        learn(make(framework), engine_name)
    assert engine_for(make(framework), engine_name, jit_compile=False).learn(batches(), {}).steps == 4


def test_keras_on_torch_is_refused(engine_name):
    program = (
        "import os; os.environ['KERAS_BACKEND'] = 'torch'\n"
        "from etude.solo.engines.keras import check_backend\n"
        "check_backend()"
    )
    if engine_name != "torch":
        pytest.skip("needs a process of its own; once is enough")
    _, errors = python_programs.start("-c", program).communicate(timeout=120)
    assert "Keras runs on torch in this process" in errors
