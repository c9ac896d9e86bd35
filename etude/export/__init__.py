"""Trained policies as files that need no etude."""

from __future__ import annotations

import importlib
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from etude.base.errors import ConfigError


class Format(NamedTuple):
    """A format that runs are exported to.

    module: has `write(run, path)`, which writes the files or raises ConfigError. suffix: of the file; "": it is a
    folder. about: what it is, in a few words.
    """

    module: str
    suffix: str
    about: str
    then: str = ""


FORMATS = {
    "numpy": Format("etude.export.numpy_folder", "", "a folder with act.py, which needs NumPy alone"),
    "onnx": Format("etude.export.onnx_file", ".onnx", "a model of ONNX, opset 17, checked by onnxruntime"),
    "torch": Format("etude.export.torch_file", ".pt2", "a program of torch.export"),
    "safetensors": Format("etude.export.weights_file", ".safetensors", "the weights by name, with the config"),
    "hub": Format("etude.export.hub_folder", "", "a folder for Hugging Face's hub", "hf upload OWNER/NAME {path}"),
}


def export(run: Any, path: str | PathLike[str] | None = None, to: str = "numpy") -> Path:
    """Write the policy of a run, its best actions, in a format that needs no etude; returns the path.

    path: the file or the folder; what it holds of an earlier export is replaced. None: named after the run, here. Of
        several agents it is a folder with an export for each whose policy is a network.
    to: a name of `export.FORMATS`.
    Raises ConfigError for a policy that the format cannot hold, and where nothing can be written.
    """
    if to not in FORMATS:
        raise ConfigError(f"to = {to!r}; expected one of {', '.join(FORMATS)}.")
    found = FORMATS[to]
    if path is None:
        name = f"{run.algorithm}-{run.step}" if run.directory is None else run.directory.path.absolute().name
        path = f"{name}{found.suffix or f'-{to}'}"
    try:
        importlib.import_module(found.module).write(run, Path(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}. Name another one.") from error
    return Path(path)
