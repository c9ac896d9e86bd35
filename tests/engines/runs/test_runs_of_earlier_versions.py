"""Runs that earlier versions saved load for ever, and go on with the numbers that those versions went on with.

`expected.json` beside the files says for each: steps trained before saving, steps that the earlier version then went
on, and of its weights the sum of magnitudes and the sum. No file is changed or removed; a version that renames what is
saved gets a folder of its own, written before the change.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import etude

FOLDERS = [Path(__file__).parents[2] / "checkpoint" / "runs_before" / version for version in ("v0_1_0",)]
RUNS = [path for folder in FOLDERS for path in sorted(folder.glob("*.etude"))]
ON_EVERY_ENGINE = ("dqn", "ppo", "td3")  # files name no engine


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            marks=() if path.stem in ON_EVERY_ENGINE else pytest.mark.variant,
            id=f"{path.parent.name}-{path.stem}",
        )
        for path in RUNS
    ],
)
def test_a_run_of_an_earlier_version_goes_on_with_the_numbers_of_that_version(path, engine_name):
    expected = json.loads((path.parent / "expected.json").read_text())[path.stem]
    with etude.load(path, engine=engine_name, trust=True) as run:
        run.train(expected["then"])
        weights = run.learner.trained_weights()
    assert run.step == expected["step"]
    assert sorted(weights) == sorted(expected["weights"])
    for key, (magnitude, total) in expected["weights"].items():
        found = weights[key].astype(np.float64)
        assert np.abs(found).sum() == pytest.approx(magnitude, rel=1e-4), key
        assert found.sum() == pytest.approx(total, rel=1e-4, abs=1e-4 * magnitude), key
