"""The protocol without etude's client: the JavaScript of the page about serving."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from serving_cases import address

import etude
from etude import serving

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_a_game_in_javascript_is_played(tmp_path):
    (program,) = re.findall(r"```js\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(program.splitlines()) <= 60
    (tmp_path / "game.mjs").write_text(program)
    clients = serving.Clients(address(), "CartPole-v1")
    with etude.Run("ppo", clients, engine="torch", environments=1, rollout_length=32, epochs=1) as run:
        process = subprocess.Popen(["node", str(tmp_path / "game.mjs"), f"http://{clients.address}"])
        finished = run.train(128)
    process.kill()
    process.wait()
    assert finished.step == 128 and 2 <= finished.totals["episodes"] <= 20  # a pole falls after ten steps or later
