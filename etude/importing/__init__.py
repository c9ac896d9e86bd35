"""Models of other libraries as runs: those of Stable-Baselines3, and state dicts of CleanRL. Nothing in their files is
executed."""

from __future__ import annotations

from pathlib import Path

from etude.base.errors import ConfigError
from etude.importing import cleanrl, stable_baselines3
from etude.importing.model import ImportedModel
from etude.networks.specs import ACTIVATIONS

__all__ = ["ImportedModel", "read_model"]


def read_model(
    path: str | Path, *, activation: str | None = None, vec_normalize: str | Path | None = None
) -> ImportedModel:
    """The model in a file: `read_model("model.zip").run("CartPole-v1", run_dir="runs/imported")` is a run that acts as
    it does, and can be trained.

    activation: after each hidden layer, where the file does not tell; None: the default of the library.
    vec_normalize: what `VecNormalize.save` of Stable-Baselines3 wrote; None: vec_normalize.pkl beside the model, if
        there is one.
    Raises CheckpointError for a damaged or forged file, ConfigError for what etude has not.
    """
    if activation is not None and activation not in ACTIVATIONS:
        raise ConfigError(f"activation = {activation!r}; expected one of {', '.join(ACTIVATIONS)} (--activation).")
    path = Path(path)
    if stable_baselines3.wrote(path):
        return stable_baselines3.read(path, activation, None if vec_normalize is None else Path(vec_normalize))
    if vec_normalize is not None:
        raise ConfigError(f"vec_normalize is for models of Stable-Baselines3, and {path} is none (--vec-normalize).")
    return cleanrl.read(path, activation)
