"""Runs that are recorded while they train, on every engine: the files hold what was collected, also after a resume."""

from __future__ import annotations

import numpy as np
import pytest

import etude
from etude.base import trees
from etude.base.events import Collected
from etude.networks import Mlp
from etude.offline import EpisodeRecorder, Reader, Writer


@pytest.mark.variant
@pytest.mark.parametrize("overlap", [False, True])
def test_a_recorded_run_is_interrupted_and_goes_on_on_every_engine(tmp_path, engine_name, overlap):
    recorder = EpisodeRecorder()

    def keep(event):
        for steps in event.steps if isinstance(event, Collected) else ():
            recorder.add(steps)

    settings = {"environments": 2, "workers": 2 if overlap else 0, "overlap": overlap, "rollout_length": 16}
    with etude.Run("impala", "CartPole-v1", seed=1, engine=engine_name, network=Mlp((8,)), run_dir=tmp_path / "run",
                   **settings) as run:  # fmt: skip
        run.train(256, [keep, Writer(tmp_path / "data")], save_every=128)
    with etude.load(tmp_path / "run") as run:
        run.train(128, [keep, Writer(tmp_path / "data")])
    found = list(Reader(tmp_path / "data").episodes())
    assert len(found) == len(recorder.episodes) > 4
    for mine, theirs in zip(found, recorder.episodes, strict=True):
        for name in ("observation", "action", "reward", "extras"):
            for one, other in zip(*(trees.leaves(getattr(each, name)) for each in (mine, theirs)), strict=True):
                np.testing.assert_array_equal(one, other)
