"""State dicts of CleanRL's scripts, as `torch.save` writes them: of one module, or a tuple (actor, critics) of several.

They hold weights alone. The algorithm and the network follow from the names of layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import CheckpointError
from etude.engines.torch_files import read_torch_file
from etude.importing.model import LOG_STD, POLICY, ImportedModel, Layer, Layers, NamedTensors

LIBRARY = "CleanRL"
EXPECTED = (
    "the state dict of ppo.py, ppo_atari.py, ppo_continuous_action.py, dqn.py or dqn_atari.py, or those of "
    "sac_continuous_action.py, td3_continuous_action.py or ddpg_continuous_action.py as (actor, qf1, qf2)"
)
LOG_STD_RANGE = -5.0, 2.0  # of its SAC, whose tanh goes from one to the other
NO_MOMENTS = (
    "CleanRL keeps what NormalizeObservation has seen in the environment, and not in the file: where the script "
    "normalises observations, this run does not act as it did."
)


def read(path: Path, activation: str | None = None) -> ImportedModel:
    """The model in a file. activation: None takes that of the script."""
    try:
        with path.open("rb") as file:
            held = read_torch_file(file, str(path))
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror or problem}.") from problem
    several = list(held.values()) if isinstance(held, dict) and "actor" in held else held
    read_parts = _actor_and_critics if isinstance(several, list) else _one_module
    algorithm, networks, numbers, notes = read_parts(path, several)
    default = "tanh" if algorithm == "ppo" and not networks[POLICY].convolutions else "relu"
    known = "that of the script; activation= (--activation) names another" if activation is None else "as given"
    fixed: dict[str, Any] = {"dqn": {"double": False, "n_step": 1, "epsilon": 0.05}, "ppo": {}, "sac": {}}
    return ImportedModel(
        source=str(path), library=LIBRARY, algorithm=algorithm, activation=activation or default, networks=networks,
        numbers=numbers, hyperparameters=fixed.get(algorithm, {"random_steps": 0}),
        raw_critic=isinstance(several, list), notes=(f"activation {activation or default}: {known}.", *notes),
    )  # fmt: skip


Found = tuple[str, dict[str, Any], dict[str, np.ndarray], list[str]]  # algorithm, networks, numbers, notes


def _one_module(path: Path, held: Any) -> Found:
    """An agent with its critic, or a Q-network."""
    tensors = NamedTensors(str(path), held, EXPECTED)
    trunk, numbers, notes = tensors.sequence("network"), {}, []
    if tensors.have("critic."):
        head = "actor_mean" if tensors.have("actor_mean.") else "actor"
        networks: dict[str, Any] = {
            part: trunk._replace(dense=(*trunk.dense, *_head(tensors, name).dense))
            for part, name in ((POLICY, head), ("model.critic", "critic"))
        }
        if trunk.dense:
            notes.append("Layers that actor and critic share are layers of both here, and are trained apart.")
        if head == "actor_mean":
            numbers, algorithm = {LOG_STD: tensors.read("actor_logstd").reshape(-1)}, "ppo"
            notes.append(NO_MOMENTS)
        algorithm = "ppo"
    elif trunk.dense:
        networks, algorithm = {"q": trunk, "q_target": trunk}, "dqn"
    else:
        raise tensors.error("its layers are those of another script")
    tensors.check_all_read()
    return algorithm, networks, numbers, notes


def _head(tensors: NamedTensors, name: str) -> Layers:
    alone = tensors.have(f"{name}.weight")
    return Layers((), (tensors.layer(name),)) if alone else tensors.sequence(name)


def _actor_and_critics(path: Path, held: list[Any]) -> Found:
    """SAC, TD3 and DDPG. Targets start as copies of what they follow."""
    if not 2 <= len(held) <= 3:
        raise CheckpointError(f"{path} holds {len(held)} state dicts. Expected {EXPECTED}.")
    tensors = [NamedTensors(f"Part {i} of {path}", each, EXPECTED) for i, each in enumerate(held)]
    own, notes = tensors[0], []
    critics = tuple(Layers((), tuple(each.layer(f"fc{i}") for i in (1, 2, 3))) for each in tensors[1:])
    hidden = own.layer("fc1"), own.layer("fc2")
    own.pass_over("action_")  # how it scales its actions: as the bounds of the environment say
    if own.have("fc_mean.", "fc_logstd."):
        (mean, spread), algorithm = (own.layer(name) for name in ("fc_mean", "fc_logstd")), "sac"
        # Near 0, tanh is the identity: the same deviations there, and others where it saturates.
        low, high = LOG_STD_RANGE
        slope = 0.5 * (high - low)
        spread = Layer(slope * spread.weight, low + slope * (1 + spread.bias))
        last = Layer(*(np.concatenate(both) for both in zip(mean, spread, strict=True)))
        notes.append(
            "Log deviations are clipped here, and not squashed by tanh: exploration differs where it saturates."
        )
    else:
        last, algorithm = own.layer("fc_mu"), "td3" if len(critics) == 2 else "ddpg"
    if algorithm != "ddpg" and len(critics) != 2:
        raise own.error(f"there are {len(critics)} critics for {algorithm}")
    for each in tensors:
        each.check_all_read()
    actor, critic = Layers((), (*hidden, last)), critics if algorithm != "ddpg" else critics[0]
    networks: dict[str, Any] = {"actor": actor, "critic": critic, "critic_target": critic}
    return algorithm, networks if algorithm == "sac" else {**networks, "actor_target": actor}, {}, notes
