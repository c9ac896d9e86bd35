"""Runs in several processes: here threads, each with a part of the environments and of every batch."""

import threading
from pathlib import Path

import numpy as np
import pytest
import python_programs
from run_makers import run_given
from thread_processes import in_processes

import etude
from etude.base.errors import CallbackError, ConfigError, EnvironmentFault, ReplicaError
from etude.base.events import Learned
from etude.training.description import Execution
from etude.workers.supervisor import WorkerSupervisor

pytest.importorskip("torch")
SMALL = {"network": etude.Mlp((16,)), "engine": "torch", "environments": 4, "seed": 3}
CASES = {
    "dqn": {"batch_size": 32, "learning_starts": 40, "train_every": 8, "gradient_steps": 1, "priority_exponent": 0.6},
    "ppo": {"rollout_length": 8, "minibatch_size": 16, "epochs": 2, "normalize_observation": True},
    "sac": {"batch_size": 16, "learning_starts": 40, "train_every": 8, "gradient_steps": 1},
}
STEPS = {"dqn": 40 + 8 * 20, "ppo": 32 * 5, "sac": 40 + 8 * 20}  # 20 gradient steps
OFF_POLICY = {"batch_size": 16, "learning_starts": 40, "train_every": 8, "gradient_steps": 1}
EVERY_ALGORITHM = {  # that learns online by gradients, and is not yet above
    "a2c": {"rollout_length": 8, "normalize_advantage": True},
    "appo": {},
    "impala": {},
    "reinforce": {"normalize_advantage": True},
    "ppo": {"rollout_length": 8, "minibatch_size": 16, "objective": "penalty", "normalize_value": True},
    "recurrent_ppo": {
        "rollout_length": 16,
        "sequence_length": 8,
        "minibatch_size": 32,
        "network": etude.Recurrent(etude.Mlp((8,)), 8),
    },
    **dict.fromkeys(("c51", "qr_dqn", "discrete_sac", "apex_dqn", "rainbow"), OFF_POLICY),
    "r2d2": {"learning_starts": 100, "network": etude.Recurrent(etude.Mlp((8,)), 8)},
    **dict.fromkeys(("ddpg", "td3", "apex_ddpg"), OFF_POLICY),
    "mappo": {"rollout_length": 8, "minibatch_size": 16, "epochs": 2},
    **dict.fromkeys(("maddpg", "matd3", "qmix", "vdn"), OFF_POLICY),
}
ENVIRONMENTS = dict.fromkeys(("sac", "ddpg", "td3", "apex_ddpg"), "Pendulum-v1")
ENVIRONMENTS |= dict.fromkeys(("mappo", "maddpg", "matd3", "qmix", "vdn"), "mpe2:simple_spread_v3")


def steps_of(algorithm):
    """Environment steps with some gradient steps of this algorithm."""
    return 400 if algorithm in ("appo", "impala", "reinforce", "r2d2") else 200


def made(algorithm, devices=2, case=None, **changes):
    env = ENVIRONMENTS.get(algorithm, "CartPole-v1")
    case = CASES[algorithm] if case is None else case
    return run_given(algorithm, env, **{**SMALL, **case, "devices": devices, **changes})


def trained(algorithm, size, monkeypatch, **changes):
    """The weights after 20 gradient steps in each process, and the best mean return."""

    def body(rank):
        with made(algorithm, size, **changes) as run:
            run.train(STEPS[algorithm], evaluate_every=STEPS[algorithm] // 2, evaluate_episodes=2)
            return run.engine.weights(), run.learner.progress.best, run.step

    found = in_processes(size, monkeypatch, body)
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found


@pytest.mark.parametrize("algorithm", CASES)
def test_one_two_and_four_processes_learn_the_same_weights(algorithm, monkeypatch):
    (alone, best, step), *_ = trained(algorithm, 1, monkeypatch)
    for size in (2, 4):
        for weights, own_best, own_step in trained(algorithm, size, monkeypatch):
            assert own_step == step and own_best == pytest.approx(best, rel=1e-4)
            for name, weight in weights.items():
                np.testing.assert_allclose(weight, alone[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "algorithm",
    [name if name in ("appo", "a2c") else pytest.param(name, marks=pytest.mark.long) for name in EVERY_ALGORITHM],
)
def test_every_algorithm_learns_in_two_processes_what_it_learns_in_one(algorithm, monkeypatch):
    def body(rank, size):
        with made(algorithm, size, EVERY_ALGORITHM[algorithm]) as run:
            run.train(steps_of(algorithm))
            return run.engine.weights(), run.learner.progress.gradient_steps

    (alone, gradient_steps), *_ = in_processes(1, monkeypatch, lambda rank: body(rank, 1))
    assert gradient_steps >= 3
    for weights, own_gradient_steps in in_processes(2, monkeypatch, lambda rank: body(rank, 2)):
        assert own_gradient_steps == gradient_steps
        for name, weight in weights.items():
            np.testing.assert_allclose(weight, alone[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "algorithms",
    [("appo",), pytest.param(tuple({**EVERY_ALGORITHM, **CASES}), marks=pytest.mark.long)],
    ids=["one", "every"],
)
def test_every_algorithm_learns_on_two_devices_of_jax_what_it_learns_on_one(algorithms):
    pytest.importorskip("jax")
    script = Path(__file__).with_name("runs_on_devices.py")
    process = python_programs.start(script, *algorithms)
    said, complaint = process.communicate(timeout=900)
    assert process.returncode == 0, said + complaint[-3000:]
    assert said.split() == list(algorithms)


def test_all_processes_end_with_the_same_bits(monkeypatch):
    (first, *_), (second, *_) = trained("dqn", 2, monkeypatch)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_workers_of_each_process_collect_what_the_processes_collect_themselves(monkeypatch):
    init, lock = WorkerSupervisor.__init__, threading.Lock()

    def one_after_the_other(*arguments):  # to start a process changes what threads share
        with lock:
            init(*arguments)

    monkeypatch.setattr(WorkerSupervisor, "__init__", one_after_the_other)
    (alone, *_), _ = trained("dqn", 2, monkeypatch)
    for weights, *_ in trained("dqn", 2, monkeypatch, workers=2):
        assert all(np.array_equal(weight, alone[name]) for name, weight in weights.items())


def test_the_chief_alone_saves_and_another_number_of_processes_goes_on(monkeypatch, tmp_path):
    def begin(rank):
        with made("ppo", run_dir=tmp_path / "run") as run:
            run.train(64)

    def go_on(rank):
        with etude.load(tmp_path / "run", devices=4) as run:
            assert run.step == 64
            run.train(32)
            return run.engine.weights()

    assert in_processes(2, monkeypatch, begin) == [None, None]
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step_000000064.etude"]
    several, (alone,) = (in_processes(size, monkeypatch, go_on) for size in (4, 1))
    for name, weight in several[0].items():
        np.testing.assert_allclose(weight, alone[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_reporters_are_called_by_the_chief_and_callbacks_by_all(monkeypatch):
    class Counted(etude.Callback):
        updates = 0

        def on_update(self, run, event):
            self.updates += 1

    def body(rank):
        events, callback = [], Counted()
        made("ppo").train(64, [events.append, callback])
        return len(events) > 0, callback.updates

    assert in_processes(2, monkeypatch, body) == [(True, 2), (False, 2)]


def test_a_request_to_stop_in_one_process_stops_all_at_the_same_step(monkeypatch):
    def body(rank):
        run = made("ppo")
        for event in run.steps(10_000):
            if rank == 1 and isinstance(event, Learned):
                run.stop()
        return event.reason, run.step

    first, second = in_processes(2, monkeypatch, body)
    assert first == second and first[0] == "interrupted" and first[1] < 10_000


class Broken:
    """Environment 3 of 4, which the last process steps, breaks."""

    def __call__(self):
        import gymnasium

        class Breaks(gymnasium.Wrapper):
            def reset(self, *, seed=None, options=None):
                self.seeded = seed
                return super().reset(seed=seed, options=options)

            def step(self, action):
                from etude.base.seeding import episode_seed

                if self.seeded == episode_seed(3, 3, 0) and self.env.unwrapped.state is not None:
                    raise ValueError("a cable came loose")
                return super().step(action)

        return Breaks(gymnasium.make("CartPole-v1"))


def test_an_environment_that_fails_in_one_process_fails_the_run_in_all_of_them(monkeypatch):
    def body(rank):
        return etude.Run("ppo", Broken(), execution=etude.Execution(devices=2), **SMALL, **CASES["ppo"]).train(64)

    first, second = in_processes(2, monkeypatch, body)
    assert isinstance(first, EnvironmentFault) and "a cable came loose" in str(first)
    assert str(first) == str(second) and str(first).startswith("In process 1 of 2: ")


def test_a_reporter_that_fails_in_the_chief_ends_the_others(monkeypatch, tmp_path):
    def fails(event):
        if event.step:
            raise ValueError("no ink")

    def body(rank):
        return made("ppo", run_dir=tmp_path / "run").train(640, fails)

    first, second = in_processes(2, monkeypatch, body)
    assert "no ink" in str(first) and isinstance(second, ReplicaError) and "no ink" in str(second)
    assert etude.load(tmp_path / "run").step == 32


class Endless:
    """A collective that never completes. call: called whenever it is waited for."""

    def __init__(self, call=lambda: None):
        self.call = call

    def wait(self, timeout):
        self.call()
        raise RuntimeError("timed out")

    def is_completed(self):
        return False


def test_processes_that_wait_for_different_collectives_do_not_wait_for_ever():
    from torch.distributed import HashStore

    from etude.engines.replicas import Heartbeat

    now, store, calls, errors = [0.0], HashStore(), [], []
    beats = [Heartbeat(store, rank, 2, lambda: now[0]) for rank in range(2)]

    def go_on():
        now[0] += 2.0
        for each in beats:
            each.beat()

    def wait_for_the_rollout():
        go_on()
        calls.append(now[0])
        if len(calls) == 2:
            with pytest.raises(RuntimeError) as found:
                beats[1].wait("rollout", Endless(go_on))
            errors.append(str(found.value))

    with pytest.raises(RuntimeError) as found:
        beats[0].wait("a mean", Endless(wait_for_the_rollout))
    assert "process 0 for a mean (1), process 1 for rollout (1)" in errors[0] and errors[0] in str(found.value)


class Torn(Exception):
    """Cannot be made again from its text, as pickle does."""

    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")


def test_an_exception_that_cannot_be_pickled_is_raised_where_it_was_and_told_in_the_others(monkeypatch, tmp_path):
    def body(own):
        def fails(run):
            raise Torn("pen", "no ink")

        with made("ppo", run_dir=tmp_path / "run") as run:
            run.train(640, schedule=etude.Schedule(evaluate_every=32, evaluate=fails))

    chief, other = in_processes(2, monkeypatch, body)
    assert isinstance(chief, Torn) and isinstance(other, CallbackError)
    assert "Evaluation function fails raised Torn: pen: no ink" in str(other)


FAILURES = ("rewriter", "metric", "callback", "evaluation", "save", "loop")


@pytest.mark.long_but("rewriter-1", "metric-0", "callback-1", "evaluation-0", "save-0", "loop-1")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("what", FAILURES)
def test_what_fails_in_one_process_ends_the_other_with_its_number_and_cause(what, rank, monkeypatch, tmp_path):
    def body(own):
        def fails(*_, **__):
            if own == rank and run.step >= 96:
                raise ValueError("no ink")
            return 0.0

        class Called(etude.Callback):
            def on_update(self, run, event):
                fails()

        def rewrite(steps):
            fails()
            return steps

        changes = {"rewrite": rewrite} if what == "rewriter" else {}
        evaluated = {"evaluate_every": 32, "evaluate": fails} if what == "evaluation" else {}
        with made("ppo", run_dir=tmp_path / "run", **changes) as run:
            if what == "metric":
                run.metric("ink", fails)
            if what == "save":
                save = run.directory.save
                run.directory.save = lambda *given: fails() or save(*given)
            if what == "loop":
                for _ in run.steps(640, save_every=32):
                    fails()
            else:
                run.train(640, [Called()] if what == "callback" else [], save_every=32, **evaluated)

    found = in_processes(2, monkeypatch, body)
    if what == "evaluation" and rank:
        assert found == [None, None], "the chief alone evaluates"
        return
    assert "no ink" in str(found[rank]) and "no ink" in str(found[1 - rank])
    if what == "evaluation":  # whose result, and error, all get
        assert all(error.__notes__[0].startswith(f"In process {rank} of 2: Evaluation function") for error in found)
    else:
        assert isinstance(found[1 - rank], ReplicaError)
        assert str(found[1 - rank]).startswith(f"Process {rank} of 2 stopped training: ")
    assert etude.load(tmp_path / "run", rewrite=None).step >= 64


def test_who_waits_learns_which_process_gives_no_heartbeat():
    from torch.distributed import HashStore

    from etude.engines.replicas import Heartbeat

    now, store = 0.0, HashStore()
    one, other = (Heartbeat(store, rank, 2, lambda: now) for rank in range(2))
    other.beat()
    now = 15.0
    one.beat()
    now = 30.0
    one.beat()
    assert one.silent() == [] and other.silent() == [0, 1], "the numbers of both are as old as the last look at them"
    now = 36.0
    assert one.silent() == [1]
    with pytest.raises(RuntimeError, match="process 1 gave no heartbeat for 20 s"):
        one.wait("a mean", Endless())
    with pytest.raises(RuntimeError, match="process 0, or the launcher that keeps the store, gave no heartbeat"):
        other.wait("a mean", Endless())


def test_processes_with_other_settings_are_refused(monkeypatch):
    def body(rank):
        return made("ppo", learning_rate=1e-3 * (1 + rank)).train(64)

    first, second = in_processes(2, monkeypatch, body)
    assert isinstance(first, ReplicaError) and "differ in config" in str(first) and str(first) == str(second)


def test_a_directory_that_holds_a_run_is_refused_in_all_processes(monkeypatch, tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    found = in_processes(2, monkeypatch, lambda rank: made("ppo", run_dir=tmp_path))
    assert all(isinstance(each, ConfigError) and "holds the metrics of a run" in str(each) for each in found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 33}, "33 examples cannot be divided over 2 devices"),
        ({"batch_size": 4, "adapt": ["ess:batch_size"]}, "1 examples cannot be divided over 2 devices"),
        ({"environments": 1}, "environments = 1 for 2 processes"),
        ({"workers": 3}, "environments = 4 for 2 processes with 3 workers each"),
        ({"workers": 2, "overlap": True}, "overlap = True in a run of 2 processes"),
    ],
)
def test_what_cannot_be_divided_is_refused_when_the_run_is_made(changes, message, monkeypatch):
    found = in_processes(2, monkeypatch, lambda rank: made("dqn", **changes))
    assert all(isinstance(each, ConfigError) and message in str(each) for each in found)


def test_there_is_an_environment_in_each_process_where_nobody_says_how_many(monkeypatch):
    def body(rank):
        return made("dqn", environments=None).execution.environments

    assert in_processes(2, monkeypatch, body) == [2, 2]


@pytest.mark.parametrize("devices", [0, -1, True, "two", 1.5])
def test_devices_are_a_number_or_all(devices):
    with pytest.raises(ConfigError, match="devices = "):
        Execution(devices=devices)
