"""The same weights, batch, noise and hyperparameters give the same losses everywhere: in plain NumPy and on every
engine before the first update, and on every engine after eight. `parity.json` holds what one engine gave; each engine
is held to it."""

import json
from pathlib import Path

import numpy as np
import pytest
from cases import CASES, every_case, pick, random_batches

from etude import engines
from etude.engines.numpy import NumpyEngine
from etude.engines.structure import loss_noise

EXPECTED_FILE = Path(__file__).parent / "parity.json"
EXPECTED = json.loads(EXPECTED_FILE.read_text()) if EXPECTED_FILE.exists() else {}


def losses_before_and_after(case, engine_name, compiled=False):
    engine = engines.create(engine_name, case.agent(), case.spaces, seed=3, compiled=compiled)
    hyper = case.hyper()
    losses = [engine.learn(random_batches(case, 1, 32, seed=i), hyper).losses for i in range(9)]
    return losses[0], losses[8]


@every_case()
def test_losses_agree_before_and_after_eight_updates(case, engine_name):
    before, after = losses_before_and_after(case, engine_name)
    assert before == pytest.approx(EXPECTED[case.name]["before"], rel=1e-4, abs=1e-6)
    assert after == pytest.approx(EXPECTED[case.name]["after"], rel=1e-4, abs=1e-5)


@every_case()
def test_losses_in_numpy_are_those_of_the_engine(case, engine_name):
    engine = engines.create(engine_name, case.agent(), case.spaces, seed=3)
    reference = NumpyEngine(case.agent(), case.spaces)
    reference.load(engine.weights())
    rng_noise = reference.structure.draw_noise(loss_noise(3), 1, 32)
    batches = random_batches(case, 1, 32)
    agent = reference.structure.bind(reference.weights(), case.hyper())
    with np.errstate(all="ignore"):
        found = agent.loss(pick(batches, 0), {name: value[0] for name, value in rng_noise.items()})
    every_loss_due = dict.fromkeys(reference.structure.agent.trained_every.values(), 1)
    losses = {name: float(loss.value) for name, loss in found.items()}
    assert engine.learn(batches, case.hyper(**every_loss_due)).losses == pytest.approx(losses, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("case", [CASES[1], CASES[6], CASES[9]], ids=lambda case: case.name)
def test_compiled_torch_agrees_with_eager(case, engine_name):
    if engine_name != "torch":
        pytest.skip("torch only: the other engines always compile")
    before, after = losses_before_and_after(case, "torch", compiled=True)
    assert before == pytest.approx(EXPECTED[case.name]["before"], rel=1e-4, abs=1e-6)
    assert after == pytest.approx(EXPECTED[case.name]["after"], rel=1e-4, abs=1e-5)


if __name__ == "__main__":  # python tests/engines/test_parity.py > tests/engines/parity.json
    found = {
        case.name: dict(zip(("before", "after"), losses_before_and_after(case, "torch"), strict=True)) for case in CASES
    }
    print(json.dumps(found, indent=1))
