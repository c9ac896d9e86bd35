"""What users are told where `set`, `train` or their agent cannot be used: what, what was given, what to do."""

import functools
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from solo_agents import Reaching, agent_for, continuous, discrete, on_policy, once, train
from solo_agents_worlds import Locked, Reach, Walk
from solo_cases import agents_of

import etude
from etude.base.errors import ConfigError, NumericalError, SpaceError
from etude.explore import EpsGreedyQPolicy, GaussianWhiteNoiseProcess
from etude.solo import LambdaCallback


def refused(agent, engine_name, said, error=ConfigError, **options):
    with pytest.raises(error, match=said):
        train(agent, engine_name, **options)


def ready(engine_name, *mixins, kind="DQN", env=None, settings=None):
    agent = agent_for(engine_name, kind, *mixins, env=env)
    agent.set(**(discrete() if settings is None else settings))
    return agent


def test_an_agent_without_an_environment_is_told_what_to_set(engine_name):
    agent = ready(engine_name)
    agent.env = None
    refused(agent, engine_name, r"env of DQN is not set; .*in __init__")


def test_an_agent_without_param_is_told_what_to_set(engine_name):
    framework = agents_of(engine_name)

    class Bare(etude.RL_pytorch if engine_name == "torch" else etude.RL):
        def __init__(self):
            self.q, self.env = framework.mlp(3, 2), Walk

        def action(self, s):
            return self.q(s)

    agent = Bare()
    agent.set(**discrete())
    agent.optimizer = framework.optimizer(framework.variables(agent.q))
    refused(agent, engine_name, r"param of Bare is not set; .*in __init__")


def test_the_first_training_needs_an_optimizer(engine_name):
    agent = ready(engine_name)
    example = "torch.optim.Adam" if engine_name == "torch" else "keras.optimizers.Adam"
    with pytest.raises(ConfigError, match=rf"needs an optimizer.*{example}"):
        agent.train(p=0)


def test_arguments_in_the_place_of_others_are_noticed(engine_name):
    agent = ready(engine_name)
    agent.optimizer = "adam"
    refused(agent, engine_name, "given a builtins.str to train with; expected a")


def test_a_loss_metric_of_another_kind_is_refused_before_training(engine_name):
    if engine_name == "torch":
        pytest.skip("takes none")
    agent = ready(engine_name)
    optimizer = agents_of(engine_name).optimizer(agent.param)
    with pytest.raises(ConfigError, match=r"train_loss .*keras.metrics.Mean"):
        agent.train(optimizer, None, 1)
    assert agent.total_episode == 0


@pytest.mark.parametrize(
    "given, said", [({"epochs": 3}, "no argument epochs; it takes pool_network"), ({"p": -1}, "p = -1")]
)
def test_arguments_that_train_does_not_take_are_named(given, said, engine_name):
    refused(ready(engine_name), engine_name, said, **given)


def test_a_number_of_episodes_that_is_none_is_refused(engine_name):
    for episodes in (0, 1.5):
        said = f"episodes = {episodes}; expected a whole number of at least 1, or None"
        refused(ready(engine_name), engine_name, said, episodes=episodes)


@pytest.mark.parametrize(
    "given, said",
    [
        ({"policy": EpsGreedyQPolicy(), "noise": GaussianWhiteNoiseProcess()}, "policy and noise"),
        ({"PPO": True}, "update_steps or update_batches"),
        ({"criterion": 475.0}, "Give trial_count"),
        ({"HER": True, "MARL": True}, "goal of one agent"),
        ({"TRL": True, "num_steps": 3}, "triplets"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_set(given, said, engine_name):
    agent = agent_for(engine_name)
    with pytest.raises(ConfigError, match=said):
        agent.set(**given)


class Wide:
    def __call__(self, *arguments):
        return super().__call__(*arguments)[:, None]


class Nothing:
    def __call__(self, *arguments):
        return None


class NotANumber:
    def __call__(self, *arguments):
        loss = super().__call__(*arguments)
        return loss / (loss - loss)


def test_a_loss_of_a_wrong_shape_says_which_shapes_are_right(engine_name):
    refused(ready(engine_name, Wide), engine_name, r"loss of shape \(4, 1\) for a batch of 4; expected a scalar or")


def test_a_loss_that_is_not_returned_is_told(engine_name):
    refused(ready(engine_name, Nothing), engine_name, "returned None as a loss")


@pytest.mark.parametrize("processes", [None, pytest.param(2, marks=pytest.mark.variant)])
def test_a_loss_that_is_not_finite_ends_training(processes, engine_name):
    refused(ready(engine_name, NotANumber), engine_name, "The loss became loss = ", NumericalError, processes=processes)


def test_several_agents_are_not_found_in_an_environment_of_one(engine_name):
    refused(
        ready(engine_name, env=Walk, settings=discrete(MARL=True)), engine_name, "MARL=True, but Walk has one agent"
    )


def test_an_environment_of_several_agents_needs_to_be_asked_for(engine_name):
    refused(ready(engine_name, kind="Team"), engine_name, r"Pair has several agents: .*MARL=True")


def test_hindsight_needs_goals(engine_name):
    agent = ready(engine_name, Reaching, kind="DDPG", settings=continuous(HER=True))
    refused(agent, engine_name, "HER=True needs observations with the keys observation, achieved_goal")


def test_hindsight_needs_to_know_what_a_goal_earns(engine_name):
    agent = ready(engine_name, kind="DDPG", env=Reach, settings=continuous(HER=True))
    refused(agent, engine_name, r"HER=True needs DDPG.reward_done_func\(self, next_goal, goal\)")


def test_several_steps_need_a_discount(engine_name):
    agent = ready(engine_name, settings=discrete(num_steps=3))
    del agent.gamma
    refused(agent, engine_name, "num_steps = 3 sums discounted rewards: give DQN an attribute gamma")


def test_rewards_of_a_model_need_a_model(engine_name):
    refused(ready(engine_name, settings=discrete(IRL=True)), engine_name, "DQN has none. Write reward_model")


@pytest.mark.parametrize("options", [{"processes": 2}, {}], ids=["pool", "in process"])
def test_an_environment_that_cannot_be_copied_says_to_give_what_makes_it(options, engine_name):
    env = Locked() if options else [locked := Locked(), locked]
    refused(ready(engine_name, env=env), engine_name, "can be neither copied nor sent .*Give what makes it", **options)


def test_an_environment_that_cannot_be_copied_trains_alone(engine_name):
    once(engine_name)
    agent = ready(engine_name, env=Locked())
    train(agent, engine_name, 1)
    assert agent.total_episode == 1


@pytest.mark.parametrize(
    "env, said", [([], "list of environments is empty"), (3, "3 is a int"), ("CartPole-v9", "CartPole")]
)
def test_what_is_no_environment_is_told(env, said, engine_name):
    with pytest.raises((ConfigError, SpaceError), match=said):
        train(ready(engine_name, env=env), engine_name)


def test_prioritised_replay_needs_the_errors_of_the_loss(engine_name):
    class Silent:
        def __call__(self, s, a, next_s, r, d):
            q = self.q(s)
            return (q[:, 0] - r) ** 2

    agent = ready(engine_name, Silent, settings=discrete(PR=True))
    refused(agent, engine_name, r"did not report TD. Call self.prioritized_replay.update\(TD\)")


def test_priorities_by_ratio_need_the_ratios_of_the_loss(engine_name):
    class WithoutRatio:
        def __call__(self, *arguments):
            loss = super().__call__(*arguments)
            self.prioritized_replay.update(loss)
            return loss

    agent = ready(engine_name, WithoutRatio, kind="PPO", settings=on_policy(PR=True))
    refused(agent, engine_name, r"did not report TD, ratio. Call self.prioritized_replay.update\(TD, ratio\)")


def test_outputs_that_do_not_fit_the_actions_are_told(engine_name):
    framework = agents_of(engine_name)
    agent = ready(engine_name)
    agent.q = agent.target = framework.mlp(3, 5)
    agent.param = framework.variables(agent.q)
    refused(agent, engine_name, "DQN.action returned 5 values for each state; Walk has 2 actions")


def test_values_without_a_policy_are_answered_with_how_to_set_one(engine_name):
    agent = ready(engine_name, settings={**discrete(), "policy": None})
    refused(agent, engine_name, r"DQN.action returns values of 2 actions, and no policy .*set\(policy=")


def test_what_is_no_callback_is_refused(engine_name):
    refused(ready(engine_name), engine_name, "A int is no callback", callbacks=[3])
    with pytest.raises(ConfigError, match="got on_epoch_end"):
        LambdaCallback(on_epoch_end=print)


def test_an_agent_without_a_method_is_told_its_name(engine_name):
    class NoAction:
        def action(self, s):
            return etude.RL.action(self, s)

    class NoLoss:
        def __call__(self, *arguments):
            return etude.RL.__call__(self, *arguments)

    refused(ready(engine_name, NoAction), engine_name, r"DQN has no method action\(self, s\)")
    refused(ready(engine_name, NoLoss), engine_name, r"DQN has no method __call__\(self, s, a, next_s, r, d\)")


@pytest.mark.every_engine
def test_an_update_param_that_cannot_be_compiled_is_told_what_to_use(engine_name):
    """Without update_steps and update_batches `update_param` is a part of every compiled step, and DQN's here copies
    weights through NumPy."""

    agent = ready(engine_name, settings=discrete(update_batches=None))
    if engine_name == "torch":
        train(agent, engine_name, 1)
    else:
        refused(agent, engine_name, r"DQN.update_param .*assign_param.*update_batches=1")
        agent.set(**discrete(update_batches=1))
        train(agent, engine_name, 1)


UNTRAINED = {
    "no batch yet": (discrete(batch=64), {}, r"No gradient step was taken in 3 episodes: .*holds 15 .*batch is 64"),
    "window": (
        discrete(batch=8),
        {"window_size": 4, "clearing_freq": 1},
        r"holds 4 transitions .*batch is 8.*window_size",
    ),
    "num_store": (discrete(), {"num_store": 5}, r"num_store = 5 collections"),
}


@pytest.mark.parametrize("case", UNTRAINED)
def test_training_without_a_gradient_step_says_why(case, engine_name):
    once(engine_name)
    settings, options, said = UNTRAINED[case]
    agent = ready(engine_name, settings=settings)
    with pytest.warns(UserWarning, match=said):
        train(agent, engine_name, 3, **options)


def test_training_with_gradient_steps_says_nothing(engine_name):
    once(engine_name)
    agent = ready(engine_name, settings=discrete(batch=12))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(agent, engine_name, 3)
        train(agent, engine_name, 1)


def test_a_loss_that_is_not_finite_is_answered_with_what_an_agent_can_do(engine_name):
    once(engine_name)
    with pytest.raises(NumericalError) as told:
        train(ready(engine_name, NotANumber), engine_name)
    assert "max_gradient_norm" not in str(told.value)
    assert "clip_grad_norm_" in str(told.value) and "clipnorm" in str(told.value)


def test_a_target_that_is_the_network_itself_is_told(engine_name):
    agent = ready(engine_name)
    agent.target = agent.q
    with pytest.warns(UserWarning, match="q and target of DQN are one network: update_param changes nothing"):
        train(agent, engine_name, 1)


@pytest.mark.parametrize("place", ["wrapped", "networks.0", "networks.q", "networks.inner", "module"])
def test_networks_of_distributed_data_parallel_are_refused_wherever_they_are(place, engine_name):
    once(engine_name)
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    agent = ready(engine_name)
    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    vars(wrapped).update(vars(agent.q))
    held = {"0": [wrapped], "q": {"q": wrapped}, "inner": SimpleNamespace(inner=wrapped)}
    attribute, _, key = place.partition(".")
    setattr(agent, attribute, held[key] if key else nn.Sequential(wrapped) if place == "module" else wrapped)
    refused(agent, engine_name, f"{place} of DQN is a DistributedDataParallel.*the module itself")


def warned(agent, engine_name, episodes=3):
    """What `train` warns of networks, in two calls."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(agent, engine_name, episodes)
        train(agent, engine_name, episodes)
    return [str(one.message) for one in caught if issubclass(one.category, UserWarning)]


class Assigning:
    def update_param(self):
        etude.solo.assign_param(
            *(
                list(network.parameters()) if self.framework == "torch" else network.weights
                for network in (self.target, self.q)
            )
        )


class TwoHeads:
    """The values are those of a network of its own, of what the first one computes."""

    def action(self, s):
        return self.head(self.q(s))

    def __call__(self, s, a, next_s, r, d):
        return super().__call__(s, a, next_s, r, d) + 0 * self.head(self.q(s))[:, 0]


@pytest.mark.parametrize("update_batches", [2, pytest.param(None, marks=pytest.mark.variant)])
def test_a_network_that_param_lacks_is_named_once(update_batches, engine_name):
    framework = agents_of(engine_name)
    agent = ready(engine_name, TwoHeads, Assigning, settings=discrete(update_batches=update_batches))
    agent.head = framework.mlp(2, 2)
    told = warned(agent, engine_name)
    assert len(told) == 1 and told[0].startswith("head of DQN is never trained: param does not hold it"), told
    agent = ready(engine_name, TwoHeads, Assigning, settings=discrete(update_batches=update_batches))
    agent.head = framework.mlp(2, 2)
    agent.head.trainable = False
    if engine_name == "torch":
        agent.head.requires_grad_(False)
    assert warned(agent, engine_name) == []


def test_a_layer_that_param_lacks_is_named(engine_name):
    agent = ready(engine_name)
    agent.param = list(agent.param)[:3]
    (told,) = warned(agent, engine_name)
    layer = "2" if engine_name == "torch" else "3"
    assert told.startswith(f"q.{layer}.bias, target.{layer}.bias of DQN is never trained"), told


class DoesNothing:
    @functools.wraps(etude.RL.update_param)  # as methods of this one's module look
    def update_param(self):
        self.note = "nothing"


@pytest.mark.parametrize("frozen", [False, pytest.param(True, marks=pytest.mark.variant)])
def test_an_update_param_that_changes_nothing_is_told_once(frozen, engine_name):
    agent = ready(engine_name, DoesNothing)
    if frozen and engine_name == "torch":
        agent.target.requires_grad_(False)
    (told,) = warned(agent, engine_name)
    assert told.startswith("update_param of DQN was called 3 times and changed nothing: target did not follow."), told


def test_a_call_of_update_param_before_the_first_minibatch_is_not_told(engine_name):
    # Episodes of 5 steps: two until the call, three until there is a batch
    agent = ready(engine_name, settings=discrete(update_steps=8, update_batches=None, batch=12))
    assert warned(agent, engine_name) == []


def test_a_target_network_without_update_param_is_told(engine_name):
    class Inherits:
        update_param = etude.RL.update_param

    (told,) = warned(ready(engine_name, Inherits), engine_name)
    assert told.startswith("target of DQN is never trained"), told


def numpy_loss(function):
    """An agent whose loss gives what `function` makes of its errors."""

    class Changed:
        def __call__(self, *arguments):
            return function(super().__call__(*arguments))

    return Changed


NUMPY = {
    "mean": (lambda x: np.mean(x), "np.mean"),
    "square": (lambda x: np.square(x), "np.square"),
    "array": (lambda x: 2 * np.array(x), "np.array"),
}


@pytest.mark.every_engine
@pytest.mark.parametrize("case", NUMPY)
def test_numpy_in_a_loss_is_told_with_its_line_and_what_to_write(case, engine_name):
    function, written = NUMPY[case]
    if (case, engine_name) == ("mean", "jax"):
        pytest.skip("NumPy asks arrays of JAX for their own mean")
    library = "torch" if engine_name == "torch" else "keras.ops"
    lines = enumerate(Path(__file__).read_text().splitlines(), 1)
    line = next(i for i, text in lines if "lambda x:" in text and f"{written}(x)" in text)
    said = rf"DQN.__call__ gives to NumPy .*{Path(__file__).name}:{line}: .*{written}.*Write {library}.{case}"
    refused(ready(engine_name, numpy_loss(function)), engine_name, said)


def test_numpy_in_action_is_told_with_its_line_and_what_to_write(engine_name):
    class Acts:
        def action(self, s):
            return np.mean(super().action(s), axis=0) if engine_name == "torch" else np.abs(super().action(s))

    refused(ready(engine_name, Acts), engine_name, r"DQN.action gives to NumPy .*np.mean.*Write \w+")


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.array])
def test_a_loss_that_is_a_number_of_numpy_is_told(kind, engine_name):
    once(engine_name)
    agent = ready(engine_name, numpy_loss(lambda x: kind(x.detach().mean().numpy())))
    refused(agent, engine_name, "returned .* as a loss; expected an array computed from the networks.*NumPy array")
