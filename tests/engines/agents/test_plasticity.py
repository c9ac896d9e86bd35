"""What `report.Plasticity` measures, beside slow programs in NumPy."""

from types import SimpleNamespace

import numpy as np
import pytest
from batches import random_batches
from cases import CASES, made, variants_but

from etude.report import Plasticity

CASE = {case.name: case for case in CASES}


def measured(name, engine_name, change=lambda name, x: x, **more):
    """(the metrics of a case with changed weights, these weights, the batches)."""
    case = CASE[name]
    engine = made(case, engine_name)
    weights = {key: np.asarray(change(key, x.copy()), x.dtype) for key, x in engine.weights().items()}
    engine.load(weights)
    learner = SimpleNamespace(engine=engine, agent=case.agent(), progress=SimpleNamespace(gradient_steps=0))
    batches = random_batches(case, 2, 16)
    return Plasticity(every=1, **more)(learner, batches, 1), weights, batches


def test_the_metrics_of_a_network_are_those_of_a_slow_program(engine_name):
    found, w, batches = measured("dqn", engine_name, tau=0.3, delta=0.1)
    dead, units, layers = 0, 0, []
    rows = np.concatenate([batches.observation.reshape(-1, 5), batches.next_observation.reshape(-1, 5)])[:32]
    x = np.float64(batches.observation.reshape(-1, 5))
    assert len(rows) == len(x)  # without double estimation the losses ask for the values of observations alone
    for i in range(2):
        x = np.maximum(x @ w[f"q.dense{i}.weight"] + w[f"q.dense{i}.bias"], 0)
        layers.append(x)
        for unit in range(x.shape[1]):
            share = np.mean(np.abs(x[:, unit])) / np.mean(np.abs(x))
            dead, units = dead + (share <= 0.3), units + 1
    assert found["q_dormant"] == pytest.approx(dead / units) and dead
    singular = np.sqrt(np.linalg.eigvalsh(layers[-1].T @ layers[-1]).clip(0))[::-1]
    least = next(k for k in range(1, 17) if sum(singular[:k]) >= 0.9 * sum(singular))
    assert found["q_effective_rank"] == least < 16
    squares = sum(float(np.sum(np.float64(x) ** 2)) for key, x in w.items() if key.startswith("q."))
    assert found["q_weight_norm"] == pytest.approx(np.sqrt(squares))
    assert found.keys() == {"q_dormant", "q_effective_rank", "q_weight_norm"}  # and none of the target network


KILLED = {  # the layers of which one unit is, and all units
    "dqn on images": ("q", ("image0.conv1", "dense0"), 4 + 8 + 16),
    "sac": ("critic", ("dense0", "dense1"), 2 * (16 + 16)),  # one unit of one of two critics
    "dqn, dueling and noisy, masked": ("q", ("dense0",), 3 * 16),
    "recurrent_ppo, masked": ("model.policy", ("before.dense0", "after.dense0"), 16 + 8 + 8),
    "mappo": ("arm.model.critic", ("dense0",), 16 + 16),
}


@pytest.mark.parametrize("name", variants_but(("sac",), KILLED))
def test_a_unit_that_puts_out_nothing_is_dormant_whatever_network_it_is_of(name, engine_name):
    part, layers, units = KILLED[name]

    def change(key, x):
        layer = key.removeprefix(f"{part}.").rpartition(".")[0]
        if key.startswith(f"{part}.") and "cell" not in key and "noise" not in key:
            x = x * 0.01 if key.endswith("weight") else x * 0 + (1 if key.endswith("bias") else 0)
            if layer in layers:
                x[(0, ..., 3) if name == "sac" else (..., 3)] = 0
        return x

    found, *_ = measured(name, engine_name, change, tau=0.0)
    assert found[f"{part}_dormant"] == pytest.approx(len(layers) / units)
    assert 1 <= found[f"{part}_effective_rank"] <= 16


def test_numbers_that_are_none_end_no_run(engine_name):
    found, *_ = measured("dqn", engine_name, lambda key, x: x * np.nan if key == "q.dense1.weight" else x)
    assert np.isnan(found["q_effective_rank"]) and np.isnan(found["q_weight_norm"])
