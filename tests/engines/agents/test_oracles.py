"""Losses against other libraries, on one engine."""

import numpy as np
import pytest
from frameworks import FRAMEWORKS
from oracles import CASES, NAMES, check, evaluate


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_100_random_inputs_give_what_another_library_gives(case, engine_name):
    framework = FRAMEWORKS[engine_name]()
    result = framework.numpy(evaluate(case, framework.array))
    assert result.dtype == np.float32
    check(case, result)
