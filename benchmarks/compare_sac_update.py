"""Do gradient steps of SAC in etude equal those of Stable-Baselines3, number by number?

`python benchmarks/compare_sac_update.py --peers PYTHON` takes 20 of etude's from drawn batches; Stable-Baselines3 then
starts from the same weights and is given the same batches and the same noise. Prints the largest difference of each
network's weights, relative to how far they have moved, twice: to Stable-Baselines3 as it is, whose actor follows
critics that have just been stepped, and with its critics stepped after the actor, as all of etude's losses are
differentiated at the same weights. Adam's epsilon is 1e-3 on both sides: with 1e-8, the first step of a weight whose
gradient is rounding alone is a whole learning rate in either direction.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import measure
import numpy as np

STEPS, BATCH, OBSERVED, ACTIONS = 20, 256, 17, 6
SHOWN, EPSILON = (1, 2, 5, 10, 20), 1e-3
ORDERS = {"as it is": False, "critics after the actor": True}


class Spaces(gym.Env):
    """An environment with nothing but the spaces."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBSERVED,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (ACTIONS,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(OBSERVED, np.float32), {}


def ours() -> dict[str, np.ndarray]:
    """Batches, noise, first weights, and weights after each gradient step, by name."""
    import etude
    from etude.base.data import Batch
    from etude.base.schedules import at
    from etude.optimizers import Adam

    config = etude.algorithms.SACConfig(optimizer=Adam(epsilon=EPSILON))
    run = etude.Run("sac", Spaces, config=config, engine="torch", seed=101, execution=etude.Execution(device="cpu"))
    engine, rng = run.engine, np.random.default_rng(101)

    def drawn(*shape: int) -> np.ndarray:
        return rng.normal(size=(STEPS, BATCH, *shape)).astype(np.float32)

    data = {
        "observation": drawn(OBSERVED),
        "action": np.tanh(drawn(ACTIONS)),
        "reward": drawn(),
        "next_observation": drawn(OBSERVED),
        "discount": np.where(rng.random((STEPS, BATCH)) < 0.1, 0, 0.99).astype(np.float32),
    }
    hyper = {name: at(getattr(run.agent.config, name), 0, 1) for name in engine.layout.hyper}
    noise = {"noise/action": drawn(ACTIONS), "noise/next_action": drawn(ACTIONS)}
    found = {**data, **noise, **{f"0/{name}": x for name, x in engine.weights().items()}}
    for i in range(STEPS):
        one = {name.partition("/")[2]: x[i : i + 1] for name, x in noise.items()}
        engine.layout.draw_noise = lambda *_, one=one: one
        rows = {"weight": np.ones((1, BATCH), np.float32), "index": np.zeros((1, BATCH), np.int64), "extras": {}}
        engine.learn(Batch(**rows, **{name: x[i : i + 1] for name, x in data.items()}), hyper)
        found |= {f"{i + 1}/{name}": x for name, x in engine.weights().items()}
    return found


def theirs(found: dict[str, np.ndarray], critics_last: bool) -> dict[str, np.ndarray]:
    """The same by Stable-Baselines3's own `train`, under etude's names."""
    import torch
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    torch.set_num_threads(1)
    model = SAC("MlpPolicy", Spaces(), device="cpu", ent_coef="auto_1.0")
    model.set_logger(Logger(None, []))
    for optimizer in (model.actor.optimizer, model.critic.optimizer, model.ent_coef_optimizer):
        optimizer.param_groups[0]["eps"] = EPSILON
    parameters = {"temperature.value": [model.log_ent_coef]}
    actor = [*model.actor.latent_pi[::2], (model.actor.mu, model.actor.log_std)]
    for i, layer in enumerate(actor):
        for kind in ("weight", "bias"):
            each = layer if isinstance(layer, tuple) else (layer,)
            parameters[f"actor.dense{i}.{kind}"] = [getattr(part, kind) for part in each]
            for name, critic in (("critic", model.critic), ("critic_target", model.critic_target)):
                parameters[f"{name}.dense{i}.{kind}"] = [getattr(q[2 * i], kind) for q in critic.q_networks]

    def joined(name: str) -> np.ndarray:
        parts = [x.detach().numpy().T.copy() for x in parameters[name]]
        if name.startswith("critic"):
            return np.stack([x[None] if name.endswith("bias") else x for x in parts])
        return np.concatenate(parts, -1) if name.startswith("actor") else parts[0].reshape(())

    for name, each in parameters.items():
        value = found[f"0/{name}"]
        parts = list(value) if name.startswith("critic") else np.split(value, len(each), -1) if value.ndim else [value]
        for parameter, part in zip(each, parts, strict=True):
            parameter.data = torch.tensor(part.T.copy()).reshape(parameter.shape)
    noise: list[Any] = []
    torch.distributions.Normal.rsample = lambda self, *_: self.loc + self.scale * noise.pop(0)
    if critics_last:
        _step_critics_last(model)
    answer = {}
    for i in range(STEPS):
        rows = {name: torch.tensor(x[i]) for name, x in found.items() if not name[0].isdigit()}
        noise[:] = [rows["noise/action"], rows["noise/next_action"]]
        done, reward = (x.reshape(-1, 1) for x in ((rows["discount"] == 0).float(), rows["reward"]))
        batch = ReplayBufferSamples(rows["observation"], rows["action"], rows["next_observation"], done, reward, None)
        model.replay_buffer.sample = lambda *_, batch=batch, **__: batch
        model.train(1, BATCH)
        answer |= {f"{i + 1}/{name}": joined(name) for name in parameters}
    return answer


def _step_critics_last(model: Any) -> None:
    critics, actor, held = model.critic.optimizer, model.actor.optimizer, []
    step_critics, step_actor = critics.step, actor.step

    def keep() -> None:
        held[:] = [parameter.grad.clone() for parameter in model.critic.parameters()]

    def step() -> None:
        step_actor()
        for parameter, gradient in zip(model.critic.parameters(), held, strict=True):
            parameter.grad = gradient
        step_critics()

    critics.step, actor.step = keep, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="a Python that has requirements-peers.txt")
    parser.add_argument("--answer", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        order, source, answer = options.answer
        with np.load(source) as held:
            np.savez(answer, **theirs(dict(held), ORDERS[order]))
        return
    with tempfile.TemporaryDirectory() as folder:
        source, answer, found = Path(folder) / "etude.npz", Path(folder) / "sb3.npz", ours()
        np.savez(source, **found)
        for order in ORDERS:
            command = measure.script(
                "compare_sac_update.py", "--answer", order, str(source), str(answer), python=options.peers
            )
            subprocess.run(command, check=True)
            print(f"\nStable-Baselines3, {order}; gradient steps {SHOWN}")
            with np.load(answer) as held:
                others = dict(held)
            for part in ("actor", "critic", "critic_target", "temperature"):
                names = [name for name in found if name.startswith(f"{STEPS}/{part}.")]
                shown = [_difference(found, others, [f"{s}/{n.partition('/')[2]}" for n in names]) for s in SHOWN]
                print(f"  {part:<14}" + "".join(f"{number:>10.1e}" for number in shown))


def _difference(found: dict[str, np.ndarray], others: dict[str, np.ndarray], names: list[str]) -> float:
    moved = max(np.abs(found[name] - found[f"0/{name.partition('/')[2]}"]).max() for name in names)
    return float(max(np.abs(found[name] - others[name]).max() for name in names) / moved)


if __name__ == "__main__":
    main()
