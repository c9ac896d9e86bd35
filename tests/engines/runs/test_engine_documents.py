"""What the pages say that needs an engine: code for one engine, and the names of what is logged."""

from __future__ import annotations

import pytest
from cases import variants_but
from written import PAGES, ROOT, blocks, quoted, run, section, table

import etude
from etude.report.records import scalars

pytestmark = pytest.mark.every_engine

SMALL = etude.Mlp((8,))
OFF_POLICY = {"network": SMALL, "learning_starts": 50, "train_every": 50, "batch_size": 8, "buffer_size": 1_000}
RUNS = {
    "dqn": ("CartPole-v1", etude.algorithms.DQNConfig(**OFF_POLICY)),
    "a2c": ("CartPole-v1", etude.algorithms.A2CConfig(network=SMALL)),
    "a3c": ("CartPole-v1", etude.algorithms.A3CConfig(network=SMALL)),
    "appo": ("CartPole-v1", etude.algorithms.APPOConfig(network=SMALL, rollout_length=16, minibatch_size=32)),
    "es": ("CartPole-v1", etude.algorithms.ESConfig(network=SMALL)),
    "impala": ("CartPole-v1", etude.algorithms.IMPALAConfig(network=SMALL)),
    "reinforce": ("CartPole-v1", etude.algorithms.ReinforceConfig(network=SMALL)),
    "ppo": ("CartPole-v1", etude.algorithms.PPOConfig(network=SMALL, rollout_length=16, minibatch_size=32, epochs=1)),
    "sac": ("Pendulum-v1", etude.algorithms.SACConfig(**OFF_POLICY, max_gradient_norm=1.0)),
}
MARKED = [page for page in PAGES if any(block.mark for block in blocks(page))]


@pytest.mark.parametrize("page", MARKED, ids=lambda page: page.name)
def test_the_code_of_a_page_for_one_engine_runs_on_it_block_after_block(
    page, engine_name, tmp_path, monkeypatch, request
):
    mine = [block for block in blocks(page) if block.mark == engine_name]
    if not mine:
        pytest.skip(f"has none for {engine_name}")
    monkeypatch.chdir(tmp_path)
    if engine_name != "torch":  # on which programs that import keras first have set it
        monkeypatch.setenv("KERAS_BACKEND", engine_name)
    if engine_name == "jax" and any("set_random_seed" in block.text for block in mine):
        from keras.src.utils import module_utils

        monkeypatch.setattr(module_utils.tensorflow, "_available", False)  # imported, to seed it, it takes six seconds
    namespace: dict = {}
    for block in mine:
        namespace.pop("run", None)
        run(block, namespace, request.config.getoption("--whole"))
        if "run" in namespace:
            assert namespace["run"].engine.name == engine_name
            assert len(block.text.strip().splitlines()) <= 18  # a network of one's own is a few lines


@pytest.mark.parametrize("algorithm", variants_but(("dqn",), RUNS))
def test_every_metric_is_defined_and_no_other_is(algorithm, engine_name, tmp_path):
    environment, config = RUNS[algorithm]
    path = tmp_path / "metrics.jsonl"
    training = etude.Run(algorithm, environment, config=config, engine=engine_name, environments=2)
    with training:
        training.train(
            500, callbacks=[etude.report.JsonLines(path, every=250)], evaluate_every=250, evaluate_episodes=1
        )
    logged = {tag for record in etude.report.read_records(path) for tag in scalars(record)}
    rows = table(section(ROOT / "docs" / "algorithms" / f"{algorithm}.md", "Metrics"))
    defined = {name for row in rows for name in quoted(row[0])}
    common = {name for row in table((ROOT / "docs" / "metrics.md").read_text()) for name in quoted(row[0])}
    of_estimates = {name for name in common if name.startswith("estimate/")}  # this run asks for none
    schedules = {name for name, value in vars(training.config).items() if isinstance(value, etude.Linear)}
    if not getattr(training.config, "priority_exponent", 0.0):
        schedules -= {"importance_exponent"}
    scheduled = {f"train/{name}" for name in schedules}
    assert logged == defined | scheduled | {name for name in common - of_estimates if "<" not in name}
