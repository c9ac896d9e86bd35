"""Evolution end to end: generations, killed and gone on with, in one process and in several, and what is saved."""

import json
import math

import numpy as np
import pytest
from study_worlds import TINY, Pointer, tiny_study

import etude
from etude.base.errors import CheckpointError, ConfigError
from etude.cli import main
from etude.networks import Mlp, Transformer
from etude.tuning import Study
from etude.tuning.evolution import ArchitectureLimits, Evolution, Mutations, Tournament, mutated, next_generation
from etude.tuning.evolution.evolution import fitness_values, mutation_of

EVERY, GENERATIONS, POPULATION = 64, 4, 4
MUTATIONS = Mutations(
    none=0.2, architecture=0.5, new_layer=0.4, parameters=0.2, hyperparameters=0.4, select=["learning_rate"],
    limits={"learning_rate": (1e-4, 0.1)}, network=ArchitectureLimits(layers=(1, 3), units=(4, 80)),
)  # fmt: skip


class Killed(BaseException):
    """In the place of kill -9, in this process."""


def small(folder, env=Pointer, **more):
    """Four members, four generations of 64 steps."""
    given = {
        "population": POPULATION, "every": EVERY, "steps": GENERATIONS * EVERY, "mutations": MUTATIONS, "config": TINY,
        "evaluate_episodes": 2, "engine": "torch", "environments": 2, "seed": 3,
    }  # fmt: skip
    return Evolution("ppo", env, folder=folder, **{**given, **more})


def killed_after(reports):
    left = [reports]

    def call(study):
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    return call


def history(evolution):
    """Everything that happened, by member."""
    return [(t.number, t.parent, t.genome, t.status, t.scores, mutation_of(t)) for t in evolution.trials]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An evolution that was carried out without interruption."""
    with small(tmp_path_factory.mktemp("evolution")) as evolution:
        evolution.run()
        yield evolution


def test_every_generation_has_as_many_members_and_goes_on_from_its_parents(straight):
    assert straight.generation == GENERATIONS and straight.finished
    assert len(straight.members) == POPULATION
    assert all(member.step == GENERATIONS * EVERY for member in straight.members)
    for trial in straight.trials:
        if trial.parent is not None:
            assert trial.started in [score.step for score in straight.trials[trial.parent].scores]
            assert trial.scores[0].step == trial.started + EVERY
    kinds = {mutation_of(trial).kind for trial in straight.trials if trial.parent is not None}
    assert len(kinds) >= 2


def test_the_best_member_of_each_generation_goes_on_unchanged(straight):
    for generation in range(1, GENERATIONS):
        step = generation * EVERY
        scored = [(t, score.mean) for t in straight.trials for score in t.scores if score.step == step]
        assert len(scored) == POPULATION
        best = max(scored, key=lambda found: found[1])[0]
        assert any(score.step == step + EVERY for score in best.scores), "the best one was replaced"


def test_what_is_recorded_of_a_mutation_is_what_differs(straight):
    for trial in straight.trials:
        if trial.parent is None:
            continue
        parent, mutation = straight.trials[trial.parent].genome.config, mutation_of(trial)
        if mutation.kind in ("none", "parameters"):
            assert trial.genome.config == parent
        elif mutation.kind == "hyperparameter":
            assert trial.genome.config.learning_rate == mutation.after and parent.learning_rate == mutation.before
        else:
            assert trial.genome.config.network != parent.network


def test_the_saved_best_is_the_agent_that_was_evaluated(straight, tmp_path):
    best = straight.best
    best.save(tmp_path / "best.etude")
    run = etude.load(tmp_path / "best.etude", env=Pointer, config=best.genome.config)
    assert run.step == best.step
    assert run.evaluate(2, straight.plan.evaluate_seed).mean == best.fitness
    assert best.fitness == max(score.mean for trial in straight.trials for score in trial.scores)
    run.close()


@pytest.mark.parametrize("reports", [11])
def test_an_evolution_that_was_killed_goes_on_to_the_same_lineage_and_weights(tmp_path, straight, reports):
    with small(tmp_path) as evolution, pytest.raises(Killed):
        evolution.run(killed_after(reports))
    with small(tmp_path) as evolution:
        evolution.run()
        assert history(evolution) == history(straight)
        same_weights(evolution, straight)


def same_weights(one, other):
    for member in one.members:
        first, second = (etude.load(each.folder / f"trial-{member.number:04d}", env=Pointer) for each in (one, other))
        weights = second.engine.weights()
        assert all(np.array_equal(x, weights[name]) for name, x in first.engine.weights().items())
        first.close()
        second.close()


@pytest.mark.long
def test_two_processes_give_the_same_lineage_and_weights(tmp_path, straight):
    with small(tmp_path, jobs=2) as evolution:
        evolution.run()
        assert history(evolution) == history(straight)
        same_weights(evolution, straight)


def test_another_seed_gives_another_lineage(tmp_path, straight):
    with small(tmp_path, seed=4, steps=2 * EVERY) as evolution:
        evolution.run()
        assert [t.genome.seed for t in evolution.trials] != [t.genome.seed for t in straight.trials]


class Broken(Pointer):
    """Raises at its next step once `broken` is set."""

    broken = False

    def step(self, action):
        if Broken.broken:
            raise RuntimeError("the simulator broke")
        return super().step(action)


def test_a_member_that_fails_is_reported_and_replaced(tmp_path):
    def break_later(study):
        scored = sum(len(trial.scores) for trial in study.trials)
        Broken.broken = scored == POPULATION + 1 and not any(trial.status == "failed" for trial in study.trials)

    with small(tmp_path, env=Broken, steps=3 * EVERY) as evolution:
        evolution.run(break_later)
        (failed,) = (trial for trial in evolution.trials if "the simulator broke" in trial.reason or not trial.scores)
        assert evolution.finished and len(evolution.members) == POPULATION
        assert all(member.step == 3 * EVERY for member in evolution.members)
    assert not any(trial.parent == failed.number for trial in evolution.trials)


def test_evolution_ends_with_the_generation_that_reaches_the_target(tmp_path):
    with small(tmp_path, target=0.0) as evolution:
        evolution.run()
        assert evolution.finished and evolution.generation == 1


def test_global_steps_count_members_and_evaluations(straight):
    trained = POPULATION * GENERATIONS * EVERY
    evaluated = POPULATION * GENERATIONS * 2 * 8  # episodes of eight steps
    assert straight.steps == trained and straight.global_steps == trained + evaluated


def test_fitness_follows_the_lineage(straight):
    for member in straight.members:
        values = fitness_values(straight.trials, member, EVERY)
        assert len(values) == GENERATIONS and all(map(math.isfinite, values))


def test_pictures_show_fitness_hyperparameters_sizes_and_the_lineage(straight, tmp_path):
    straight.plot(tmp_path / "evolution.png")
    straight.lineage.plot(tmp_path / "lineage.png")
    for name in ("evolution.png", "lineage.png"):
        assert (tmp_path / name).stat().st_size > 10_000
    assert [trial.number for trial, _ in straight.lineage.of(straight.members[0].number)][0] < POPULATION


def test_an_evolution_loads_from_its_folder(tmp_path, straight):
    with small(tmp_path) as evolution, pytest.raises(Killed):
        evolution.run(killed_after(7))
    with Evolution.load(tmp_path, env=Pointer) as evolution:
        assert evolution.scheduler == straight.scheduler
        evolution.run()
        assert history(evolution) == history(straight)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"population": 1}, "population = 1"),
        ({"every": 0}, "every = 0"),
        ({"steps": 0}, "steps = 0"),
        ({"mutations": Mutations(select=["gama"])}, "lacks"),
        ({"learning_rat": 1}, "learning_rate"),
        ({"tournament": Tournament(), "jobs": 0}, "jobs = 0"),
    ],
)
def test_bad_input_raises_one_error_before_anything_begins(tmp_path, given, message):
    with pytest.raises(ConfigError, match=message):
        small(tmp_path / "none", **given)
    assert not (tmp_path / "none").exists()


def test_nothing_is_loaded_where_there_is_no_evolution(tmp_path):
    with pytest.raises(CheckpointError, match="no study"):
        Evolution.load(tmp_path)


def test_networks_of_the_users_own_evolve_in_hyperparameters_and_parameters(tmp_path):
    torch = pytest.importorskip("torch")

    def module():
        return torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

    dqn = etude.algorithms.DQNConfig(network=module, learning_starts=16, buffer_size=200, train_every=16)
    with Evolution(
        "dqn", Pointer, population=2, every=32, steps=96, config=dqn, engine="torch", environments=2, folder=tmp_path,
        evaluate_episodes=1, mutations=Mutations(none=0, architecture=1, parameters=1, hyperparameters=1),
    ) as evolution:  # fmt: skip
        evolution.run()
        kinds = {mutation_of(trial).kind for trial in evolution.trials if trial.parent is not None}
    assert kinds <= {"parameters", "hyperparameter"} and kinds
    assert all(trial.status != "failed" for trial in evolution.trials)


def test_replays_of_off_policy_members_go_on(tmp_path):
    dqn = etude.algorithms.DQNConfig(network=Mlp((16,)), learning_starts=16, buffer_size=200, train_every=16)
    with Evolution(
        "dqn", Pointer, population=2, every=64, steps=128, config=dqn, engine="torch", environments=2, folder=tmp_path,
        evaluate_episodes=1, mutations=Mutations(none=0, parameters=0, hyperparameters=0, architecture=1),
    ) as evolution:  # fmt: skip
        evolution.run()
        child = next(trial for trial in evolution.trials if trial.parent is not None)
        run = etude.load(tmp_path / f"trial-{child.number:04d}", env=Pointer, config=child.genome.config)
    assert len(run.learner.replay) == 128
    run.close()


def test_a_transformer_evolves_while_it_acts_and_begins_another_rollout_where_its_state_changed():
    spec = Transformer(layers=1, width=8, heads=2, feedforward=8, context=4)
    config = etude.algorithms.RecurrentPPOConfig(
        network=spec, rollout_length=8, sequence_length=4, minibatch_size=16, epochs=1
    )
    limits = ArchitectureLimits(feedforward=(8, 80))
    seen, rng = set(), np.random.default_rng(0)
    with etude.Run("recurrent_ppo", Pointer, config=config, environments=2, engine="torch", seed=1) as run:
        run.train(16 + 10)
        for seed in range(8):
            mutations = Mutations(
                none=0, parameters=0, hyperparameters=0, architecture=1, new_layer=seed % 2, network=limits
            )
            child, mutation = mutated(run, mutations, rng)
            with child:
                kept = child.engine.state_size == run.engine.state_size
                assert (mutation.chain == "block.feedforward") is kept
                assert child.state().get("waiting") is not None if kept else "waiting" not in child.state()
                child.train(32)
                assert child.step == 26 + 32
            seen.add(mutation.chain)
    assert seen == {"block", "block.feedforward", "block.heads"}


def test_an_agent_of_the_users_own_evolves(tmp_path):
    from etude.algorithms.ppo import PPO

    class Mine(PPO):
        pass

    with Evolution(
        Mine(TINY), Pointer, population=2, every=32, steps=64, engine="torch", environments=2, folder=tmp_path,
        evaluate_episodes=1, mutations=Mutations(none=0, parameters=0, hyperparameters=0, architecture=1),
    ) as evolution:  # fmt: skip
        evolution.run()
        assert {trial.status for trial in evolution.trials} <= {"finished", "stopped"}
        assert any(trial.genome.config.network != TINY.network for trial in evolution.trials)


def test_a_member_that_stopped_before_its_evaluation_is_not_called_evaluated(tmp_path):
    with small(tmp_path, callbacks=lambda: [lambda event: evolution.stop()]) as evolution:
        evolution.run()
        assert 0 < evolution.steps < EVERY
        assert evolution.summary() == f"Generation 0 of at most {GENERATIONS}; {evolution.steps} steps in all"


def test_the_command_line_prints_each_generation_and_where_the_best_member_is(tmp_path, capsys):
    folder = tmp_path / "evolution"
    assert main([
        "evolve", "ppo", "CartPole-v1", "--population", "2", "--every", "64", "--steps", "128", "--folder", str(folder),
        "--engine", "torch", "--envs", "2", "--evaluate-episodes", "1", "--set.rollout-length", "32",
        "--mutations.architecture", "1", "--mutations.limits", "learning_rate=1e-4:1e-2",
    ]) == 0  # fmt: skip
    printed = capsys.readouterr()
    assert "Generation 1 of at most 2; " in printed.err and "Generation 2 of at most 2; " in printed.err
    assert "member" in printed.err and "network" in printed.err
    assert "etude evaluate" in printed.out and (folder / "lineage.png").exists()
    assert main(["evolve", "ppo"]) == 2
    assert main(["evolve", "ppo", "CartPole-v1", "--mutations.limits", "gamma=1"]) == 2


@pytest.mark.parametrize("command", ["evolve --population 2 --every 32", "sweep --seeds 1", "tune --grid gamma 0.9"])
def test_commands_that_make_several_runs_take_policies_of_several_agents(command, tmp_path):
    name, *own = command.split()
    assert main([
        name, "ppo", "etude.examples.two_step_game:TwoStepGame", *own, "--policies", "shared", "--steps", "32", "-q",
        "--folder", str(tmp_path / "runs"), "--engine", "torch", "--envs", "2", "--set.rollout-length", "16",
        "--set.network.widths", "4",
    ]) == 0  # fmt: skip
    found = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("config.json")]
    assert found and all(set(each["policies"]["of"].values()) == {"shared"} for each in found)


def test_a_loop_of_ones_own_selects_and_mutates_runs():
    rng = np.random.default_rng(0)
    runs = [etude.Run("ppo", Pointer, config=TINY, seed=i, engine="torch", environments=2) for i in range(3)]
    for run in runs:
        list(run.steps(32))
    born = next_generation(runs, [[0.0], [2.0], [1.0]], Tournament(size=2), MUTATIONS, rng)
    assert born[0].run is runs[1] and [each.parent for each in born][0] == 1 and len(born) == 3
    before = runs[1].engine.weights()
    for each in born[1:]:
        assert each.run is not runs[each.parent] and each.run.step == 32
        list(each.run.steps(32))
    assert all(np.array_equal(x, before[name]) for name, x in runs[1].engine.weights().items())
    for each in born:
        each.run.close()


def test_an_evolution_goes_on_with_more_steps_to_the_same_lineage(tmp_path, straight):
    with small(tmp_path, steps=2 * EVERY) as evolution:
        evolution.run()
        assert evolution.finished and evolution.generation == 2
    with Evolution.load(tmp_path, env=Pointer, steps=GENERATIONS * EVERY) as evolution:
        evolution.run()
        assert history(evolution) == history(straight)
    for changed, told in (
        ({"population": POPULATION + 1}, f"population was {POPULATION}, and is {POPULATION + 1} now.*with more steps"),
        ({"every": 2 * EVERY}, f"every was {EVERY}, and is {2 * EVERY} now"),
        ({"seed": 99}, "seed was .*, and is 99 now"),
    ):
        with pytest.raises(ConfigError, match=rf"is another one: {told}"):
            small(tmp_path, **changed)


@pytest.mark.parametrize(("steps", "taken"), [(12_000, 12_000), (50_000, 40_000), (20_000, 20_000)])
def test_members_take_the_steps_at_most_that_were_asked_for(steps, taken, tmp_path):
    with small(tmp_path, every=20_000, steps=steps) as evolution:
        assert evolution.plan.steps == taken
        assert evolution.plan.steps % evolution.plan.evaluate_every == 0


def test_each_kind_of_study_says_by_which_command_it_goes_on(tmp_path, capsys):
    with small(tmp_path / "evolution"), tiny_study(tmp_path / "study"):
        pass
    with pytest.raises(ConfigError, match="is an evolution. Go on with it by .*Evolution.load[^-]*$"):
        Study.load(tmp_path / "evolution", env=Pointer)
    with pytest.raises(ConfigError, match="no evolution. Go on with it by etude.Study.load[^-]*$"):
        Evolution.load(tmp_path / "study", env=Pointer)
    assert main(["evolve", "--resume", str(tmp_path / "evolution"), "--every", "9"]) == 2
    assert "leave --every out" in capsys.readouterr().err
    with Evolution("ppo", "CartPole-v1", folder=tmp_path / "poles", population=2, every=64, steps=128):
        pass
    assert main(["evolve", "--resume", str(tmp_path / "poles"), "--steps", "64"]) == 2
    assert "steps was 128, and is 64 now. Go on with it as it was asked for (etude evolve" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["bc", "decision_transformer"])
def test_activations_of_a_run_on_few_recorded_rows_are_measured_on_these(algorithm):
    few = etude.record("CartPole-v1", 3, seed=1)  # of policies that explore nothing
    run = etude.Run(algorithm, "CartPole-v1", data=few, engine="torch")
    run.train(2)
    child, mutation = mutated(run, Mutations(none=0, architecture=0, hyperparameters=0), np.random.default_rng(0))
    assert mutation.kind == "parameters" and child.step == 2
