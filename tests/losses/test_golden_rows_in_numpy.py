"""Every golden row, in NumPy. `tests/engines/agents/test_golden_values.py` runs the same rows on an engine."""

import numpy as np
import pytest
from golden import ROWS, check, evaluate


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_golden_row_comes_out_in_float32(row):
    result = evaluate(row, lambda array: array)
    assert np.asarray(result).dtype == np.float32
    check(row, np.asarray(result))
