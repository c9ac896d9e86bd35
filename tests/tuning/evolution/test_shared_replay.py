"""One replay for all members of a population: who learns from whose rows, resumption, and what is refused."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from study_worlds import Pointer

import etude
import etude.checkpoint as checkpoint
from etude import cli
from etude.algorithms import DQNConfig, PPOConfig, R2D2Config
from etude.base.errors import CheckpointError, ConfigError
from etude.base.events import Saved
from etude.checkpoint.run_directory import RunDirectory
from etude.networks import Mlp
from etude.replay.ring import TRUNCATED
from etude.run.shared_rows import FOLDER, copy_checkpoint, file_of_rows, with_rows
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


def states_of(evolution):
    """What the last members saved, with the rows of the replay at that time."""
    loaded = [RunDirectory(evolution.folder / f"trial-{t.number:04d}", 2).load() for t in evolution.members]
    return [with_rows(each.state, each.path) for each in loaded]


def weights(evolution):
    """Those of the last members, and the rows of the newest replay."""
    states = states_of(evolution)
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


def test_each_row_is_written_once_and_named_by_checkpoints(straight):
    files = sorted((straight.folder / FOLDER).iterdir())
    changes = [checkpoint.read(path)["changes"] for path in files]
    assert len(files) == POPULATION * GENERATIONS  # one for each segment; the best checkpoint names the same one
    edges = 2 * 2  # before the first and after the newest row of each of two environments
    assert [len(each["rows"]) - EVERY for each in changes[1:]] == [edges] * (len(files) - 1)
    for path in straight.folder.glob("trial-*/checkpoints/*.etude"):
        state = checkpoint.read(path)
        assert (straight.folder / FOLDER / file_of_rows(state)).exists()
        assert set(state["replay"]["ring"]) == {"file"}


def test_checkpoints_of_members_are_runs_that_train_on_beside_their_study_and_act_elsewhere(tmp_path, straight):
    last = straight.members[-1].number
    path = max((straight.folder / f"trial-{last:04d}").glob("checkpoints/step*.etude"))
    with etude.load(path, env=Pointer) as run:
        assert len(run.learner.replay) == straight.steps
        list(run.steps(16))
    straight.best.save(tmp_path / "best.etude")
    with etude.load(tmp_path / "best.etude", env=Pointer) as run, straight.best.load(env=Pointer) as own:
        assert len(run.learner.replay) == len(own.learner.replay) > 0
        list(run.steps(16))
    (tmp_path / "moved.etude").write_bytes(path.read_bytes())
    with pytest.warns(UserWarning, match="shared with others"):
        run = etude.load(tmp_path / "moved.etude", env=Pointer)
    assert run.act(np.zeros(1, np.float32)) in (0, 1)
    with pytest.raises(CheckpointError, match="without its replay"):
        list(run.steps(16))
    run.close()


def test_a_member_is_resumed_alone_with_the_rows_of_all(tmp_path):
    with shared(tmp_path, "study_worlds:Pointer", population=2, steps=EVERY) as evolution:
        evolution.run()
    assert cli.main(["resume", str(tmp_path / "trial-0001"), "--steps", str(EVERY + 16), "--quiet"]) == 0
    with etude.load(tmp_path / "trial-0001") as run:
        assert run.step == EVERY + 16 and len(run.learner.replay) == 2 * EVERY + 16


def test_an_evolution_whose_members_saved_all_rows_themselves_goes_on(tmp_path, straight):
    """As studies of before rows had files of their own did."""
    with shared(tmp_path) as evolution, pytest.raises(Killed):
        evolution.run(killed_after(6))
    for path in [*tmp_path.glob("trial-*/checkpoints/*.etude"), *tmp_path.glob("trial-*/start.etude")]:
        copy_checkpoint(path, path)
    shutil.rmtree(tmp_path / FOLDER)
    with shared(tmp_path) as evolution:
        evolution.run()
        assert history(evolution) == history(straight)
        same(evolution, straight)


@pytest.mark.parametrize("damage", ["missing", "cut off", "another place"])
def test_rows_that_are_missing_or_damaged_are_reported(tmp_path, straight, damage):
    shutil.copytree(straight.folder, tmp_path / "study")
    path = max((tmp_path / "study" / "trial-0000").glob("checkpoints/step*.etude"))
    state = checkpoint.read(path)
    file = tmp_path / "study" / FOLDER / file_of_rows(state)
    first = min(file.parent.iterdir())
    if damage == "missing":
        first.unlink()
    elif damage == "cut off":
        file.write_bytes(file.read_bytes()[:-50])
    else:
        state["replay"]["ring"] = {"file": "../../rows-000000000-00000000.etude"}
        checkpoint.write(path, state)
    message = {"missing": "lacks the file", "cut off": "is incomplete", "another place": "the name of a file"}[damage]
    with pytest.raises(CheckpointError, match=message):
        etude.load(path, env=Pointer)


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
        (state["replay"]["ring"] for state in states_of(evolution)),
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
