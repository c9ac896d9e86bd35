"""Equal to SCOPE-RL 0.2.1 where both are defined: episodes of equal length. `scope_rl_golden.py` made the numbers."""

import json
from pathlib import Path

import numpy as np
import pytest

from etude.estimation.estimators import METHODS

GOLDEN = json.loads((Path(__file__).parent / "scope_rl.json").read_text())


@pytest.mark.parametrize("method", [name for name in METHODS if name != "fqe"])
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"gamma {case['gamma']}")
def test_estimates_are_those_of_scope_rl(case, method):
    tables = [np.array(case[name]) for name in ("reward", "log_ratio", "q", "v")]
    found = METHODS[method].estimator(*tables, case["gamma"]).mean()
    assert found == pytest.approx(case["expected"][method], abs=1e-6)
