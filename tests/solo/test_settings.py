"""What `set` and `train` accept, and how they say what contradicts itself."""

import numpy as np
import pytest

from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.base.spaces import Box, Discrete, Spaces
from etude.explore import EpsGreedyQPolicy, GaussianWhiteNoiseProcess
from etude.replay import Buffer, OneStep, Ring, Uniform
from etude.solo.settings import Options, Settings, cut_if_due, replay_kind_of


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"policy": EpsGreedyQPolicy(), "noise": GaussianWhiteNoiseProcess()}, "policy and noise"),
        ({"epsilon": 0.1}, "epsilon belongs to a policy"),
        ({"batch": 64, "pool_size": 32}, "larger than pool_size"),
        ({"update_steps": 10, "update_batches": 10}, "Keep one"),
        ({"PPO": True}, "update_steps or update_batches"),
        ({"criterion": 475.0}, "Give trial_count"),
        ({"HER": True, "PPO": True, "update_steps": 10}, "relabels the past"),
        ({"HER": True, "MARL": True}, "goal of one agent"),
        ({"TRL": True, "num_steps": 3}, "triplets"),
        ({"IRL": True, "HER": True}, "learned model"),
        ({"batch": 0}, "batch = 0; expected a whole number of at least 1"),
        ({"pool_folder": 3}, "pool_folder = 3; expected a folder or None"),
        ({"num_steps": 0}, "num_steps = 0"),
        ({"lambda_": 1.5}, "lambda_ = 1.5; expected a number from 0 to 1"),
        ({"alpha": -1.0}, "alpha = -1.0"),
        ({"alpha": "0.6"}, "alpha = '0.6'; expected a number"),
        ({"criterion": "475", "trial_count": 10}, "criterion = '475'; expected a number or None"),
        ({"criterion": float("nan"), "trial_count": 10}, "criterion = nan; expected a number or None"),
        ({"PR": "no"}, "PR = 'no'; expected True or False"),
    ],
)
def test_settings_that_contradict_themselves_say_why(given, said):
    with pytest.raises(ConfigError, match=said):
        Settings(**given)


def test_settings_without_contradiction_pass():
    Settings(policy=EpsGreedyQPolicy(), PPO=True, PR=True, update_steps=100, trial_count=10, criterion=475.0)
    assert type(Settings(batch=np.int64(32), criterion=np.float32(4.0), trial_count=1).batch) is int
    Settings(noise=GaussianWhiteNoiseProcess(), HER=True, PR=True, num_steps=3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"processes": 0}, "processes = 0"),
        ({"num_store": 0}, "num_store = 0"),
        ({"p": -1}, "p = -1"),
        ({"p": "often"}, "p = 'often'; expected a whole number or None"),
        ({"random": "no"}, "random = 'no'; expected True or False"),
        ({"window_size": 0}, "window_size = 0"),
        ({"window_size": 1.5}, "fraction to keep"),
    ],
)
def test_options_that_cannot_be_are_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        Options(**given)


def test_a_clearing_frequency_without_a_window_is_refused():
    with pytest.raises(ConfigError, match="give window_size"):
        replay_kind_of(Settings()).window(Options(clearing_freq=10))


@pytest.mark.parametrize(
    ("window", "kept"), [(5, 5), (0.25, 10), (lambda held: held // 8, 5), (100, 40), (lambda held: 1000, 40)]
)
def test_a_window_is_a_number_a_fraction_or_a_function(window, kept):
    buffer = filled(40)
    cut_if_due(buffer, window, 10, rows=10, stored=40)
    assert len(buffer) == kept


def test_the_pool_is_cut_every_so_many_stored_rows_only():
    buffer = filled(40)
    cut_if_due(buffer, 5, 100, rows=10, stored=40)
    assert len(buffer) == 40
    cut_if_due(buffer, 5, 100, rows=10, stored=105)
    assert len(buffer) == 5


def test_without_a_frequency_the_pool_is_cut_when_it_is_full():
    buffer = filled(39)
    cut_if_due(buffer, 5, None, rows=39, stored=39)
    assert len(buffer) == 39
    add(buffer, 1)
    cut_if_due(buffer, 5, None, rows=1, stored=40)
    assert len(buffer) == 5


ON_POLICY = {"PPO": True, "update_steps": 10}


def test_on_policy_with_priorities_keeps_the_newer_half_unless_told_otherwise():
    replay_kind = replay_kind_of(Settings(**ON_POLICY, PR=True))
    for options, kept in ((Options(), 20), (Options(window_size_ppo=8), 8), (Options(window_size=0.25), 10)):
        buffer = filled(40)
        replay_kind.drop(buffer, options)
        assert len(buffer) == kept


def test_on_policy_the_pool_is_emptied_and_off_policy_it_is_kept():
    for settings, kept in (({}, 40), ({"PR": True}, 40), (ON_POLICY, 0)):
        buffer = filled(40)
        if (drop := replay_kind_of(Settings(**settings)).drop) is not None:
            drop(buffer, Options())
        assert len(buffer) == kept


FLAGS = [(False, False), (False, True), (True, False), (True, True)]


def test_with_priorities_their_own_window_counts_first():
    options = Options(window_size=5, window_size_pr=7, window_size_=9)
    assert [replay_kind_of(Settings(PPO=ppo, PR=pr, update_steps=1)).window(options) for ppo, pr in FLAGS] == [
        5, 7, 5, 5,
    ]  # fmt: skip
    assert replay_kind_of(Settings()).window(Options(window_size_=9)) == 9


def test_priorities_are_made_of_errors_and_on_policy_of_ratios_too():
    given = {"update_steps": 1, "initial_TD": 3.0, "initial_ratio": 1.5, "lambda_": 0.25, "alpha": 0.9}
    off, on = (replay_kind_of(Settings(PPO=ppo, PR=True, **given)).selector(8) for ppo in (False, True))
    assert (off.alpha, off.mix, off.deviation, off.largest[0]) == (0.9, 1.0, None, 3.0)
    assert (on.alpha, on.mix, on.largest.tolist()) == (0.9, 0.25, [3.0, 0.5])


def filled(rows):
    spaces = Spaces(Box(-1, 1, (2,)), Discrete(2))
    buffer = Buffer(Ring(spaces, 40), Uniform(), OneStep(0.9), generator(0, "test"))
    add(buffer, rows)
    return buffer


def add(buffer, rows):
    import numpy as np

    from etude.base.data import Steps

    buffer.add(
        Steps(
            observation=np.zeros((rows, 1, 2), np.float32),
            action=np.zeros((rows, 1), np.int64),
            reward=np.zeros((rows, 1), np.float32),
            terminated=np.zeros((rows, 1), bool),
            truncated=np.zeros((rows, 1), bool),
            next_observation=np.zeros((1, 2), np.float32),
            final_observation=np.zeros((0, 2), np.float32),
            final_index=np.zeros((0, 2), np.int64),
            columns=np.array([0]),
            restarted=np.zeros(1, bool),
        )
    )
