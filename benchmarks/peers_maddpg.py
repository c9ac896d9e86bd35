"""MADDPG of AgileRL on tasks of MPE, with the hyperparameters and the budget of solo_learning.py and multi_agent.py:
to be seen beside their figures. Needs an environment of its own (`pip install agilerl peft`).

`PYTHON benchmarks/peers_maddpg.py --task simple_spread_v3 --seeds 1 2 3` adds to peers_maddpg.json. Judged by 100
episodes after training: the most probable actions, the mean return summed over the agents. AgileRL explores with its
own noise.
"""

from __future__ import annotations

import argparse
import importlib
import time
from typing import Any

import measure
import numpy as np

TASKS = ("simple_speaker_listener_v4", "simple_spread_v3")
HIDDEN, BATCH, RATE, GAMMA, TAU = 128, 256, 1e-3, 0.95, 0.01
EPISODES, STEPS, JUDGED, FIRST_RESET = 400, 25, 100, 1_000_000


def trained(task: str, seed: int, episodes: int) -> tuple[Any, Any]:
    """An agent after so many episodes, with one gradient step for each environment step, and its environment."""
    import torch
    from agilerl.algorithms import MADDPG
    from agilerl.components import ReplayBuffer
    from agilerl.components.data import MultiAgentTransition, transition_to_tensordict
    from agilerl.components.sampler import Sampler
    from agilerl.vector import PzDummyVecEnv

    np.random.seed(seed)  # noqa: NPY002  (the library draws from the global generators)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    made = importlib.import_module(f"mpe2.{task}").parallel_env(max_cycles=STEPS)
    made.reset(seed=seed)
    env = PzDummyVecEnv(made)
    agents = made.possible_agents
    layers = {"hidden_size": [HIDDEN]}
    agent = MADDPG(
        [made.observation_space(name) for name in agents],
        [made.action_space(name) for name in agents],
        agent_ids=agents,
        batch_size=BATCH,
        lr_actor=RATE,
        lr_critic=RATE,
        gamma=GAMMA,
        tau=TAU,
        learn_step=1,
        net_config={
            "encoder_config": {**layers, "min_mlp_nodes": HIDDEN},
            "latent_dim": HIDDEN,
            "max_latent_dim": HIDDEN,
        },
    )
    memory = ReplayBuffer(100_000)
    sampler = Sampler(memory=memory)
    agent.set_training_mode(True)
    for _ in range(episodes):
        observation, info = env.reset()
        for _ in range(STEPS):
            action, raw = agent.get_action(obs=observation, infos=info)
            following, reward, terminated, _, info = env.step(action)
            transition = transition_to_tensordict(
                MultiAgentTransition(obs=observation, action=raw, reward=reward, next_obs=following, done=terminated)
            )
            transition.batch_size = torch.Size([1])
            memory.add(transition)
            if len(memory) >= BATCH:
                agent.learn(sampler.sample(BATCH))
            observation = following
        agent.reset_action_noise([0])
    return agent, made


def returns(agent: Any, env: Any) -> np.ndarray:
    """What each of the judged episodes earns, summed over the agents."""
    agent.set_training_mode(False)
    found = []
    for i in range(JUDGED):
        observation, info = env.reset(seed=FIRST_RESET + i)
        total = 0.0
        while env.agents:
            given = {name: np.asarray(value)[None] for name, value in observation.items()}
            action, _ = agent.get_action(obs=given, infos=info)
            chosen = {name: int(np.asarray(value).ravel()[0]) for name, value in action.items()}
            observation, reward, _, _, info = env.step(chosen)
            total += sum(reward.values())
        found.append(total)
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--task", choices=TASKS, default=TASKS[0])
    parser.add_argument("--episodes", type=int, default=EPISODES)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for seed in options.seeds:
        began = time.perf_counter()
        agent, env = trained(options.task, seed, options.episodes)
        name = f"{options.task}, {options.episodes} episodes, seed {seed}"
        score = measure.significant(float(returns(agent, env).mean()))
        results[name] = {"score": score, "seconds": round(time.perf_counter() - began, 1)}
        print(name, results[name], flush=True)
        measure.write(__file__, results)


if __name__ == "__main__":
    main()
