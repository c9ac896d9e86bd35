"""The same weights, batch, noise and hyperparameters give the same losses everywhere: in plain NumPy and on every
engine before the first update, and on every engine after eight. `parity.json` holds what one engine gave; each engine
is held to it."""

import json
from pathlib import Path

import numpy as np
import pytest
from batches import pick, random_batches
from cases import CASES, every_case, made

from etude import engines
from etude.engines.numpy import NumpyEngine
from etude.engines.parameter_layout import loss_noise
from etude.networks.network import parts_of

EXPECTED_FILE = Path(__file__).parent / "parity.json"
COMPILED = [  # compiling a case takes seconds
    pytest.param(case, marks=() if case.algorithm == "dqn" else pytest.mark.long, id=case.name)
    for case in CASES
    if case.name in ("double dqn, masked", "ppo box, normalised", "sac")
]
EXPECTED = json.loads(EXPECTED_FILE.read_text()) if EXPECTED_FILE.exists() else {}


def losses_before_and_after(engine, case):
    """The losses of the first two gradient steps, and of the ninth and the tenth."""
    losses = [engine.learn(random_batches(case, 2, 16, seed=i), case.hyper()).losses for i in range(5)]
    return {"before": losses[0], "after": losses[4]}


@every_case()
def test_losses_agree_before_and_after_eight_updates(case, engine_name):
    found = losses_before_and_after(made(case, engine_name), case)
    assert found["before"] == pytest.approx(EXPECTED[case.name]["before"], rel=1e-4, abs=1e-6)
    assert found["after"] == pytest.approx(EXPECTED[case.name]["after"], rel=1e-4, abs=1e-5)


@every_case()
def test_losses_in_numpy_are_those_of_the_engine(case, engine_name):
    engine, reference = made(case, engine_name), NumpyEngine(case.agent(), case.spaces)
    layout, weights = reference.layout, engine.weights()
    due = dict.fromkeys(layout.agent.trained_every.values(), 1)
    still = dict.fromkeys(layout.rates.values(), 0.0)
    hyper = case.hyper(tau=0.0, max_kl=0.0, target_update_every=1_000_000, **due, **still)
    batches, noise = random_batches(case, 2, 16), layout.draw_noise(loss_noise(0), 2, 16)
    losses = []
    for i in range(2):
        agent = layout.bind(weights, hyper)
        with np.errstate(all="ignore"):
            found = agent.loss(pick(batches, i), {name: value[i] for name, value in noise.items()})
        losses.append({name: float(loss.value) for name, loss in found.items()})
        weights |= {f"{p}.{v}": part.variables[v] for p, part in parts_of(agent).items() for v in part.moved}
    mean = {name: np.mean([each[name] for each in losses]) for name in losses[0]}
    assert engine.learn(batches, hyper).losses == pytest.approx(mean, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("case", COMPILED)
def test_compiled_torch_agrees_with_eager(case, engine_name):
    if engine_name != "torch":
        pytest.skip("torch only: the other engines always compile")
    from torch._dynamo.utils import counters

    counters.clear()
    engine = engines.create("torch", case.agent(), case.spaces, compiled=True)
    found = losses_before_and_after(engine, case)
    assert counters["stats"]["unique_graphs"] == 1, "compiled once"
    assert found["before"] == pytest.approx(EXPECTED[case.name]["before"], rel=1e-4, abs=1e-6)
    assert found["after"] == pytest.approx(EXPECTED[case.name]["after"], rel=1e-4, abs=1e-5)


if __name__ == "__main__":  # PYTHONPATH=tests/engines python tests/engines/agents/test_parity.py > parity.json
    print(json.dumps({case.name: losses_before_and_after(made(case, "torch"), case) for case in CASES}, indent=1))
