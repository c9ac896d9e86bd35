"""Losses against other libraries, in NumPy. `tests/engines/agents/test_oracles.py` runs the same cases on an engine."""

import numpy as np
import pytest
from oracles import CASES, FUNCTIONS, NAMES, check, evaluate


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_100_random_inputs_give_what_another_library_gives(case):
    result = evaluate(case, lambda array: array)
    assert np.asarray(result).dtype == np.float32
    check(case, result)


def test_every_case_is_computed():
    assert {(library, case) for library, case, _ in CASES} == {
        (library, case) for library, functions in FUNCTIONS.items() for case in functions
    }
