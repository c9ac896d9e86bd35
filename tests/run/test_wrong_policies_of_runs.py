"""Policies of a run that cannot be, and checkpoints of several policies that were changed."""

import copy

import pytest
from run_makers import DQN_TINY, PPO_TINY, at_random, pair
from several_worlds import Meeting

from etude.algorithms import DQN, PPO
from etude.base.errors import CheckpointError, ConfigError
from etude.multi_agent import Alternate
from etude.run import from_state


@pytest.mark.parametrize(
    ("policies", "more", "message"),
    [
        ({"ann": "ppo"}, {}, "There is no policy 'bob', which is to drive bob; there are ann"),
        ({"ann": "ppo", "bob": "dqn", "eve": "dqn"}, {}, "The policy 'eve' drives no agent"),
        ({"ann": "ppo", "bob": PPO}, {}, "The policy 'bob' is <class .*; expected the name of an algorithm"),
        ({"ann": "ppo", "bob": 3}, {}, "The policy 'bob' is 3"),
        ({"ann": "ppo", "bob": "dqm"}, {}, "There is no algorithm named 'dqm'"),
        ({"ann": "ppo", "bob": "reinforce"}, {}, "learns from episodes of one agent"),
        ({"ann": "ppo", "bob": "bc"}, {}, "learns from transitions of one agent"),
        ({"ann": "ppo", "bob": "dqn"}, {"config": DQN_TINY}, "config= is of one algorithm"),
        ({"ann": "ppo", "bob": "dqn"}, {"learning_rate": 0.1}, "learning_rate= is of one algorithm"),
        ({"ann": "ppo", "bob": "dqn"}, {"train_only": ("eve",)}, "train_only names eve; .* can learn are ann, bob"),
        ({"ann": "ppo", "bob": at_random}, {"train_only": "bob"}, "train_only names bob; .* can learn are ann"),
        ({"ann": "ppo", "bob": "dqn"}, {"train_only": ()}, r"train_only = \(\); expected the names"),
        ({"ann": "ppo", "bob": "dqn"}, {"train_only": Alternate(9, ("ann", "eve"))}, "train_only names eve"),
        ({"ann": at_random, "bob": at_random}, {}, "No policy learns"),
        ("ppo", {"train_only": ("ann",)}, "train_only = .'ann',. names policies that learn; give them first"),
    ],
)
def test_policies_that_cannot_be_are_refused_with_what_to_do(policies, more, message):
    with pytest.raises(ConfigError, match=message):
        pair(policies, Meeting, **more)


def test_several_policies_need_several_agents():
    with pytest.raises(ConfigError, match="The policies ann, bob are for several agents"):
        pair({"ann": "ppo", "bob": "dqn"}, "CartPole-v1")


@pytest.mark.parametrize("every", [0, 1.5, True])
def test_turns_of_no_length_are_refused(every):
    with pytest.raises(ConfigError, match="expected a whole number of at least 1"):
        Alternate(every)


def test_a_function_is_given_again_where_a_run_goes_on(tmp_path):
    with pair({"ann": DQN(DQN_TINY), "bob": at_random}, Meeting) as run:
        run.train(4)
        state = copy.deepcopy(run.state())
    with pytest.raises(ConfigError, match="The policy 'bob' of this run was the function .*: give it again"):
        from_state(state, Meeting)
    with pytest.raises(ConfigError, match="this run has the policies ann, bob"):
        from_state(state, Meeting, agent={"eve": at_random})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state: state.pop("learners"), "progress of each policy"),
        (lambda state: state["learners"].pop("bob"), "'bob' in it"),
        (lambda state: state["learners"]["bob"].update(paused=3), "true or false"),
        (lambda state: state["engine"].pop("ann"), "'ann' in it"),
        (lambda state: state["replay"].pop("ann"), "'ann' in it"),
        (
            lambda state: state["description"]["learners"]["ann"].update(kind="spy"),
            "learner, frozen, league or heuristic",
        ),
        (lambda state: state["description"]["learners"]["ann"].update(config={"class": "Popen"}), "config"),
        (lambda state: state["description"].update(train_only={"class": "Path", "every": 3}), "train_only"),
    ],
)
def test_a_checkpoint_of_several_policies_that_was_changed_is_refused(spoil, message):
    with pair({"ann": DQN(DQN_TINY), "bob": PPO(PPO_TINY)}, Meeting) as run:
        run.train(20)
        state = copy.deepcopy(run.state())
    spoil(state)
    with pytest.raises((CheckpointError, ConfigError), match=message), from_state(state, Meeting):
        pass
