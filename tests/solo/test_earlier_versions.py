"""Files that agents of one's own saved under earlier names: see `checkpoint.old_names`."""

import numpy as np
import pytest

from etude.checkpoint.old_names import present_agent

OWN = ("actor.0.weight", "target_actor.0.weight", "lagged_critic.0.weight", "lagged_model.0.weight")


def saved(*names):
    values = {name: np.full(1, i) for i, name in enumerate(names)}
    training = {"engine": {"framework": "torch", "values": values}, "progress": {"step": 3, "rounds": 2}}
    return {"agent": {"record": {"losses": []}, "weights": values}, "training": training}


def test_only_attributes_of_the_example_agents_get_other_names():
    names = ("actor.0.weight", "lagged_actor.0.weight", "lagged_critic.0.weight", "lagged_model.0.weight")
    found = present_agent(saved(*names), OWN)
    for values in (found["agent"]["weights"], found["training"]["engine"]["values"]):
        assert {name: value.tolist() for name, value in values.items()} == dict(
            zip(OWN, ([0], [1], [2], [3]), strict=True)
        )
    assert found["agent"]["history"] == {"losses": []}
    assert found["training"]["progress"] == {"step": 3, "collections": 2}


@pytest.mark.parametrize(
    "state", [None, [], {}, {"agent": 3, "training": None}, {"agent": {}, "training": {"engine": 1}}]
)
def test_what_is_no_such_file_is_left_to_the_checks(state):
    assert present_agent(state, OWN) == state
