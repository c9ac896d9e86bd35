"""What docs/spaces.md says of each kind of value."""

import re
import warnings

import pytest
from run_makers import PPO_TINY
from space_cases import OBSERVATIONS, OTHERS

import etude
from etude.algorithms import PPOConfig
from etude.base.errors import EtudeError

CONFIG = PPOConfig(rollout_length=PPO_TINY.rollout_length, minibatch_size=32, epochs=1, normalize_observation=False)


@pytest.mark.parametrize("case", [*OBSERVATIONS, *OTHERS], ids=lambda case: case.kind)
def test_what_the_page_says_happens(case):
    found = None
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            with etude.Run("ppo", case.world, config=CONFIG, engine="torch", environments=1, seed=1) as run:
                run.train(48)
        except EtudeError as problem:
            found = str(problem)
    told = [str(each.message) for each in raised if each.category is UserWarning]
    assert (found is None) == (case.fault is None), found
    assert found is None or re.search(case.fault, found), found
    assert bool(told) == bool(case.warned), told
    assert not told or re.search(case.warned, told[0]), told
