"""One replay for all members of a population: who learns from whose rows, resumption, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from study_worlds import Pointer

import etude
from etude.algorithms import DQNConfig, PPOConfig, R2D2Config
from etude.base.errors import ConfigError
from etude.base.events import Saved
from etude.checkpoint.run_directory import RunDirectory
from etude.networks import Mlp
from etude.replay.ring import TRUNCATED
from etude.tuning.evolution import ArchitectureLimits, Evolution, Mutations

EVERY, GENERATIONS, POPULATION = 24, 3, 3  # a member stops in the middle of an episode of eight steps
DQN = DQNConfig(network=Mlp((8,)), learning_starts=8, buffer_size=2_000, train_every=8, n_step=3)
MUTATIONS = Mutations(
    none=0.3, architecture=0.5, parameters=0.2, hyperparameters=0.3, select=["learning_rate"],
    network=ArchitectureLimits(layers=(1, 2), units=(4, 40)),
)  # fmt: skip


class Killed(BaseException):
    """In the place of kill -9, in this process."""


def killed_after(reports):
    left = [reports]

    def call(study):
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    return call


def shared(folder, env=Pointer, **more):
    given = {
        "population": POPULATION, "every": EVERY, "steps": GENERATIONS * EVERY, "mutations": MUTATIONS, "config": DQN,
        "evaluate_episodes": 1, "engine": "torch", "environments": 2, "seed": 5, "shared_replay": True,
    }  # fmt: skip
    return Evolution("dqn", env, folder=folder, **{**given, **more})


def history(evolution):
    return [(t.number, t.parent, t.genome, t.status, t.scores, t.change) for t in evolution.trials]


def weights(evolution):
    """Those of the last members, and the rows of the newest replay."""
    states = [RunDirectory(evolution.folder / f"trial-{t.number:04d}", 2).load().state for t in evolution.members]
    newest = max(states, key=lambda state: sum(state["replay"]["ring"]["filled"]))
    return [state["engine"]["values"] for state in states], newest["replay"]["ring"]


def same(one, other):
    (values, ring), (others, another) = weights(one), weights(other)
    for x, y in zip(values, others, strict=True):
        assert all(np.array_equal(array, y[name]) for name, array in x.items())
    assert all(np.array_equal(ring[name], another[name]) for name in ("kind", "action", "reward", "head", "filled"))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    with shared(tmp_path_factory.mktemp("shared")) as evolution:
        evolution.run()
        yield evolution


def test_the_replay_holds_each_collected_row_once(straight):
    assert straight.finished and not [t.reason for t in straight.trials if t.status == "failed"]
    _, ring = weights(straight)
    assert int(np.sum(ring["filled"])) == POPULATION * GENERATIONS * EVERY == straight.steps


def test_rows_of_one_member_are_not_continued_by_those_of_the_next(straight):
    slots = EVERY // 2
    kind = weights(straight)[1]["kind"].reshape(-1, 2)
    ends = [kind[i * slots - 1] for i in range(1, POPULATION * GENERATIONS)]
    assert all((end == TRUNCATED).all() for end in ends) and (kind[slots] == 0).all()


@pytest.mark.parametrize("reports", [1, 4, 9])
def test_an_evolution_that_was_killed_goes_on_with_the_same_replay(tmp_path, straight, reports):
    with shared(tmp_path) as evolution, pytest.raises(Killed):
        evolution.run(killed_after(reports))
    with Evolution.load(tmp_path, env=Pointer) as evolution:
        evolution.run()
        assert history(evolution) == history(straight)
        same(evolution, straight)


def test_one_that_was_killed_before_the_study_knew_of_a_checkpoint_goes_on_with_its_rows(tmp_path, straight):
    left = [POPULATION + 2]  # checkpoints at the end of a segment

    def kill(event):
        if isinstance(event, Saved) and event.kind == "last":
            left[0] -= 1
            if not left[0]:
                raise Killed

    with shared(tmp_path, callbacks=lambda: kill) as evolution, pytest.raises(Killed):
        evolution.run()
    assert not left[0]
    with shared(tmp_path) as evolution:
        evolution.run()
        assert history(evolution) == history(straight)
        same(evolution, straight)


def test_an_evolution_that_is_stopped_again_and_again_goes_on_with_the_same_replay(tmp_path, straight):
    with shared(tmp_path) as evolution:
        for _ in range(3):
            evolution.run(lambda study: study.stop())
            assert not evolution.finished
        evolution.run()
        assert history(evolution) == history(straight)
        same(evolution, straight)


def test_members_learn_from_rows_of_others(tmp_path, straight):
    with shared(tmp_path, shared_replay=False, steps=EVERY) as evolution:
        evolution.run()
    found = [[score.mean for score in t.scores[:1]] for t in evolution.trials]
    alone = [etude.load(evolution.folder / f"trial-{n:04d}", env=Pointer) for n in range(POPULATION)]
    assert [len(run.learner.replay) for run in alone] == [EVERY] * POPULATION and len(found) == POPULATION
    with shared(tmp_path / "shared", steps=EVERY) as evolution:
        evolution.run()
    together = [etude.load(evolution.folder / f"trial-{n:04d}", env=Pointer) for n in range(POPULATION)]
    assert [len(run.learner.replay) for run in together] == [EVERY, 2 * EVERY, 3 * EVERY]
    equal = [
        all(np.array_equal(x, two.engine.weights()[name]) for name, x in one.engine.weights().items())
        for one, two in zip(alone, together, strict=True)
    ]
    assert equal == [True, False, False]  # the first member has no one before it
    for run in (*alone, *together):
        run.close()


class Broken(Pointer):
    """Raises at its next step once `broken` is set."""

    broken = False

    def step(self, action):
        if Broken.broken:
            Broken.broken = False
            raise RuntimeError("the simulator broke")
        return super().step(action)


@pytest.mark.parametrize("population", [2, 3])  # of two, the one that is left goes on with what it saved itself
def test_what_a_member_stored_before_it_failed_is_forgotten(tmp_path, population):
    def break_later(study):
        scored = sum(len(trial.scores) for trial in study.trials)
        failed = any("the simulator broke" in trial.reason for trial in study.trials)
        Broken.broken = scored == population + 1 and not failed

    with shared(tmp_path, env=Broken, population=population) as evolution:
        evolution.run(break_later)
        assert evolution.finished and [t.status for t in evolution.trials].count("failed") <= 1
        assert any("the simulator broke" in t.reason for t in evolution.trials)
    ring = max(
        (RunDirectory(evolution.folder / f"trial-{t.number:04d}", 2).load().state["replay"]["ring"]
         for t in evolution.members),
        key=lambda ring: int(np.sum(ring["filled"])),
    )  # fmt: skip
    assert int(np.sum(ring["filled"])) == (population * GENERATIONS - 1) * EVERY


@pytest.mark.parametrize(
    ("algorithm", "given", "message"),
    [
        ("dqn", {"jobs": 2}, "Give jobs=1"),
        ("dqn", {"priority_exponent": 0.5}, "priority_exponent = 0.5"),
        ("dqn", {"rewrite": [lambda steps: steps]}, "takes no rewrite="),
        ("dqn", {"mutations": Mutations(select=["buffer_size"], limits={"buffer_size": (9, 9_999)})}, "buffer_size"),
        ("ppo", {"config": PPOConfig()}, "PPO learns from"),
        ("r2d2", {"config": R2D2Config()}, "R2D2 learns from sequences"),
    ],
)
def test_what_cannot_share_a_replay_is_refused_before_anything_begins(tmp_path, algorithm, given, message):
    given = {"config": DQN, **given}
    if "priority_exponent" in given:
        del given["config"]
    with pytest.raises(ConfigError, match=message):
        Evolution(algorithm, Pointer, population=2, every=32, steps=64, folder=tmp_path / "none", shared_replay=True,
                  engine="torch", **given)  # fmt: skip
    assert not (tmp_path / "none").exists()


def test_an_evolution_does_not_change_whether_its_replay_is_shared(tmp_path):
    with shared(tmp_path, steps=EVERY):
        pass
    with pytest.raises(ConfigError, match="shared_replay"):
        shared(tmp_path, steps=EVERY, shared_replay=False)
