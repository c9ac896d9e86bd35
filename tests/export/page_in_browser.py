"""The page of docs/deploy.md with a policy in it, in Chromium: `make docs-check`, which gets onnxruntime-web from npm.
Not a part of `make test`."""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import threading
from pathlib import Path

import gymnasium as gym
import pytest
from chromium import chromium

import etude

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "build" / "npm" / "node_modules" / "onnxruntime-web" / "dist"


@pytest.fixture
def site(tmp_path):
    """The address of a folder with the page, and what it loads."""
    if not RUNTIME.is_dir():
        pytest.skip("There is no onnxruntime-web: npm install --prefix build/npm onnxruntime-web.")
    (page,) = re.findall(r"```text\n(<script.*?)```", (ROOT / "docs/deploy.md").read_text(), re.DOTALL)
    (tmp_path / "index.html").write_text(f"<!doctype html>{page}")
    for name in ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"):
        shutil.copy(RUNTIME / name, tmp_path)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield tmp_path, f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


def test_a_policy_in_a_page_acts_as_evaluated(site):
    folder, url = site
    with etude.Run("dqn", "CartPole-v1", engine="torch") as run, chromium() as browser:
        run.train(500)
        run.export(folder / "policy.onnx", "onnx")
        page = browser.new_page()
        page.goto(url)
        env = gym.make("CartPole-v1")
        seen = [env.observation_space.sample() for _ in range(100)]
        found = page.evaluate(
            "async seen => { const found = []; for (const x of seen) found.push(await act(x)); return found; }",
            [x.tolist() for x in seen],
        )
        assert found == [run.act(x) for x in seen]
