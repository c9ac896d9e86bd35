"""What is told of the gradients of single layers."""

import dataclasses

import numpy as np
import pytest
from batches import random_batches
from cases import BOTH, CASES, variants_but

from etude import engines


@pytest.mark.parametrize("name", variants_but({"dqn": BOTH, "td3": ("jax",)}, ["dqn", "td3", "a2c box"]))
def test_the_norms_of_layers_make_up_that_of_the_loss(name, engine_name):
    case = next(case for case in CASES if case.name == name)
    config = dataclasses.replace(case.config, layer_gradient_norms=True, max_gradient_norm=0.5)
    case = dataclasses.replace(case, config=config)
    engine = engines.create(engine_name, case.agent(), case.spaces, seed=0)
    told = engine.learn(random_batches(case, 2, 8), case.hyper(policy_delay=2))
    assert told.metrics
    for group, names in engine.layout.groups.items():
        layers = {name.rpartition(".")[0] for name in names}
        norms = [told.metrics[f"{layer}_gradient_norm"] for layer in layers]
        assert all(norm > 0 for norm in norms)
        if group in engine.layout.delayed:  # trained at one of the two gradient steps: no mean over steps
            assert np.sqrt(np.sum(np.square(norms))) == pytest.approx(told.metrics[f"{group}_gradient_norm"], rel=1e-4)


def test_the_norms_of_layers_are_told_without_a_bound_and_only_when_asked_for(engine_name):
    case = next(case for case in CASES if case.name == "dqn")
    for asked in (False, True):
        config = dataclasses.replace(case.config, layer_gradient_norms=asked, max_gradient_norm=None)
        own = dataclasses.replace(case, config=config)
        engine = engines.create(engine_name, own.agent(), own.spaces, seed=0)
        told = engine.learn(random_batches(own, 1, 8), own.hyper())
        assert {name for name in told.metrics if "gradient" in name} == (
            {f"q.dense{i}_gradient_norm" for i in range(3)} if asked else set()
        )
