"""How many environment steps a second does PPO take on CartPole in a loop over Gymnasium's environments, in compiled
rollouts, fused, and in nothing but JAX: after compiling, on the same network and the same work?

`python benchmarks/compiled.py --peers PYTHON` writes compiled.json; PYTHON has rejax 0.1.3, gymnax 0.0.9. All ways are
processes that wait for their turn, so that what the machine does besides meets all of them. `--many` measures seeds and
configurations that learn in one program, beside one run, and beside runs in the loop over Gymnasium's environments.
`--replayed` does the same with DQN, whose replay is on the device where it is fused.
`--returns` compares what is earned after 65,536 steps, ten seeds each.

64 environments, 128 steps, 4 epochs of 4 minibatches, two networks of 64, 64 (tanh): PureJaxRL's settings, with more
environments. Processor seconds are those of all threads of a process.
"""

from __future__ import annotations

import importlib.metadata
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import measure

N, LENGTH, EPOCHS, MINIBATCHES = 64, 128, 4, 4
PHASE = N * LENGTH
RATE = {"learning_rate": 2.5e-4, "clip_range": 0.2, "gamma": 0.99, "gae_lambda": 0.95, "entropy_coefficient": 0.0}
LEARNS = {"gymnasium": 4, "compiled": 32, "fused": 32, "bare": 32, "rejax": 32}  # phases of a turn
TURN = {way: PHASE * phases for way, phases in LEARNS.items()}  # environment steps of a turn
REPLAYED = {"dqn gymnasium": 32_000, "dqn compiled": 32_000, "dqn fused": 32_000, "dqn rejax": 32_000}
WAYS = {"gymnasium": "CartPole-v1", "compiled": "functional:CartPole-v1", "fused": "functional:CartPole-v1"}
T_975 = {5: 2.776, 10: 2.262}  # of Student's t, by how many seeds
WANTED = {"fused / bare": 0.87, "fused / gymnasium": 10.0, "fused / rejax": 0.9, "dqn fused / dqn gymnasium": 10.0,
          "dqn fused / dqn compiled": None, "dqn fused / dqn rejax": 0.9}  # fmt: skip
MANY = {"rollout_length": 64, "minibatch_size": 256, "epochs": 4}  # of each of many agents, with 8 environments


def config(**changes: Any) -> Any:
    from etude.algorithms import PPOConfig
    from etude.networks import Mlp

    plain = {"normalize_observation": False, "normalize_reward": False}
    network = Mlp((64, 64), "tanh", "orthogonal")
    own = {"rollout_length": LENGTH, "minibatch_size": PHASE // MINIBATCHES, "epochs": EPOCHS} | changes
    return PPOConfig(**own, **RATE, **plain, network=network)


def of_etude(way: str, seed: int) -> tuple[Callable[[], Any], Callable[[], float]]:
    import etude

    execution = etude.Execution(vectorization="loop" if way == "gymnasium" else "compiled", fused=way == "fused")
    run = etude.Run("ppo", WAYS[way], config=config(), engine="jax", seed=seed, environments=N, execution=execution)
    return lambda: run.train(PHASE * LEARNS[way]), lambda: run.evaluate(20).mean


def returns(seeds: int, phases: int) -> dict[str, Any]:
    """What each way of etude's earns after so many phases, by seed, and the 95 % interval of its mean."""
    import etude

    found: dict[str, Any] = {"steps": PHASE * phases}
    for way, env in WAYS.items():
        execution = etude.Execution(vectorization="loop" if way == "gymnasium" else "compiled", fused=way == "fused")
        earned = []
        for seed in range(1, seeds + 1):
            setup = {"engine": "jax", "environments": N, "execution": execution}
            with etude.Run("ppo", env, config=config(), seed=seed, **setup) as run:
                run.train(PHASE * phases)
                earned.append(run.evaluate(20).mean)
        half = T_975[seeds] * statistics.stdev(earned) / seeds**0.5
        mean = statistics.fmean(earned)
        found[way] = {
            "returns": earned,
            "mean": round(mean, 1),
            "interval": [round(mean - half, 1), round(mean + half, 1)],
        }
        print(way, found[way], flush=True)
    return found


def of_bare(way: str, seed: int) -> tuple[Callable[[], Any], Callable[[], float]]:
    import bare_compiled

    return bare_compiled.trainer(N, LENGTH, EPOCHS, PHASE // MINIBATCHES, LEARNS[way], seed)


def of_rejax(way: str, seed: int) -> tuple[Callable[[], Any], Callable[[], float]]:
    import jax
    import jax.numpy as jnp
    import rejax

    own: dict[str, Any]
    if way == "rejax":
        name, phases = "ppo", LEARNS[way]
        own = {"clip_eps": 0.2, "learning_rate": 2.5e-4, "gae_lambda": 0.95, "ent_coef": 0.0, "max_grad_norm": 0.5}
        own |= {"num_envs": N, "num_steps": LENGTH, "num_epochs": EPOCHS, "num_minibatches": MINIBATCHES}
        own |= {"agent_kwargs": {"activation": "tanh", "hidden_layer_sizes": (64, 64)}}
    else:
        name, phases = "dqn", REPLAYED[way] // 16
        own = {"num_envs": 16, "num_epochs": 4, "batch_size": 64, "buffer_size": 100_000, "fill_buffer": 1_000}
        own |= {"eps_start": 0.05, "eps_end": 0.05, "target_update_freq": 2_000}  # 500 gradient steps
        own |= {"learning_rate": 1e-3, "max_grad_norm": 10.0, "agent_kwargs": {"activation": "relu"}}
    algorithm = rejax.get_algo(name).create(env="CartPole-v1", gamma=0.99, **own)
    state = algorithm.init_state(jax.random.key(seed))
    learn = jax.jit(lambda state: jax.lax.fori_loop(0, phases, lambda _, s: algorithm.train_iteration(s), state))

    def advance() -> None:
        nonlocal state
        state = jax.block_until_ready(learn(state))

    def mean() -> float:
        return float(jnp.mean(algorithm.eval_callback(algorithm, state, jax.random.key(seed))[1]))

    return advance, mean


def dqn_of_etude(way: str, seed: int) -> tuple[Callable[[], Any], Callable[[], float]]:
    import etude
    from etude.algorithms import DQNConfig
    from etude.networks import Mlp

    way = way.removeprefix("dqn ")
    own = DQNConfig(network=Mlp((64, 64)), train_every=16, gradient_steps=4, n_step=1, epsilon=0.05, learning_rate=1e-3)
    execution = etude.Execution(vectorization="loop" if way == "gymnasium" else "compiled", fused=way == "fused")
    run = etude.Run("dqn", WAYS[way], config=own, engine="jax", seed=seed, environments=16, execution=execution)
    return lambda: run.train(REPLAYED[f"dqn {way}"]), lambda: run.evaluate(20).mean


def wait_for_turns(way: str, seed: int) -> None:
    """Compile, and then take a turn for each line that comes in; the mean return at the end."""
    makers = {"bare": of_bare, "rejax": of_rejax, "dqn rejax": of_rejax}
    advance, mean = makers.get(way, dqn_of_etude if way in REPLAYED else of_etude)(way, seed)
    began = time.perf_counter()
    advance()
    version = {"version": importlib.metadata.version("rejax")} if "rejax" in way else {}
    print(json.dumps({"first turn": time.perf_counter() - began, **version}), flush=True)
    while sys.stdin.readline().strip():
        began, processor = time.perf_counter(), time.process_time()
        advance()
        taken = time.perf_counter() - began, time.process_time() - processor
        print(json.dumps(dict(zip(("seconds", "processor"), taken, strict=True))), flush=True)
    print(json.dumps({"return": mean()}), flush=True)


def in_turns(ways: list[str], repeats: int, peers: str | None, seed: int) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    processes = {}
    for way in ways:
        python = peers if "rejax" in way else sys.executable
        command = measure.script("compiled.py", "--cell", f"{way} {seed}", python=python)
        processes[way] = process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        found[way] = {**json.loads(process.stdout.readline()), "turns": []}
    for _ in range(repeats):
        for way, process in processes.items():
            process.stdin.write("go\n")
            process.stdin.flush()
            found[way]["turns"].append(json.loads(process.stdout.readline()))
    for way, process in processes.items():
        process.stdin.close()
        found[way] |= json.loads(process.stdout.readline())
        process.wait()
    return found


def speeds(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for clock in ("seconds", "processor"):
        steps = {
            way: [(TURN | REPLAYED)[way] / turn[clock] for turn in held["turns"]] for way, held in found.items()
        }  # per second
        rows[clock] = {way: measure.summary(each) for way, each in steps.items()}
        for pair in WANTED:
            above, below = pair.split(" / ")
            if above in steps and below in steps:
                rows[clock][pair] = {**measure.ratio(steps[above], steps[below]), "wanted": WANTED[pair]}
    for way, held in found.items():
        rows.setdefault("returns", {})[way] = held["return"]
        rows.setdefault("versions", {}).update({way: held["version"]} if "version" in held else {})
        rows.setdefault("seconds of the first turn", {})[way] = measure.significant(held["first turn"])
    return rows


def many(steps: int, seeds: int, configurations: int) -> dict[str, Any]:
    """Processor and wall seconds: of one seed and of many, compiled before; and of configurations, beside one run in
    the loop over Gymnasium's environments."""
    import etude
    from etude.tuning import Fifo, RandomSearch, SerialExecutor

    fused = {"engine": "jax", "environments": 8, "execution": etude.Execution(vectorization="compiled", fused=True)}

    def timed(function: Callable[[str], Any]) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            began, processor = time.perf_counter(), time.process_time()
            function(f"{folder}/it")
            found = {"seconds": time.perf_counter() - began, "processor": time.process_time() - processor}
        return {name: measure.significant(value) for name, value in found.items()}

    def swept(count: int) -> Callable[[str], Any]:
        return lambda folder: etude.sweep(
            "ppo", "functional:CartPole-v1", seeds=count, steps=steps, config=config(**MANY), folder=folder,
            processes=1, **fused,
        )  # fmt: skip

    def studied(folder: str) -> None:
        space = {"learning_rate": etude.tuning.Log(1e-4, 1e-2), "clip_range": etude.tuning.Uniform(0.1, 0.3),
                 "gamma": etude.tuning.Uniform(0.95, 0.999)}  # fmt: skip
        with etude.Study(
            "ppo", "functional:CartPole-v1", space, steps=steps, trials=configurations, config=config(**MANY),
            search=RandomSearch(), scheduler=Fifo(), evaluate_every=steps, folder=folder,
            training=etude.tuning.TrialTraining(evaluate_episodes=1), jobs=SerialExecutor(configurations), **fused,
        ) as study:  # fmt: skip
            study.run()

    def gymnasium(_: str) -> None:
        etude.Run("ppo", "CartPole-v1", config=config(**MANY), engine="jax", environments=8).train(steps)

    rows: dict[str, Any] = {"steps": steps, "seeds": seeds, "configurations": configurations}
    for name, function in (("one seed", swept(1)), (f"{seeds} seeds", swept(seeds)), ("gymnasium", gymnasium)):
        timed(function)  # compiles
        rows[name] = timed(function)
    rows[f"{configurations} configurations"] = timed(studied)  # compiling included
    for clock in ("seconds", "processor"):
        rows[f"seeds / one, {clock}"] = measure.significant(rows[f"{seeds} seeds"][clock] / rows["one seed"][clock], 3)
        whole = rows[f"{configurations} configurations"][clock] / rows["gymnasium"][clock]
        rows[f"configurations / gymnasium, {clock}"] = measure.significant(whole, 3)
    return rows | {"wanted": {"seeds / one": 8, "configurations / gymnasium": 20}}


def main() -> None:
    parser = measure.arguments(__doc__)
    parser.add_argument("--many", action="store_true")
    parser.add_argument("--returns", action="store_true")
    parser.add_argument("--replayed", action="store_true", help="DQN, 16 environments, four gradient steps for each 16")
    parser.add_argument("--steps", type=int, default=32_768, help="of each of many agents")
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--configurations", type=int, default=256)
    options = parser.parse_args()
    if options.cell:
        way, _, seed = options.cell.rpartition(" ")
        wait_for_turns(way, int(seed))
    elif options.returns:
        measure.write(__file__, {"returns": returns(10, 8)})
    elif options.many:
        found = many(options.steps, options.seeds, options.configurations)
        print(json.dumps(found, indent=1))
        measure.write(__file__, {"many": found})
    else:
        ways = [way for way in (REPLAYED if options.replayed else TURN) if "rejax" not in way or options.peers]
        found = speeds(in_turns(ways, options.repeats, options.peers, seed=1))
        print(json.dumps(found, indent=1))
        measure.write(__file__, {"replayed" if options.replayed else "speed": found})


if __name__ == "__main__":
    main()
