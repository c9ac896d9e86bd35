"""A policy of every algorithm, and of every distribution, as programs of NumPy and of ONNX."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from cases import CASES

from etude.base.errors import ConfigError
from etude.base.spaces import Dict, Hybrid
from etude.engines.numpy import NumpyEngine
from etude.envs.adapter import SpaceConversion
from etude.export import onnx_file
from etude.export.numpy_folder import PythonProgram
from etude.export.policy import ExportedPolicy

SOME = {case.algorithm: case for case in CASES}
SOME |= {case.name: case for case in CASES if re.search("mixture|conditional|embedding|gsde", case.name)}


def conversion(spaces):
    action = spaces.action
    if isinstance(action, Hybrid):
        action = Dict({"numbers": action.numbers, "choices": action.choices})
    return SpaceConversion.of(spaces.observation, action)


@pytest.mark.parametrize("case", SOME.values(), ids=lambda case: case.name)
def test_programs_compute_what_the_policy_does(case, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(onnx_file, "CHECKED", 100)
    engine, each = NumpyEngine(case.agent(), case.spaces), case.spaces.agents or {"": case.spaces}
    translation = SimpleNamespace(conversions={n: conversion(own) for n, own in each.items()}, frames=1, frame=None)
    for name in each:
        policy = ExportedPolicy(engine, name, translation)
        program = PythonProgram(policy.trace())
        read = 'read_safetensors(Path(__file__).with_name("weights.safetensors").read_bytes())[0]'
        module = {"constants": program.constants}
        exec(program.source().replace(read, "constants"), module)
        inputs = policy.examples(11, np.random.default_rng(0))
        found, acted = module["program"](inputs), policy.act(inputs)
        for output, expected in policy(inputs, policy.weights()).items():
            assert np.array_equal(acted[output], expected)
            if engine.layout.agent.reads_tokens:  # whole windows in the place of what is new beside what is kept
                assert np.allclose(found[output], expected, atol=1e-5)
            else:
                assert np.array_equal(found[output], expected)
            assert found[output].dtype == expected.dtype
        if case.algorithm in ("pets", "td_mpc2"):  # rounding decides which plans are among the best
            with pytest.raises(ConfigError, match="--to onnx"):
                onnx_file.OnnxModel(policy, "")
        else:
            onnx_file.check(policy, onnx_file.OnnxModel(policy, "").bytes)
