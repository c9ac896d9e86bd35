"""Files as Stable-Baselines3 writes them, made from those of models/ with other members, layers or attributes."""

import io
import json
import zipfile
from pathlib import Path

import torch
import torch.nn.functional as F

MODELS = Path(__file__).parent / "models"


def members(name):
    with zipfile.ZipFile(MODELS / name / "model.zip") as file:
        return {each: file.read(each) for each in file.namelist()}


def rewritten(folder, name, data=None, tensors=None, **changed):
    """The golden model of this name in a new file: with some attributes, tensors or members changed, None removes."""
    held = members(name)
    if data is not None:
        held["data"] = json.dumps(without(json.loads(held["data"]) | data)).encode()
    if tensors is not None:
        loaded = torch.load(io.BytesIO(held["policy.pth"]), weights_only=True)
        held["policy.pth"] = saved(without(loaded | tensors))
    held = without(held | {each.replace("__", ".").strip("."): content for each, content in changed.items()})
    path = folder / f"{name}.zip"
    with zipfile.ZipFile(path, "w") as file:
        for each, content in held.items():
            file.writestr(each, content)
    return path


def without(table):
    return {name: value for name, value in table.items() if value is not None}


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def layer(generator, *shape):
    size = torch.tensor(shape[1:]).prod().item() ** -0.5
    return torch.randn(shape, generator=generator) * 1.5 * size, torch.randn(shape[0], generator=generator) * 0.1


def nature_cnn(name, generator, features, flat):
    """The layers of a NatureCNN by their names."""
    shapes = {"cnn.0": (32, 3, 8, 8), "cnn.2": (64, 32, 4, 4), "cnn.4": (64, 64, 3, 3), "linear.0": (features, flat)}
    layers = {f"{name}.{place}": layer(generator, *shape) for place, shape in shapes.items()}
    return named(layers)


def named(layers):
    return {
        f"{name}.{part}": x for name, both in layers.items() for part, x in zip(("weight", "bias"), both, strict=True)
    }


def features_of(tensors, name, images):
    """What a NatureCNN makes of images [N, height, width, channels]."""
    x = torch.as_tensor(images).permute(0, 3, 1, 2).float() / 255
    for place, stride in ((0, 4), (2, 2), (4, 1)):
        x = F.relu(F.conv2d(x, tensors[f"{name}.cnn.{place}.weight"], tensors[f"{name}.cnn.{place}.bias"], stride))
    return F.relu(dense(tensors, f"{name}.linear.0", x.flatten(1)))


def dense(tensors, name, x):
    return F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])
