"""`etude train dqn ALE/Pong-v5`, for as long as a test can take."""

import json

import numpy as np
import pytest

import etude
from etude import cli


@pytest.mark.long
def test_two_thousand_steps_of_pong_are_learned_from_on_the_command_line(engine_name, tmp_path):
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    folder = tmp_path / "run"
    command = ["train", "dqn", "ALE/Pong-v5", "--steps", "2000", "--engine", engine_name, "--run-dir", str(folder)]
    shorter = ["--set.learning-starts", "1000", "--set.buffer-size", "2000", "--evaluate-every", "0"]
    assert cli.main([*command, *shorter]) == 0
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [record["train/q"] for record in records if record.get("train/q") is not None]
    assert losses and np.isfinite(losses).all()
    with etude.load(folder) as run:
        assert run.learner.progress.gradient_steps == 251  # one for four steps, from step 1,000 on
        ring = run.learner.replay.ring
        assert ring.observations.inner.kept.shape[1:] == (84, 84) and set(np.unique(ring.reward)) <= {-1.0, 0.0, 1.0}
        assert -21 <= run.evaluate(1, max_steps=100).mean <= 21
