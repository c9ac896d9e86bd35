"""What becomes of a group of processes one of which is struck? `python -m benchmarks.reliability.groups --times 20`.

A small training of each kind of group is struck at random moments, up to three times: SIGKILL, SIGTERM, SIGSTOP or an
exception, in one of its processes, chosen at random. A program that ends before its training is whole is started again;
one that was stopped, and that nobody waits for, goes on after some seconds. Then everything has ended in bounded time,
no process is left, and nothing is lost: the result is that of an undisturbed training, bit for bit, except where a
worker that was replaced began new episodes, an environment raised, or one of several processes was lost and the chief
saved without the open episodes (all steps are taken), or where an exception ended a trial (the others go on).

Adds to groups.json beside this script after every training, up to `--times` of each strike; `--again` starts anew. The
exit code is 1 where something was found.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

import etude
from benchmarks import measure
from benchmarks.reliability.processes import outliving
from etude.algorithms import DQNConfig, PPOConfig
from etude.base.events import WorkerReplaced
from etude.checkpoint.run_directory import RunDirectory
from etude.tuning import ASHA, OptunaSearch, ProcessExecutor, Study, Uniform
from etude.tuning.evolution import Evolution
from etude.workers.process import ProcessBackend

STRIKES = ("SIGKILL", "SIGTERM", "SIGSTOP", "exception")
IN_A_TRAINING = 3  # strikes at most: a trial whose process died four times has failed
LIMIT = 300.0  # seconds in which a program has to end after a strike, or to be whole
GRACE = 100.0  # seconds in which what a program started has to end after it; Ray's own agents take a minute
STOPPED = 2.0  # seconds until a stopped program goes on
DEADLINE = 10.0  # seconds without a time step after which a worker counts as stuck
STEPS, EVERY = 512, 64  # of a trial, and between its evaluations
TINY = PPOConfig(network=etude.Mlp((4,)), rollout_length=8, minibatch_size=32, epochs=1, learning_rate=0.01)
DQN = DQNConfig(network=etude.Mlp((16,)), learning_starts=100, train_every=20, gradient_steps=2, buffer_size=2000)
PPO = PPOConfig(network=etude.Mlp((16,)), rollout_length=8, minibatch_size=16, epochs=2)


# -- what trains, in programs of their own -----------------------------------------------------------------------------


class Strikable(gymnasium.Wrapper):
    """CartPole-v1, whose process is one of the group."""

    def __init__(self, folder: Path):
        super().__init__(gymnasium.make("CartPole-v1"))
        self._process = Process(folder)

    def step(self, action: Any) -> Any:
        """Raises where its process is to."""
        self._process.raise_if_asked()
        return super().step(action)


def own_network() -> Any:
    """One that this process evaluates for all environments, so that workers only step."""
    import torch

    return torch.nn.Linear(4, 2)


class Process:
    """This process, as one of a group that may be struck."""

    def __init__(self, folder: Path):
        (folder / "here" / str(os.getpid())).touch()
        self._asked = folder / "raises" / str(os.getpid())

    def raise_if_asked(self, *_: Any) -> None:
        """Raise where there is a file with the number of this process, which is removed."""
        if self._asked.exists():
            self._asked.unlink()
            raise ValueError("no ink")


def run(folder: Path, process: Process, algorithm: str, config: Any, steps: int, **setup: Any) -> Any:
    """Train a run to this step, from where it was saved last; what it is then. None where it was told to end before."""
    ProcessBackend.deadline = DEADLINE
    if "RANK" in os.environ:
        connect_soon(setup["engine"])
    directory, env = folder / "run", partial(Strikable, folder)
    if directory.exists() and RunDirectory(directory).saved():
        own = {"config": config} if config.network is own_network else {}
        made = etude.load(directory, env=env, **own, **setup)
    else:
        if os.environ.get("RANK", "0") == "0":
            shutil.rmtree(directory, ignore_errors=True)
        made = etude.Run(algorithm, env, config=config, run_dir=directory, environments=4, seed=3, **setup)

    def look(event: Any) -> None:
        process.raise_if_asked()
        if isinstance(event, WorkerReplaced):
            (folder / "replaced").touch()

    with made:
        if made.step < steps:
            made.train(steps - made.step, look, save_every=200)
        if made.step < steps or (made.group is not None and made.group.rank):
            return None
        weights = hashlib.sha256(b"".join(value.tobytes() for _, value in sorted(made.engine.weights().items())))
        replaced = (folder / "replaced").exists()
        return {"step": made.step, "replaced": replaced, "weights": weights.hexdigest()}


def connect_soon(engine: str) -> None:
    """Let processes wait half a minute for each other to connect."""
    if engine == "torch":
        from etude.engines import torch_group

        torch_group.CONNECTING = timedelta(seconds=30)
    else:
        from etude.engines import jax_replicas

        jax_replicas.CONNECTING = 30


def study(folder: Path, process: Process, kind: str) -> Any:
    """Carry a study out, from where it was; its trials, or None where it was told to end before."""
    shared = {"config": TINY, "folder": folder / "study", "executor": ProcessExecutor(2, patience=DEADLINE),
              "evaluate_episodes": 2, "engine": "torch", "environments": 2}  # fmt: skip
    env = partial(Strikable, folder)
    if kind == "evolution":
        made: Study = Evolution("ppo", env, population=3, every=EVERY, steps=STEPS // 2, seed=7, **shared)
    else:
        space: Any = {"learning_rate": Uniform(0.001, 0.1) if kind == "Optuna" else [0.03, 0.02, 0.01, 0.003]}
        search = {"search": OptunaSearch(), "trials": 4} if kind == "Optuna" else {}
        scheduler = ASHA(min_steps=EVERY, reduction=2) if kind == "ASHA" else None
        made = Study(
            "ppo", env, space, steps=STEPS, evaluate_every=EVERY, save_every=EVERY, scheduler=scheduler, **search,
            **shared,
        )  # fmt: skip
    with made:
        made.run(process.raise_if_asked)
        if not made.finished:
            return None
        return [
            {"rate": trial.genome.config.learning_rate, "seed": trial.genome.seed, "status": trial.status,
             "started": trial.started, "parent": trial.parent, "reason": trial.reason,
             "scores": [[score.step, score.mean] for score in trial.scores]}
            for trial in made.trials
        ]  # fmt: skip


# -- what strikes ------------------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """train: see `run`. size: processes that are there before a strike. programs: those that a user starts."""

    train: Callable[[Path, Process], Any]
    size: int = 3
    programs: int = 1


GROUPS = {
    "workers that act": Group(partial(run, algorithm="dqn", config=DQN, steps=3000, engine="torch", workers=2)),
    "workers that step": Group(partial(
        run, algorithm="dqn", config=replace(DQN, network=own_network), steps=1500, engine="torch", workers=2
    )),
    "Ray actors": Group(partial(run, algorithm="dqn", config=DQN, steps=3000, engine="torch", workers=2, ray="local")),
    "torch": Group(partial(run, algorithm="ppo", config=PPO, steps=6400, engine="torch", devices="all"), 2, 2),
    "JAX": Group(partial(run, algorithm="ppo", config=PPO, steps=6400, engine="jax", devices="all"), 2, 2),
    **{kind: Group(partial(study, kind=kind)) for kind in ("study", "ASHA", "Optuna", "evolution")},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="of each strike, those that groups.json holds included")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--again", action="store_true", help="leave out what groups.json holds")
    parser.add_argument("--program", nargs=2, help=argparse.SUPPRESS)  # what a process of a group trains, and where
    options = parser.parse_args()
    if options.program:
        return train(options.program[0], Path(options.program[1]))
    held = {} if options.again else measure.read(__file__)
    for name in options.groups:
        with tempfile.TemporaryDirectory() as folder:
            strikes = Strikes(name, Path(folder), held.get(name, {}))
            while left := [strike for strike in STRIKES for _ in range(options.times - strikes.counts[strike])]:
                strikes.strike(left, random.Random(f"{options.seed} {name} {strikes.counts}"))
                held[name] = strikes.found()
                print(name, held[name], flush=True)
                measure.write(__file__, {name: held[name]})
    sys.exit(any(held[name]["wrong"] for name in options.groups))


def train(name: str, folder: Path) -> None:
    """Be a program of a group."""
    result = GROUPS[name].train(folder, Process(folder))
    if result is not None:
        (folder / "result.new").write_text(json.dumps(result))
        os.replace(folder / "result.new", folder / "result")


class Strikes:
    """Strikes trainings of one kind and counts what becomes of them. found: what was counted before."""

    def __init__(self, name: str, folder: Path, found: dict[str, Any]):
        self._name, self._group, self._folder = name, GROUPS[name], folder
        self.counts = Counter({key: found.get(key, 0) for key in (*STRIKES, "trainings", "started_again", "equal")})
        self.wrong, self._longest = list(found.get("wrong", [])), found.get("longest_seconds", 0.0)
        self._seconds = 0.0  # that an undisturbed training takes
        self._expected = self._trained([], random.Random())
        if self._expected is None:
            raise RuntimeError((folder / "said").read_text())

    def found(self) -> dict[str, Any]:
        """The counts, what was wrong, and how long after its last strike a program that was not whole took to end."""
        return {**self.counts, "longest_seconds": round(self._longest, 1), "wrong": self.wrong}

    def strike(self, strikes: list[str], rng: random.Random) -> None:
        """Train once, and strike that with some of these."""
        struck: list[str] = []
        result = self._trained(rng.sample(strikes, min(IN_A_TRAINING, len(strikes))), rng, struck)
        exceptions = struck.count("exception")
        self.counts.update([*struck, "trainings", *["equal"] * (result == self._expected)])
        if result is None:
            self._note("is not whole", struck)
        elif result != self._expected and (problem := different(self._name, result, self._expected, exceptions)):
            self._note(problem, struck)

    def _trained(self, strikes: list[str], rng: random.Random, struck: list[str] | None = None) -> Any:
        """The result of a training, from the beginning, struck with these as long as it runs. struck: is told."""
        shutil.rmtree(self._folder)
        struck = [] if struck is None else struck
        for attempt in range(IN_A_TRAINING + 2):
            self.counts["started_again"] += attempt > 0
            for part in ("here", "raises"):
                shutil.rmtree(self._folder / part, ignore_errors=True)
                (self._folder / part).mkdir(parents=True)
            self._carry_out(strikes, rng, struck)
            if (self._folder / "result").exists():
                return json.loads((self._folder / "result").read_text())
        return None

    def _carry_out(self, strikes: list[str], rng: random.Random, struck: list[str]) -> None:
        """Start the programs, strike them, and wait for their ends."""
        programs, before = Programs(self._name, self._folder), len(struck)
        programs.wait(LIMIT, lambda: len(programs.here()) >= self._group.size)
        last = time.monotonic()
        while strikes and not programs.wait(rng.uniform(0.0, self._seconds / 2)):
            if programs.strike(strikes[0], rng):
                struck.append(strikes.pop(0))
                last = time.monotonic()
        if not programs.wait(LIMIT):
            self._note(f"still ran {LIMIT:.0f} s later", struck)
        seconds = time.monotonic() - last
        if (self._folder / "result").exists():
            self._seconds = self._seconds or seconds
        else:
            self._longest = max(self._longest, seconds)
        for problem in programs.end(len(struck) > before):
            self._note(problem, struck)
        for _ in (self._folder / "raises").iterdir():  # it ended before it was to raise
            struck.reverse(), struck.remove("exception"), struck.reverse()

    def _note(self, problem: str, struck: list[str]) -> None:
        self.wrong.append(f"{', '.join(struck)}: {problem}")
        print(self._name, self.wrong[-1], flush=True)


class Programs:
    """The programs of a group, and all processes that these start. name: of the group."""

    def __init__(self, name: str, folder: Path):
        self._folder, self._mark, count = folder, uuid.uuid4().hex, GROUPS[name].programs
        variables = {**os.environ, "MARK": self._mark, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "benchmarks.reliability.groups", "--program", name, str(folder)]
        where = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self._stopped: set[int] = set()
        with open(folder / "said", "w") as said:
            self._programs = [
                subprocess.Popen(
                    command, stdout=said, stderr=said, start_new_session=True,
                    env=variables | (where | {"RANK": str(rank)} if count > 1 else {}),
                )
                for rank in range(count)
            ]  # fmt: skip

    def here(self) -> list[int]:
        """The processes of the group that run."""
        numbers = [int(path.name) for path in (self._folder / "here").iterdir()]
        return [number for number in sorted(outliving(numbers, 0.0)) if number not in self._stopped]

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Whether all programs have ended, but for those that were stopped, within so many seconds."""
        limit = time.monotonic() + seconds
        while running := [each for each in self._programs if each.poll() is None and each.pid not in self._stopped]:
            if time.monotonic() >= limit or until():
                break
            time.sleep(0.005)
        return not running

    def strike(self, strike: str, rng: random.Random) -> bool:
        """Strike one of the processes; whether there was one. A program that was stopped and that no other one waits
        for goes on after a while."""
        if not (here := self.here()):
            return False
        process = rng.choice(here)
        if strike == "exception":
            (self._folder / "raises" / str(process)).touch()
            return True
        os.kill(process, getattr(signal, strike))
        if strike == "SIGSTOP" and process in [program.pid for program in self._programs]:
            if len(self._programs) > 1:
                self._stopped.add(process)
            else:
                time.sleep(STOPPED)
                os.kill(process, signal.SIGCONT)
        return True

    def end(self, struck: bool) -> list[str]:
        """End what is left of the programs; what is wrong with it. struck: whether they were."""
        for program in self._programs:
            if program.poll() is None:
                program.kill()
        codes = [program.wait() for program in self._programs]
        problems = [] if struck or not any(codes) else [f"ended with {codes}: {self._said()}"]
        if left := outliving(self._marked(), GRACE):
            names = [Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode() for process in left]
            problems.append(f"left {names}")
            for process in left:
                os.kill(process, signal.SIGKILL)
        return problems

    def _marked(self) -> list[int]:
        """The processes that inherited the mark of these programs."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"MARK={self._mark}".encode() in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    def _said(self) -> str:
        return (self._folder / "said").read_text()[-1000:]


def free_port() -> int:
    """One that nobody listens at now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def different(name: str, found: Any, expected: Any, exceptions: int) -> str:
    """What is lost of a training whose result differs; "" where that may be. exceptions: how many it was struck by."""
    if isinstance(found, dict):  # of a run
        if found["step"] != expected["step"]:
            return f"took {found['step']} steps"
        return "" if found["replaced"] or exceptions or GROUPS[name].programs > 1 else "its weights differ"
    lost = [trial["reason"] for trial in found if trial["status"] == "failed" and "no ink" not in trial["reason"]]
    if lost:
        return f"lost trials: {lost}"
    if not exceptions and name in ("study", "evolution"):
        return f"its trials differ: {str(found)[:1000]}"
    before = {(trial["rate"], trial["seed"]): trial["scores"] for trial in expected}
    for trial in found:
        steps = [step for step, _ in trial["scores"]]
        if steps != [trial["started"] + EVERY * (i + 1) for i in range(len(steps))]:
            return f"evaluations are lost: {trial}"
        if name != "evolution":  # whose members depend on the others
            same = before.get((trial["rate"], trial["seed"]), [])
            if any(one != other for one, other in zip(trial["scores"], same, strict=False)):
                return f"a trial learned otherwise: {trial}"
    return ""


if __name__ == "__main__":
    main()
