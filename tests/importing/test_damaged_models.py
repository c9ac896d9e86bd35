"""Files that are forged, damaged or of other models: one clear error, and nothing in them is executed."""

import io
import pickle
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from saved_models import MODELS, members, rewritten, saved  # noqa: E402

from etude.base.errors import CheckpointError, ConfigError, EtudeError, NetworkError  # noqa: E402
from etude.cli import main  # noqa: E402
from etude.importing import read_model  # noqa: E402
from etude.importing.pickled_arrays import array_of, read_pickled  # noqa: E402

MOMENTS = MODELS / "ppo" / "vec_normalize.pkl"


class Payload:
    """What, unpickled, makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def payload(tmp_path):
    made = tmp_path / "executed"
    yield pickle.dumps(Payload(made))
    assert not made.exists()


def test_pickles_in_a_model_are_not_read(tmp_path, payload):
    import base64

    poison = {":type:": "<class 'function'>", ":serialized:": base64.b64encode(payload).decode()}
    names = ("policy_class", "lr_schedule", "clip_range", "rollout_buffer_class")
    assert read_model(rewritten(tmp_path, "ppo", dict.fromkeys(names, poison))).algorithm == "ppo"
    path = rewritten(tmp_path, "ppo", {"learning_rate": poison, "lr_schedule": poison})
    assert any("learning_rate" in note for note in read_model(path).notes)


def test_a_pickle_in_the_place_of_tensors_is_refused(tmp_path, payload):
    path = rewritten(tmp_path, "ppo", policy__pth=payload)
    with pytest.raises(CheckpointError, match=r"policy.pth in .*was not read: .*nothing in it was executed"):
        read_model(path)
    forged = io.BytesIO()
    with zipfile.ZipFile(forged, "w") as file:
        file.writestr("archive/data.pkl", payload)
        file.writestr("archive/version", "3\n")
    with pytest.raises(CheckpointError, match="was not read"):
        read_model(rewritten(tmp_path, "ppo", policy__pth=forged.getvalue()))
    (tmp_path / "agent.cleanrl_model").write_bytes(payload)
    with pytest.raises(CheckpointError, match="was not read"):
        read_model(tmp_path / "agent.cleanrl_model")


def test_a_pickle_in_the_place_of_moments_is_refused_by_what_it_names(tmp_path, payload):
    path = tmp_path / "vec_normalize.pkl"
    path.write_bytes(payload)
    with pytest.raises(CheckpointError, match="it names 'pathlib.*Path.touch'|it names 'builtins.getattr'"):
        read_model(MODELS / "ppo" / "model.zip", vec_normalize=path)
    for text, reason in (
        (b"cos\nsystem\n(S'echo'\ntR.", "it names 'os.system'"),
        (b"(S'echo'\nios\nsystem\n.", "it has the instruction STRING"),
        (b"(ios\nsystem\n.", "it has the instruction INST"),
        (b"\x80\x04\x82\x01.", "it has the instruction EXT1"),
        (b"Pid\n.", "it has the instruction PERSID"),
        (b"cnumpy\nndarray\n(tR]b" + b".", None),
        (b"]}b.", "it sets the state of a list"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\x00\x00\x00\x00.", "expected 4294967295 bytes"),
        (b"", "pickle exhausted"),
    ):
        path.write_bytes(text)
        with pytest.raises(CheckpointError, match=reason):
            read_model(MODELS / "ppo" / "model.zip", vec_normalize=path)


def test_moments_that_are_cut_or_changed_anywhere_are_read_or_refused(tmp_path):
    whole, draw = MOMENTS.read_bytes(), random.Random(0)
    path = tmp_path / "vec_normalize.pkl"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read_pickled(path)
    for _ in range(300):
        changed = bytearray(whole)
        changed[draw.randrange(len(whole))] = draw.randrange(256)
        path.write_bytes(changed)
        try:
            read_model(MODELS / "ppo" / "model.zip", vec_normalize=path)
        except EtudeError as error:
            assert str(path) in str(error)


def test_arrays_are_read_as_numpy_reads_them(tmp_path):
    for value in (
        np.arange(6.0).reshape(2, 3),
        np.float64(2.5),
        np.array([1, 2], np.int32),
        np.zeros(0, np.float32),
        3,
    ):
        (tmp_path / "array").write_bytes(pickle.dumps(value, protocol=4))
        np.testing.assert_array_equal(array_of(read_pickled(tmp_path / "array")), value)
        assert array_of(read_pickled(tmp_path / "array")).shape == np.shape(value)


NORM = {f"mlp_extractor.policy_net.1.{part}": torch.ones(6) for part in ("weight", "bias")}
CHANGED = {
    "gSDE": ({"data": {"use_sde": True}}, ConfigError, r"use_sde = True \(gSDE\)"),
    "an extractor": (
        {"data": {"policy_kwargs": {"features_extractor_class": "<class 'mine.Net'>"}}},
        ConfigError,
        "features_extractor_class = <class 'mine.Net'>",
    ),
    "an activation": (
        {"data": {"policy_kwargs": {"activation_fn": "<class 'torch.nn.modules.activation.LeakyReLU'>"}}},
        ConfigError,
        "activation_fn = LeakyReLU.*expected one of Tanh, ReLU, ELU, SiLU",
    ),
    "images as they are": ({"data": {"policy_kwargs": {"normalize_images": False}}}, ConfigError, "normalize_images"),
    "normalised layers": ({"tensors": NORM}, CheckpointError, "mlp_extractor.policy_net.1 has weights of shape"),
    "another layer": ({"tensors": {"lstm.weight": torch.ones(2, 2)}}, CheckpointError, "it has lstm.weight, which"),
    "a missing layer": ({"tensors": {"value_net.bias": None}}, CheckpointError, "there is no value_net.bias"),
    "another algorithm": (
        {"tensors": {"action_net.weight": None, "action_net.bias": None}},
        CheckpointError,
        "those of another algorithm.*Expected PPO, A2C, DQN",
    ),
    "numbers that are none": (
        {"tensors": {"value_net.bias": torch.tensor([np.nan])}},
        CheckpointError,
        "value_net.bias",
    ),
    "no tensors": ({"policy__pth": saved([1, 2])}, CheckpointError, "no tensors by name, but a list"),
    "no tensors at all": ({"policy__pth": None}, CheckpointError, "holds no policy.pth"),
    "broken JSON": ({"data__": b"{"}, CheckpointError, "data in .* is no JSON"),
    "deep JSON": ({"data__": b"[" * 200_000}, CheckpointError, "nested too deeply"),
    "a list": ({"data__": b"[]"}, CheckpointError, "holds no model"),
    "no environments": ({"data": {"n_envs": -1}}, CheckpointError, "n_envs = -1"),
    "a hyperparameter": ({"data": {"gamma": 7.0}}, ConfigError, "gamma"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_what_is_damaged_or_cannot_be_imported_is_one_clear_error(what, tmp_path):
    changes, error, match = CHANGED[what]
    with pytest.raises(error, match=match):
        _ = read_model(rewritten(tmp_path, "ppo", **changes)).config


def test_another_environment_is_refused_with_both_spaces(tmp_path):
    model = read_model(MODELS / "sac" / "model.zip")
    with pytest.raises(NetworkError, match=r"observations are Box.*\(3,\).* environment's Box.*\(2,\).*wrappers"):
        model.run("MountainCarContinuous-v0", engine="torch")
    bounded = read_model(rewritten(tmp_path, "sac", {"observation_space": None}))
    with pytest.raises(NetworkError, match=r"actions are Box\(-2.0, 2.0, .* environment's Box\(-1.0, 1.0, "):
        bounded.run("MountainCarContinuous-v0", engine="torch")
    unknown = read_model(rewritten(tmp_path, "sac", {"observation_space": None, "action_space": None}))
    with pytest.raises(NetworkError, match=r"actor.dense0.weight has shape \(3, 6\) in the file, and \(2, 6\)"):
        unknown.run("MountainCarContinuous-v0", engine="torch")


def test_moments_that_are_clipped_elsewhere_and_those_of_a_dict_are_refused(tmp_path):
    whole = MOMENTS.read_bytes()
    path = tmp_path / "vec_normalize.pkl"
    for old, new, error, match in (
        (b"clip_obs\x94G\x40\x24", b"clip_obs\x94G\x40\x14", ConfigError, "clips observations at 5.0; expected 10"),
        (b"obs_rms", b"obs_rm2", CheckpointError, "holds no moments of one Box: KeyError"),
    ):
        assert whole.count(old) == 1
        path.write_bytes(whole.replace(old, new))
        with pytest.raises(error, match=match):
            read_model(MODELS / "ppo" / "model.zip", vec_normalize=path)


def test_cut_files_are_one_error_of_the_command(tmp_path, capsys):
    whole = (MODELS / "ppo" / "model.zip").read_bytes()
    for length in (0, 100, len(whole) // 2, len(whole) - 30):
        (tmp_path / "model.zip").write_bytes(whole[:length])
        assert main(["import", str(tmp_path / "model.zip"), "--env", "Pendulum-v1"]) == 2
        assert "cannot be read" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "none.zip"), "--env", "Pendulum-v1"]) == 2
    assert main(["import", str(rewritten(tmp_path, "ppo", {"action_space": None}))]) == 2
    assert "holds no spaces that can be read: say what it was trained on" in capsys.readouterr().err
    assert (
        main(["import", str(MODELS / "ppo" / "model.zip"), "--env", "CartPole-v1", "--run-dir", str(tmp_path / "r")])
        == 2
    )
    assert not (tmp_path / "r").exists()


def test_a_member_that_claims_to_be_huge_is_refused_before_it_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in (members("ppo") | {"pytorch_variables.pth": b"0" * 2**21}).items():
            file.writestr(name, content)
    with pytest.raises(CheckpointError, match=r"pytorch_variables.pth .* has 2,097,152 bytes"):
        read_model(tmp_path / "model.zip")
