"""Agents of one's own, DQN 4-128-2 in PyTorch: collecting with processes against one process, and collecting while
learning against one after the other.

`python benchmarks/solo_speed.py` writes solo_speed.json. Everything goes through `train`, from the first round that has
ended to the last, so that starting processes does not count. "exported": workers evaluate the network themselves; "in
the parent": a network that NumPy cannot compute. Slow environments are loops that take as long as is said.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import measure
from stepping import Spinning

SECONDS = 1.5  # of one measurement
NEVER = 10**9  # collections before learning
NETWORKS = ("exported", "in the parent")
WORLDS = {
    "CartPole-v1, short episodes": ("CartPole-v1", False),
    "CartPole-v1, whole episodes": ("CartPole-v1", True),
    "environment of 200 us": (functools.partial(Spinning, 200.0), False),
    "environment of 1,000 us": (functools.partial(Spinning, 1_000.0), False),
}
MODES = {"1 process": (1, None), "1 process, 2 environments": (2, None), "2 processes": (2, 2), "7 processes": (7, 7)}


def made(network: str, env: Any, environments: int, balancing: bool) -> Any:
    """An agent whose episodes of CartPole are short (random actions) or whole (a hand-written controller)."""
    import torch

    import etude
    from etude.examples.torch_agents.dqn import DQN

    class Rooted(torch.nn.Sequential):
        """Computes what plain layers do not."""

        def forward(self, observation: Any) -> Any:
            return super().forward(observation) * 2.0

    torch.manual_seed(0)
    agent: etude.RL_pytorch = DQN(4, 128, 2, env=env)
    agent.env = [env] * environments
    with torch.no_grad():
        if balancing:
            push = torch.tensor([0.1, 0.3, 3.0, 1.0])
            for parameter in agent.q.parameters():
                parameter.zero_()
            agent.q[0].weight[0], agent.q[0].weight[1] = push, -push
            agent.q[2].weight[1, 0] = agent.q[2].weight[0, 1] = 1.0
    if network != "exported":
        agent.q, agent.target = Rooted(*agent.q), Rooted(*agent.target)
        agent.param = agent.q.parameters()
    agent.seed = 0
    learn(agent, balancing, 1)
    return agent


def learn(agent: Any, balancing: bool, gradient_steps: int) -> None:
    """Learn so many minibatches after each round, where it learns."""
    from etude.explore import EpsGreedyQPolicy

    policy = EpsGreedyQPolicy(0.0 if balancing else 1.0)
    agent.set(policy=policy, pool_size=20_000, batch=64, num_updates=gradient_steps, update_batches=10_000)


class Timed:
    """Times what `train` does between the end of the first round and that of the last one in time."""

    def __init__(self, agent: Any, **options: Any):
        import torch

        self.agent, self.options = agent, options
        self.optimizer = torch.optim.Adam(agent.param, 1e-4)

    def __call__(self, seconds: float) -> tuple[float, float]:
        """(rounds, environment steps) a second."""
        from etude.solo import LambdaCallback

        marks: list[tuple[float, int]] = []
        agent = self.agent

        def ended(episode: int, logs: Any) -> None:
            marks.append((time.perf_counter(), agent._session_state.session.learner.progress.step))
            agent.stop_training = marks[-1][0] - marks[0][0] >= seconds

        agent.train(self.optimizer, p=0, callbacks=[LambdaCallback(on_episode_end=ended)], **self.options)
        taken = marks[-1][0] - marks[0][0]
        return (len(marks) - 1) / taken, (marks[-1][1] - marks[0][1]) / taken


def collecting(world: str, network: str, repeats: int) -> dict[str, Any]:
    """Environment steps a second of each mode, in turns; nothing is learned."""
    env, balancing = WORLDS[world]
    modes = {}
    for name, (environments, processes) in MODES.items():
        agent = made(network, env, environments, balancing)
        modes[name] = Timed(agent, processes=processes, num_store=NEVER)
    found: dict[str, list[float]] = {name: [] for name in modes}
    for _ in range(repeats):
        for name, timed in modes.items():
            found[name].append(timed(SECONDS)[1])
    return found


def overlapping(repeats: int) -> dict[str, Any]:
    """Rounds a second of one worker and as much learning as it collects, in turns."""
    env, _ = WORLDS["environment of 200 us"]
    agents = {name: made("exported", env, 1, False) for name in ("one after the other", "at the same time")}
    first = agents["one after the other"]
    collects = 1 / Timed(first, processes=1, parallel_store_and_training=False, num_store=NEVER)(SECONDS)[0]
    learn(first, False, 50)
    both = 1 / Timed(first, processes=1, parallel_store_and_training=False)(SECONDS)[0]
    gradient_steps = max(1, round(50 * collects / (both - collects)))
    for agent in agents.values():
        learn(agent, False, gradient_steps)
    modes = {
        name: Timed(agent, processes=1, parallel_store_and_training=name == "at the same time")
        for name, agent in agents.items()
    }
    found: dict[str, Any] = {name: [] for name in modes}
    for _ in range(repeats):
        for name, timed in modes.items():
            found[name].append(timed(SECONDS)[0])
    return {"rates": found, "gradient_steps": gradient_steps, "collecting": collects}


def main() -> None:
    parser = measure.arguments(__doc__)
    options = parser.parse_args()
    if options.cell:
        name, network = options.cell.split("/")
        done = overlapping(options.repeats) if name == "overlap" else collecting(name, network, options.repeats)
        measure.answer(done)
        return
    results: dict[str, Any] = {}
    repeats = ("--repeats", str(options.repeats))
    for world in WORLDS:
        for network in NETWORKS:
            found = measure.process(measure.script("solo_speed.py", "--cell", f"{world}/{network}", *repeats))
            rows = {name: measure.summary(values) for name, values in found.items()}
            title = f"{world}, network {network}"
            measure.show(title, rows, "steps/s")
            compared = {
                "2 processes / 1 process": measure.ratio(found["2 processes"], found["1 process"]),
                "2 processes / 1 process, 2 environments": measure.ratio(
                    found["2 processes"], found["1 process, 2 environments"]
                ),
                "7 processes / 2 processes": measure.ratio(found["7 processes"], found["2 processes"]),
            }
            measure.show("  ratios", compared, "")
            results[title] = {"steps_per_second": rows, "ratios": compared}
    found = measure.process(measure.script("solo_speed.py", "--cell", "overlap/exported", *repeats))
    rates = found["rates"]
    rows = {name: measure.summary(values) for name, values in rates.items()}
    gained = measure.ratio(rates["at the same time"], rates["one after the other"])
    measure.show("collecting and learning", rows, "rounds/s")
    measure.show("  at the same time / one after the other", {"ratio": gained}, "")
    results["collecting and learning"] = {**found, "rates": rows, "ratio": gained}
    measure.write(__file__, results)


if __name__ == "__main__":
    main()
