"""What is compiled for an agent serves agents with other values of the floats of its config."""

import numpy as np
import pytest
from cases import CASES

from etude.base.schedules import Linear
from etude.networks.network import Maker

INITIAL = {"initial_log_std", "kl_coefficient", "temperature", "cql_alpha"}  # of what a weight is at first
COMPARED = {"target_gap"}  # with None


def watched(config, read):
    """A copy of a config that notes which floats are read of it."""

    class Watched(type(config)):
        def __new__(cls):
            return object.__new__(cls)

        __init__ = object.__init__

        def __getattribute__(self, name):
            value = object.__getattribute__(self, name)
            if isinstance(value, float | Linear):
                read.add(name)
            return value

    copy = Watched()
    vars(copy).update(vars(config))
    return copy


@pytest.mark.parametrize("algorithm", sorted({case.algorithm for case in CASES if case.spaces.agents is None}))
def test_an_agent_that_is_built_reads_floats_of_its_config_for_initial_values_alone(algorithm):
    for case in CASES:
        if case.algorithm == algorithm and case.spaces.agents is None:
            read, agent = set(), case.agent()
            agent.config = watched(agent.config, read)
            agent.noise, agent.batch_noise, agent.trained_every, agent.state_size = {}, {}, {}, 0
            agent.build(Maker(np.random.default_rng(0), None), case.spaces)
            assert read <= INITIAL | COMPARED, case.name
