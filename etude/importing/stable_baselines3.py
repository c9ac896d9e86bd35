"""Models of Stable-Baselines3: the zip that `model.save` writes, and the moments that `VecNormalize.save` writes.

The zip holds tensors, which PyTorch reads as nothing but tensors, and `data`, JSON. Objects are in `data` as pickles,
which are not read, beside some of their attributes as text, which are.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from etude.base.errors import CheckpointError, ConfigError
from etude.base.spaces import Space
from etude.checkpoint.plain import parse
from etude.engines.torch_files import read_torch_file
from etude.importing.model import LOG_STD, POLICY, ImportedModel, Layer, Layers, NamedTensors
from etude.importing.pickled_arrays import Record, array_of, read_pickled
from etude.networks.normaliser import CLIP, Moments
from etude.optimizers import RMSProp

LIBRARY = "Stable-Baselines3"
LARGEST = {"data": 2**26, "policy.pth": 2**30, "pytorch_variables.pth": 2**20}  # bytes of what is read
EXPECTED = "PPO, A2C, DQN, SAC, TD3 or DDPG of Stable-Baselines3, with an MlpPolicy or a CnnPolicy of NatureCNN"
ACTIVATIONS = {"Tanh": "tanh", "ReLU": "relu", "ELU": "elu", "SiLU": "silu"}  # GELU is an approximation here
BESIDE = ("vec_normalize.pkl", "vecnormalize.pkl")  # as its documentation and RL Baselines3 Zoo call the file
EPSILON = 1e-8  # what `Moments.scale` adds to variances
TRAIN_FREQ = 4  # the default of its DQN; what was given is in a pickle

_ALL = {name: name for name in ("gamma", "learning_rate")}  # hyperparameters there -> fields of the config
_ON_POLICY = _ALL | {
    "n_steps": "rollout_length", "gae_lambda": "gae_lambda", "ent_coef": "entropy_coefficient",
    "vf_coef": "value_coefficient", "max_grad_norm": "max_gradient_norm", "normalize_advantage": "normalize_advantage",
}  # fmt: skip
_OFF_POLICY = _ALL | {
    "batch_size": "batch_size", "buffer_size": "buffer_size", "learning_starts": "learning_starts",
    "n_steps": "n_step",
}  # fmt: skip
_SMOOTHED = {"policy_delay": "policy_delay", "target_policy_noise": "target_noise"}
HYPERPARAMETERS = {
    "ppo": _ON_POLICY | {"batch_size": "minibatch_size", "n_epochs": "epochs", "clip_range": "clip_range"},
    "a2c": _ON_POLICY,
    "dqn": _OFF_POLICY | {"exploration_final_eps": "epsilon", "max_grad_norm": "max_gradient_norm"},
    "sac": _OFF_POLICY | {"tau": "tau", "target_entropy": "target_entropy"},
    "td3": _OFF_POLICY | {"tau": "tau", "target_noise_clip": "target_noise_clip"} | _SMOOTHED,
    "ddpg": _OFF_POLICY | {"tau": "tau"},
}


class _Parts(NamedTuple):
    """What a policy consists of; see `ImportedModel`."""

    networks: dict[str, Any]
    numbers: dict[str, np.ndarray]
    note: str = ""


def wrote(path: Path) -> bool:
    """Whether a file is a zip of Stable-Baselines3, however damaged: those of PyTorch are zips, too."""
    if path.suffix == ".zip":
        return True
    try:
        with zipfile.ZipFile(path) as file:
            return "policy.pth" in file.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def read(path: Path, activation: str | None = None, vec_normalize: Path | None = None) -> ImportedModel:
    """The model in a zip. activation: None takes what the file says, or the default of Stable-Baselines3.
    vec_normalize: the file of `VecNormalize.save`; None takes one of the usual name beside the zip, if there is one."""
    members = _members(path)
    try:
        data = parse(members["data"])
    except ValueError as problem:
        raise CheckpointError(f"data in {path} is no JSON: {problem}. Expected {EXPECTED}; copy it again.") from problem
    count = data.get("n_envs", 1) if isinstance(data, dict) else None
    if type(count) is not int or count < 1:
        raise CheckpointError(f"data in {path} holds no model: n_envs = {count!r:.40}. Expected {EXPECTED}.")
    where = f"policy.pth in {path}"
    tensors = NamedTensors(where, read_torch_file(io.BytesIO(members["policy.pth"]), where), EXPECTED)
    _refuse_what_differs(path, data)
    algorithm, parts = _parts(tensors, data)
    tensors.check_all_read()
    fields, unread = _hyperparameters(algorithm, data)
    numbers = parts.numbers
    if algorithm == "sac":
        where = f"pytorch_variables.pth in {path}"
        variables = read_torch_file(io.BytesIO(members["pytorch_variables.pth"]), where)
        found, own = _temperature(where, variables)
        numbers, fields = numbers | found, fields | own
    # The activation, and how it is known
    text = _table(data.get("policy_kwargs")).get("activation_fn")
    name = str(text).removesuffix("'>").rpartition(".")[2]
    if activation is not None:
        chosen, known = activation, "as given"
    elif text is None:
        chosen = "tanh" if POLICY in parts.networks else "relu"
        known = f"the default of {LIBRARY}; activation= (--activation) names another"
    elif name in ACTIVATIONS:
        chosen, known = ACTIVATIONS[name], "as the file says"
    else:
        raise ConfigError(
            f"{path} was trained with activation_fn = {name[:60]}, which cannot be imported; expected one of "
            f"{', '.join(ACTIVATIONS)}."
        )
    # It is ReLU after convolutions, whatever it is after the layers that follow them
    networks = [own if isinstance(own, Layers) else own[0] for own in parts.networks.values()]
    if networks[0].convolutions:
        if chosen != "relu" and any(len(own.dense) > 2 for own in networks):
            raise ConfigError(
                f"{path} has ReLU after convolutions, and {chosen} after dense layers; a Conv has one activation. "
                "Expected a CnnPolicy with activation_fn=torch.nn.ReLU, or net_arch=[]."
            )
        chosen = "relu"
    moments = _moments(vec_normalize or next((path.with_name(n) for n in BESIDE if path.with_name(n).exists()), None))
    return ImportedModel(
        source=str(path), library=LIBRARY, algorithm=algorithm, activation=chosen, networks=parts.networks,
        numbers=numbers, hyperparameters=fields, environments=data.get("n_envs"),
        observation_space=_space(data.get("observation_space")), action_space=_space(data.get("action_space")),
        notes=tuple(filter(None, (f"activation {chosen}: {known}.", parts.note, unread, moments.pop("note")))),
        **moments,
    )  # fmt: skip


def _members(path: Path) -> dict[str, bytes]:
    """What is read of the zip."""
    try:
        with zipfile.ZipFile(path) as file:
            sizes = {info.filename: info.file_size for info in file.infolist()}
            if missing := [name for name in LARGEST if name not in sizes]:
                raise CheckpointError(f"{path} holds no {missing[0]}. Expected {EXPECTED}, as model.save writes it.")
            for name, most in LARGEST.items():
                if sizes[name] > most:
                    raise CheckpointError(f"{name} in {path} has {sizes[name]:,} bytes; expected at most {most:,}.")
            return {name: file.read(name) for name in LARGEST}
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as problem:
        if isinstance(problem, CheckpointError):
            raise
        raise CheckpointError(f"{path} cannot be read: {problem}. Expected {EXPECTED}; copy it again.") from problem


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _refuse_what_differs(path: Path, data: dict[str, Any]) -> None:
    """Raise ConfigError for what its policies can have, and those here cannot."""
    given = _table(data.get("policy_kwargs"))
    extractor = str(given.get("features_extractor_class", "NatureCNN'>"))
    plain = re.search(r"\b(NatureCNN|FlattenExtractor)'>$", extractor)
    refused = {
        "use_sde = True (gSDE)": data.get("use_sde") is True,
        "normalize_images = False": str(given.get("normalize_images")) == "False",
        f"features_extractor_class = {extractor:.80}": plain is None,
    }
    if found := [name for name, there in refused.items() if there]:
        raise ConfigError(f"{path} was trained with {found[0]}, which cannot be imported. Expected {EXPECTED}.")


def _parts(tensors: NamedTensors, data: dict[str, Any]) -> tuple[str, _Parts]:
    """The algorithm, by the names of the layers (its class is in a pickle), and its parts."""
    if tensors.have("action_net.", "value_net."):
        return "ppo" if "n_epochs" in data else "a2c", _actor_and_critic(tensors)
    if tensors.have("q_net.q_net.", "q_net_target.q_net."):
        networks = {
            here: _network(tensors, there, ("q_net",)) for here, there in (("q", "q_net"), ("q_target", "q_net_target"))
        }
        return "dqn", _Parts(networks, {})
    if tensors.have("actor.log_std.", "critic.qf0."):
        actor = _network(tensors, "actor", ("latent_pi", "mu"))
        *hidden, mean = actor.dense
        last = Layer(*(np.concatenate(both) for both in zip(mean, tensors.layer("actor.log_std"), strict=True)))
        return "sac", _Parts({"actor": actor._replace(dense=(*hidden, last)), **_critics(tensors)}, {})
    if tensors.have("actor.mu.", "actor_target.mu.", "critic.qf0."):
        actors = {name: _network(tensors, name, ("mu",)) for name in ("actor", "actor_target")}
        critics = _critics(tensors)
        if len(critics["critic"]) > 2:
            raise tensors.error(f"it has {len(critics['critic'])} critics, and TD3 here has two")
        if len(critics["critic"]) == 2:
            return "td3", _Parts(actors | critics, {})
        return "ddpg", _Parts(actors | {name: own for name, (own,) in critics.items()}, {})
    raise tensors.error("its layers are those of another algorithm or policy")


def _features(tensors: NamedTensors, *names: str) -> Layers:
    """The features extractor of the first of these names that has layers; one that only flattens has none."""
    name = next((name for name in names if tensors.have(f"{name}.")), None)
    if name is None:
        return Layers((), ())
    return tensors.sequence(f"{name}.cnn")._replace(dense=tensors.sequence(f"{name}.linear").dense)


def _network(tensors: NamedTensors, name: str, rest: tuple[str, ...]) -> Layers:
    """A features extractor and what follows it, all below this name."""
    layers = _features(tensors, f"{name}.features_extractor")
    for part in rest:
        alone = tensors.have(f"{name}.{part}.weight")
        more = (tensors.layer(f"{name}.{part}"),) if alone else tensors.sequence(f"{name}.{part}").dense
        layers = layers._replace(dense=(*layers.dense, *more))
    return layers


def _critics(tensors: NamedTensors) -> dict[str, tuple[Layers, ...]]:
    """The ensemble of critics, and its targets."""
    found = {}
    for name in ("critic", "critic_target"):
        count = next(i for i in range(100) if not tensors.have(f"{name}.qf{i}."))
        found[name] = tuple(_network(tensors, name, (f"qf{i}",)).with_actions_first() for i in range(count))
    return found


def _actor_and_critic(tensors: NamedTensors) -> _Parts:
    """PPO and A2C. Layers that actor and critic share become layers of both."""
    networks = {}
    for part, own, layers, head in (
        (POLICY, "pi_features_extractor", "policy_net", "action_net"),
        ("model.critic", "vf_features_extractor", "value_net", "value_net"),
    ):
        features = _features(tensors, own, "features_extractor")
        shared, rest = (tensors.sequence(f"mlp_extractor.{name}").dense for name in ("shared_net", layers))
        networks[part] = features._replace(dense=(*features.dense, *shared, *rest, tensors.layer(head)))
    tensors.pass_over("features_extractor.")  # that of the actor, or of both, under another name
    actor, critic = networks.values()
    both = actor.convolutions and np.array_equal(actor.convolutions[0].weight, critic.convolutions[0].weight)
    note = "Layers that actor and critic share are layers of both here, and are trained apart from now on."
    numbers = {LOG_STD: tensors.read("log_std")} if tensors.have("log_std") else {}
    return _Parts(networks, numbers, note if both or tensors.have("mlp_extractor.shared_net.") else "")


def _hyperparameters(algorithm: str, data: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Fields of the config, and what could not be read."""
    found, unread = {}, []
    for name, here in HYPERPARAMETERS[algorithm].items():
        value = data.get(name)
        if isinstance(value, dict):
            value = _constant(data["lr_schedule"] if name == "learning_rate" and "lr_schedule" in data else value)
            unread += [name] if value is None else []
        if type(value) in (int, float, bool):
            found[here] = value
    if algorithm == "dqn":
        found |= {"double": False, "train_every": TRAIN_FREQ, "gradient_steps": 1}
        if type(interval := data.get("target_update_interval")) is int:
            found["target_update_every"] = max(1, interval // TRAIN_FREQ)
    elif algorithm in ("td3", "ddpg"):
        found["random_steps"] = 0
    elif algorithm == "a2c" and "RMSprop'" in str(_table(data.get("policy_kwargs")).get("optimizer_class")):
        found["optimizer"] = RMSProp(0.99, 1e-10)  # its epsilon of 1e-5 is outside of the root
    return found, f"{', '.join(unread)}: functions, which are not read; the defaults apply." if unread else ""


def _constant(schedule: Any) -> float | None:
    """The number that a constant schedule is printed with; None for others."""
    match = re.fullmatch(r"ConstantSchedule\(val=([-+.\de]{1,30})\)", str(_table(schedule).get("value_schedule")))
    try:
        return float(match[1]) if match else None
    except ValueError:
        return None


def _temperature(where: str, variables: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The learned log of the entropy temperature, or the fixed one."""
    for name in ("log_ent_coef", "ent_coef_tensor"):
        value = _table(variables).get(name)
        if isinstance(value, np.ndarray) and value.size == 1 and np.isfinite(value).all():
            if name == "log_ent_coef":
                return {"temperature.value": value.reshape(())}, {}
            return {}, {"learn_temperature": False, "temperature": float(value.reshape(()))}
    raise CheckpointError(f"{where} holds neither log_ent_coef nor ent_coef_tensor, a number; expected one of them.")


def _space(saved: Any) -> Space | None:
    """A Box or Discrete space by its printed attributes; None for others, and where NumPy printed only a part."""
    kind = str(_table(saved).get(":type:"))
    try:
        if "Discrete'" in kind and "Multi" not in kind:
            return Discrete(int(saved["n"]), start=int(saved.get("start", 0)))
        if "Box'" in kind:
            shape, dtype = tuple(saved["_shape"]), np.dtype(str(saved["dtype"]))
            low, high = (np.broadcast_to(_printed(saved, end, shape), shape).astype(dtype) for end in ("low", "high"))
            return Box(low, high, shape, dtype.type)
    except (ValueError, TypeError, KeyError, AssertionError, OverflowError):
        return None
    return None


def _printed(saved: dict[str, Any], end: str, shape: tuple[int, ...]) -> np.ndarray:
    found = np.array(re.sub(r"[\[\]]", " ", str(saved.get(f"{end}_repr") or saved[end])).split(), np.float64)
    return found if found.size == 1 else found.reshape(shape)


def _moments(path: Path | None) -> dict[str, Any]:
    """The moments in a file of VecNormalize, as arguments of `ImportedModel`, and a note."""
    if path is None:
        return {
            "note": "No vec_normalize.pkl beside it: observations are taken as they are (--vec-normalize names one)."
        }
    saved = read_pickled(path)
    try:
        state = saved.state
        clip, on = float(state["clip_obs"]), (state["norm_obs"], state["norm_reward"])
        found = {
            "observations": _running(state["obs_rms"], state["epsilon"]) if on[0] else None,
            "returns": _running(state["ret_rms"], state["epsilon"]) if on[1] else None,
        }
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise CheckpointError(
            f"{path} holds no moments of one Box: {problem!r:.200}. Expected what VecNormalize.save writes."
        ) from problem
    if on[0] and clip != CLIP:
        raise ConfigError(f"{path} clips observations at {clip}; expected {CLIP}, at which they are clipped here.")
    return {**found, "note": f"Observations and rewards are normalised as in {path}."}


def _running(saved: Any, epsilon: Any) -> Moments:
    if not isinstance(saved, Record):
        raise ValueError(f"a {type(saved).__name__}")
    count, mean, variance = (array_of(saved.state[name]) for name in ("count", "mean", "var"))
    if (
        mean.shape != variance.shape
        or not np.isfinite([*mean.flat, *variance.flat, count]).all()
        or (variance < 0).any()
    ):
        raise ValueError("moments that are no numbers")
    variance = np.maximum(variance + (float(epsilon) - EPSILON), 0.0)  # for the same scale
    return Moments(float(count), *(x if x.shape else float(x) for x in (mean, variance)))
