"""What a GPU does for etude: learning steps beside bare loops of the same framework, PPO fused beside a bare loop, many
agents in one program, and where `device="auto"` should compute.

`python benchmarks/gpu.py --folder FOLDER` writes a JSON file for each part into FOLDER. A part is a process of its own.
`--jobs` compile at the same time, each for `--prepare` seconds at most; one after the other is measured while the
others are stopped, within `--within` seconds in all, and what was measured until then is kept. `--gather FOLDER` puts
these files into gpu.json. `--device cpu --turns 1` tries it where there is no GPU.

A gradient step is timed from batches in NumPy to losses and errors in NumPy, as in learn_step.py.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compiled
import measure
from cases import CASES, IMAGES, Case
from learn_step import AT_MOST, MODULES, learn_call

COMMON = (
    "ppo", "dqn", "sac", "td3", "a2c", "c51", "qr_dqn", "rainbow", "ddpg", "impala", "appo", "recurrent_ppo", "r2d2",
    "discrete_sac", "sac, one step a call", "iql", "cql", "td3_bc", "bc", "marwil", "reinforce", "mappo", "maddpg",
    "gail", "airl",
)  # fmt: skip
PHASES = {64: 32, 1_024: 8, 4_096: 4}  # of a turn, by environments
ON_CPU = {64: 16, 1_024: 2, 4_096: 1}
REPLAYED = {4: (1, 4_096), 64: (8, 16_384), 1_024: (64, 65_536)}  # environments: steps per gradient step, and of a turn
AGENTS = (1, 32, 256, 2_048)
LARGEST = max(AGENTS)
SWEPT = 8_192  # steps of each agent in one call of the program
BY_NAME = (f"sweep-{LARGEST}",)  # parts that take minutes: only where `--only` holds their names
SIDE_BY_SIDE = 5  # processes that compile the learning steps of JAX
SMALL = {
    f"{name}, {'x'.join(map(str, widths))}": Case(name, inputs, outputs, widths, batch, k)
    for name, inputs, outputs, batch, k in (("ppo", 17, 6, 64, 320), ("dqn", 4, 2, 64, 64), ("sac", 17, 6, 256, 16))
    for widths in ((64, 64), (256, 256))
}
LARGE = {f"sac, {n}x{n}": Case("sac", 17, 6, (n, n), 256, 16) for n in (256, 512, 1_024, 2_048)}
FEW = 3  # turns of what takes long on a CPU
CLEANRL = 500_000  # steps of one of its runs on CartPole-v1

Keep = Callable[[str, dict[str, Any]], None]  # a row of a part
Measure = Callable[[Keep], None]


def timed(functions: dict[str, Callable[[], Any]], turns: int, least: float = 0.05) -> dict[str, list[float]]:
    """Seconds per call of each, measured in turns; each was called before."""
    calls = {}
    for name, function in functions.items():
        began = time.perf_counter()
        function()
        calls[name] = max(1, round(least / (time.perf_counter() - began)))
    found: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(turns):
        for name, function in functions.items():
            began = time.perf_counter()
            for _ in range(calls[name]):
                function()
            found[name].append((time.perf_counter() - began) / calls[name])
    return found


def prepared(
    made: dict[str, Callable[[], dict[str, Callable[[], Any]]]], options: Any, keep: Keep
) -> dict[str, dict[str, Callable[[], Any]]]:
    """By name, functions to compare, called once each; those that the time was too short for are left out."""
    ready, began = {}, time.perf_counter()
    for name, make in made.items():
        if time.perf_counter() - began > options.prepare:
            keep(name, {"not reached": "compiling"})
            continue
        try:
            functions = make()
            for function in functions.values():
                function()
            ready[name] = functions
        except Exception as error:  # one case does not cost the others
            keep(name, {"error": f"{type(error).__name__}: {error}"[:2_000]})
    return ready


def learning(framework: str, cases: dict[str, Case], options: Any, keep: Keep) -> Measure:
    """Microseconds per gradient step of the engine and of the bare loop."""
    bare_module = importlib.import_module(MODULES[framework])

    def functions(case: Case) -> dict[str, Callable[[], Any]]:
        from cases import batches

        given, on_device = batches(case), {"device": options.device} if framework == "torch" else {}
        bare = bare_module.bare(case, **on_device)
        return {"etude": learn_call(case, framework, options.device), "bare": lambda: bare(given)}

    ready = prepared({name: functools.partial(functions, case) for name, case in cases.items()}, options, keep)

    def run(keep: Keep) -> None:
        for name, compared in ready.items():
            found = timed(compared, options.turns)
            micro = {who: measure.summary([1e6 * s / cases[name].k for s in each]) for who, each in found.items()}
            against = {**measure.ratio(found["etude"], found["bare"]), "wanted": AT_MOST[framework]}
            keep(name, {"microseconds": micro, "etude / bare": against})

    return run


def devices(framework: str, cases: dict[str, Case], options: Any, keep: Keep) -> Measure:
    """Microseconds per gradient step on the CPU and on the GPU, beside where "auto" computes. One process has the
    threads that its first network takes, so that small and large networks have processes of their own."""
    from learn_step import engine_for

    where = ("cpu", options.device) if options.device != "cpu" else ("cpu",)

    def functions(case: Case) -> dict[str, Callable[[], Any]]:
        return {device: learn_call(case, framework, device) for device in where}

    ready = prepared({name: functools.partial(functions, case) for name, case in cases.items()}, options, keep)
    chosen = {name: engine_for(cases[name], framework, "auto") for name in ready}

    def run(keep: Keep) -> None:
        for name, compared in ready.items():
            found, engine = timed(compared, min(FEW, options.turns)), chosen[name]
            micro = {who: measure.summary([1e6 * s / cases[name].k for s in each]) for who, each in found.items()}
            numbers = sum(value.size for value in engine.layout.initial.values())
            row = {"microseconds": micro, "auto": engine.device.partition(":")[0], "numbers": numbers}
            if options.device in found and options.device != "cpu":
                row["cpu / gpu"] = measure.ratio(found["cpu"], found[options.device])
            keep(name, row)

    return run


def fused(n: int, phases: int, options: Any, keep: Keep) -> Measure:
    """Environment steps a second of PPO on CartPole, fused, and of the bare loop, with n environments."""
    import bare_compiled

    import etude

    minibatch = n * compiled.LENGTH // compiled.MINIBATCHES
    execution = etude.Execution(vectorization="compiled", fused=True, device=options.device)
    config, steps = compiled.config(minibatch_size=minibatch), n * compiled.LENGTH * phases
    run = etude.Run("ppo", compiled.WAYS["fused"], config=config, engine="jax", environments=n, execution=execution)
    bare, _ = bare_compiled.trainer(n, compiled.LENGTH, compiled.EPOCHS, minibatch, phases, 0)
    compared = {"fused": lambda: run.train(steps), "bare": bare}
    for function in compared.values():
        function()

    def measured(keep: Keep) -> None:
        found = timed(compared, min(FEW, options.turns), 0.0)
        speed = {who: measure.summary([steps / s for s in each]) for who, each in found.items()}
        against = {**measure.ratio(found["bare"], found["fused"]), "wanted": compiled.WANTED["fused / bare"]}
        keep(f"{n} environments", {"steps_per_second": speed, "fused / bare": against, "memory": memory()})

    return measured


def replayed(n: int, options: Any, keep: Keep) -> Measure:
    """Environment steps a second of DQN on CartPole, from a replay on the device and from the one in NumPy."""
    import etude
    from etude.algorithms import DQNConfig

    every, steps = REPLAYED[n]
    config, schedule = DQNConfig(train_every=n, gradient_steps=n // every), etude.Schedule(total=10**8)

    def trains(env: str, **given: Any) -> Callable[[], Any]:
        execution = etude.Execution(device=options.device, **given)
        run = etude.Run("dqn", env, config=config, engine="jax", environments=n, execution=execution)
        run.train(max(n, 1_000), schedule=schedule)  # up to where learning starts
        return lambda: run.train(steps, schedule=schedule)

    fixed = {"vectorization": "compiled"}
    compared = {
        "fused": trains(compiled.WAYS["fused"], fused=True, **fixed),
        "compiled": trains(compiled.WAYS["fused"], **fixed),
        "gymnasium": trains(compiled.WAYS["gymnasium"]),
    }
    for function in compared.values():
        function()

    def measured(keep: Keep) -> None:
        found = timed(compared, min(FEW, options.turns), 0.0)
        row: dict[str, Any] = {"steps per gradient step": every}
        row["steps_per_second"] = {who: measure.summary([steps / s for s in each]) for who, each in found.items()}
        row |= {f"fused / {who}": measure.ratio(found[who], found["fused"]) for who in ("compiled", "gymnasium")}
        keep(f"{n} environments", row | {"memory": memory()})

    return measured


def many(agents: int, options: Any, keep: Keep) -> Measure:
    """The program of so many agents, of 8 environments each: with its inputs on the device, and from NumPy to NumPy."""
    import jax
    import numpy as np

    import etude
    from etude.base import trees
    from etude.training.loop import CollectionDue

    execution = etude.Execution(vectorization="compiled", fused=True, device=options.device)
    setup: dict[str, Any] = {"engine": "jax", "environments": 8, "execution": execution}
    config, env = compiled.config(**compiled.MANY), compiled.WAYS["fused"]
    run = etude.Run("ppo", env, config=config, **setup)
    run.loop.paced = True
    due: Any = next(event for event in run.steps(1_000_000) if isinstance(event, CollectionDue))
    rollout, asked = due.rollout, (due.steps, due.step, due.environments, due.upcoming)
    call = rollout.request(*asked)
    one = trees.map(np.asarray, (call.held, call.carry, call.inputs))
    stacked = trees.map(lambda leaf: np.repeat(leaf[None], agents, 0), one)
    stacked[1].seed[:] = np.arange(8 * agents, dtype=np.uint32).reshape(agents, 8)
    steps = agents * call.phases * due.steps * 8
    there = jax.device_put(stacked, jax.devices()[0])

    def program() -> Any:
        return jax.block_until_ready(rollout.program.learn_all(*there, call.phases))

    def from_numpy() -> Any:
        return trees.map(np.asarray, rollout.program.learn_all(*stacked, call.phases))

    compared = {"on the device": program, "from NumPy to NumPy": from_numpy}
    for function in compared.values():
        function()

    def measured(keep: Keep) -> None:
        found = timed(compared, options.turns, 0.0)
        rows: dict[str, Any] = {"steps of each": steps // agents}
        for name, seconds in found.items():
            speed = measure.summary([steps / s for s in seconds])
            rows[name] = {"steps_per_second": speed, "seconds": measure.summary(seconds)}
            rows[name]["seconds for 500,000 steps each"] = measure.significant(CLEANRL * agents / speed["median"])
        keep(f"{agents} agents", rows | {"memory": memory()})

    return measured


def sweep(agents: int, options: Any, keep: Keep) -> Measure:
    """The whole sweep of so many agents, with all that Python does for each of them and a checkpoint at its end. The
    largest one is not compiled before."""
    import etude

    execution = etude.Execution(vectorization="compiled", fused=True, device=options.device)
    config, fixed = compiled.config(**compiled.MANY), {"engine": "jax", "environments": 8, "execution": execution}

    def swept(steps: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            began, there = time.perf_counter(), f"{folder}/sweep"
            setup: dict[str, Any] = {**fixed, "config": config, "folder": there, "processes": 1, "save_every": steps}
            etude.sweep("ppo", compiled.WAYS["fused"], seeds=agents, steps=steps, **setup)
            return time.perf_counter() - began

    before = None if agents == LARGEST else swept(SWEPT)

    def measured(keep: Keep) -> None:
        seconds, steps = swept(2 * SWEPT), 2 * SWEPT
        row = {"seconds": measure.significant(seconds), "steps of each": steps, "compiled before": before is not None}
        row["steps_per_second"] = measure.significant(agents * steps / seconds)
        keep(f"{agents} agents", row | {"memory": memory()})

    return measured


def transfers(options: Any, keep: Keep) -> Measure:
    """Microseconds until the weights of SAC's actor are in NumPy: as the engine reads them, and one after the other."""
    import jax
    import numpy as np
    from learn_step import engine_for

    engine = engine_for(CASES["sac"], "jax", options.device)
    actor = {name: x for name, x in engine.values().items() if name.startswith("actor")}
    changed: Any = jax.jit(lambda values: {name: x + 1.0 for name, x in values.items()})  # else JAX keeps its copies

    def fresh() -> Any:
        return jax.block_until_ready(changed(actor))

    compared = {
        "computed alone": fresh,
        "engine": lambda: engine.backend.numpy(fresh()),
        "one after the other": lambda: jax.tree.map(np.array, fresh()),
    }

    def measured(keep: Keep) -> None:
        found = timed(compared, options.turns)
        micro = {who: measure.summary([1e6 * s for s in each]) for who, each in found.items()}
        keep(f"{len(actor)} arrays", {"microseconds": micro})

    return measured


def memory() -> dict[str, float]:
    """Megabytes at the peak, of this process and on its GPU."""
    found = {"process": measure.significant(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)}
    if "jax" in sys.modules:
        import jax

        if statistics := jax.devices()[0].memory_stats():
            found["device"] = measure.significant(statistics["peak_bytes_in_use"] / 1e6)
    return found


def parts() -> dict[str, Callable[[Any, Keep], Measure]]:
    """By name, what prepares a part and returns what measures it; the most wanted first."""
    wanted = {name: CASES[name] for name in COMMON}
    found: dict[str, Any] = {f"fused-{n}": functools.partial(fused, n, phases) for n, phases in PHASES.items()}
    found |= {f"replayed-{n}": functools.partial(replayed, n) for n in REPLAYED}
    found |= {f"many-{agents}": functools.partial(many, agents) for agents in reversed(AGENTS)}
    found |= {
        f"steps-jax-{i}": functools.partial(learning, "jax", dict(list(wanted.items())[i::SIDE_BY_SIDE]))
        for i in range(SIDE_BY_SIDE)
    }
    found["images-jax"] = functools.partial(learning, "jax", IMAGES)
    found["images-torch"] = functools.partial(learning, "torch", IMAGES)
    for framework in ("jax", "torch"):
        found[f"devices-small-{framework}"] = functools.partial(devices, framework, SMALL)
        found[f"devices-large-{framework}"] = functools.partial(devices, framework, LARGE | IMAGES)
    found["steps-torch"] = functools.partial(learning, "torch", wanted)
    found["transfers"] = transfers
    found |= {f"sweep-{agents}": functools.partial(sweep, agents) for agents in AGENTS}
    found |= {f"fused-cpu-{n}": functools.partial(fused, n, phases) for n, phases in ON_CPU.items()}
    return found | {f"replayed-cpu-{n}": functools.partial(replayed, n) for n in REPLAYED}


def of_part(name: str, options: Any) -> None:
    """This process: prepare, wait for a line, measure."""
    path, rows = Path(options.folder) / f"{name}.json", dict[str, Any]()

    def keep(row: str, found: dict[str, Any]) -> None:
        rows[row] = found
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({"device": card(options.device), "versions": measure.versions(), "rows": rows}))
        os.replace(fresh, path)

    if "cpu" in name.split("-"):
        options.device = "cpu"
    run = parts()[name](options, keep)
    print(measure.READY, flush=True)
    sys.stdin.readline()
    run(keep)


def card(device: str) -> str:
    """The name of the GPU, or the processor."""
    if device == "cpu":
        return measure.machine()["processor"]
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def in_turns(wanted: list[str], options: Any) -> None:
    """Let one part after the other measure, while those that compile for their turns are stopped."""
    began, folder = time.perf_counter(), Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    processes: dict[str, Any] = {}

    def left() -> float:
        return max(0.0, began + options.within - time.perf_counter())

    def start(name: str) -> None:
        command = measure.script("gpu.py", "--part", name, *sys.argv[1:])
        # Several processes share the GPU.
        variables = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "KERAS_BACKEND": "jax"}
        if options.device == "cpu" or "cpu" in name.split("-"):
            variables["JAX_PLATFORMS"] = "cpu"
        log = (folder / f"{name}.log").open("w")
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        processes[name] = subprocess.Popen(command, text=True, env=variables, **pipes)

    def signal_others(name: str, number: int) -> None:
        for other, process in processes.items():
            if other != name and process.poll() is None:
                process.send_signal(number)

    try:
        for i, name in enumerate(wanted):
            for other in wanted[i : i + options.jobs]:
                if other not in processes:
                    start(other)
            turn, outcome = time.perf_counter(), "not ready"
            if is_ready(processes[name], left()):
                signal_others(name, signal.SIGSTOP)
                outcome = (
                    "measured" if has_measured(processes[name], min(left(), options.turn)) else "failed or cut off"
                )
                signal_others(name, signal.SIGCONT)
            processes[name].kill()
            print(f"{name:<24} {outcome} in {time.perf_counter() - turn:.1f} s", flush=True)
    finally:
        for process in processes.values():
            process.kill()


def has_measured(process: Any, timeout: float) -> bool:
    """Let a process measure; whether it has ended well in time."""
    try:
        process.communicate("go\n", timeout=timeout)
    except (subprocess.TimeoutExpired, BrokenPipeError):
        process.kill()
    return process.returncode == 0


def is_ready(process: Any, timeout: float) -> bool:
    """Whether it says so in time."""
    while select.select([process.stdout], [], [], max(0.0, timeout))[0]:
        line = process.stdout.readline()
        if not line or line.strip() == measure.READY:
            return bool(line)
    return False


def gather(folder: str) -> None:
    """Put the parts in a folder into gpu.json, in the place of earlier ones of their names."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))}
    [versions, *_] = [part.pop("versions") for part in found.values()]
    path = Path(__file__).with_suffix(".json")
    held = measure.read(__file__) | found | {"about": {"versions": versions}}
    path.write_text(json.dumps(held, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where the parts are written")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names such as steps-jax or many-256")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=6, help="parts that compile at the same time")
    parser.add_argument("--prepare", type=float, default=75, help="seconds of compiling")
    parser.add_argument("--within", type=float, default=300, help="seconds in all")
    parser.add_argument("--turn", type=float, default=45, help="seconds of a part's turn at most")
    parser.add_argument("--gather", help="a folder of parts")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.gather:
        gather(options.gather)
    elif options.part:
        of_part(options.part, options)
    else:
        asked = [name for name in parts() if any(text in name for text in options.only)]
        in_turns([name for name in asked if name not in BY_NAME or name in options.only], options)


if __name__ == "__main__":
    main()
