"""Faults in the midst of an evolution: the population keeps its size, and the best member is never lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import python_programs
from study_worlds import TINY, Pointer

import etude
from etude.tuning import ProcessExecutor
from etude.tuning.evolution import ArchitectureLimits, Evolution, Mutations
from etude.tuning.journal import NAME

EVERY, GENERATIONS, POPULATION = 32, 4, 3
PATIENCE = 300  # seconds for what takes one on an idle machine


def small(folder, env=Pointer, **more):
    mutations = Mutations(none=0.3, architecture=0.4, parameters=0.3, network=ArchitectureLimits(units=(4, 80)))
    given = {
        "population": POPULATION, "every": EVERY, "steps": GENERATIONS * EVERY, "mutations": mutations, "config": TINY,
        "evaluate_episodes": 1, "engine": "torch", "environments": 2, "seed": 7,
    }  # fmt: skip
    return Evolution("ppo", env, folder=folder, **{**given, **more})


def history(evolution):
    return [(t.number, t.parent, t.genome, t.status, t.scores, t.change) for t in evolution.trials]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    with small(tmp_path_factory.mktemp("straight")) as evolution:
        evolution.run()
        yield evolution


def best_is_there(evolution):
    """Whether the checkpoint of the best member acts as it was evaluated."""
    best = evolution.best
    assert best.fitness == max(score.mean for trial in evolution.trials for score in trial.scores)
    with etude.load(best.path, env=Pointer, config=best.genome.config) as run:
        return run.evaluate(1, evolution.plan.evaluate_seed).mean == best.fitness


def test_an_evolution_whose_process_was_killed_goes_on_to_the_same_lineage(tmp_path, straight):
    here = Path(__file__).parent
    code = f"import sys; sys.path[:0] = [{str(here)!r}, {str(here.parent)!r}]\n"
    code += f"from {Path(__file__).stem} import small\nsmall({str(tmp_path)!r}).run()"
    journal, until = tmp_path / NAME, time.monotonic() + PATIENCE
    process = python_programs.start("-c", code)
    while process.poll() is None and time.monotonic() < until:
        if journal.exists() and journal.read_bytes().count(b"\n") > 5:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    assert process.wait(PATIENCE) == -signal.SIGKILL
    with small(tmp_path) as evolution:
        evolution.run()
        assert history(evolution) == history(straight)
        assert best_is_there(evolution)


@pytest.mark.long
def test_a_member_whose_process_is_killed_goes_on_in_another_one(tmp_path, straight):
    killed, executor = [], ProcessExecutor(2)

    def kill_once(study):
        if not killed:
            killed.append(executor._workers[0].process.pid)
            os.kill(killed[0], signal.SIGKILL)

    with small(tmp_path, executor=executor) as evolution:
        evolution.run(kill_once)
        assert history(evolution) == history(straight)
        assert any("SIGKILL" in text for _, text in evolution.notes)
        assert best_is_there(evolution)


def test_a_member_that_diverges_is_replaced_and_the_best_one_stays(tmp_path):
    class Poison(etude.Callback):
        """The weights of the best member of the first generation become NaN in the second."""

        def on_train_begin(self, run, event):
            if run.step == EVERY and not poisoned:
                best = evolution.best
                if run.directory.path.name == f"trial-{best.trial:04d}":
                    poisoned.append(best)
                    run.engine.load({name: np.full_like(x, np.nan) for name, x in run.engine.weights().items()})

    poisoned = []
    with small(tmp_path, callbacks=Poison) as evolution:
        evolution.run()
        (lost,) = poisoned
        failed = evolution.trials[lost.trial]
        assert "finite" in failed.reason or "NaN" in failed.reason
        assert evolution.finished and len(evolution.members) == POPULATION
        assert all(member.step == GENERATIONS * EVERY for member in evolution.members)
        assert not any(trial.parent == failed.number and trial.started > EVERY for trial in evolution.trials)
        assert evolution.best.fitness >= lost.fitness
        assert best_is_there(evolution)
