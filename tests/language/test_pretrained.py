"""Causal models of transformers as networks: random ones, made from configs here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import safetensors.numpy
from gymnasium.spaces import Text

import etude
from etude.base.errors import ConfigError, NetworkError
from etude.language import Arithmetic, Characters, HuggingFace, Pretrained, TokenEnvironment, Wordle

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

LETTERS = Characters("abcdefghijklmnopqrstuvwxyz BYG-?\n")
SMALL = {"vocab_size": 40, "bos_token_id": 50_000, "eos_token_id": 1}
KINDS = {
    "gpt2": lambda **more: transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=200, **more),
    "llama": lambda **more: transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=200, **more,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Where a random model of each kind is saved."""
    found = {}
    for name, config in KINDS.items():
        torch.manual_seed(0)
        found[name] = str(tmp_path_factory.mktemp(name))
        transformers.AutoModelForCausalLM.from_config(config(**SMALL)).save_pretrained(found[name])
    return found


def wordle():
    return TokenEnvironment(Wordle(5, list_words=True), LETTERS)


@pytest.fixture(scope="module")
def games():
    return etude.record(wordle, 16, seed=1)


def loss_of(run):
    return [record["train/actor"] for record in run.history if "train/actor" in record][-1]


def cloned(network, games, env=wordle, **more):
    given = {"batch_size": 8, "gradient_steps": 5, "learning_rate": 1e-2, "seed": 0, **more}
    return etude.Run("bc", env, data=games, network=network, **given)


class Talk(gymnasium.Env):
    """Says texts of any length, and ends by lot."""

    action_space, observation_space = Text(4, charset="ab"), Text(6, min_length=0, charset="abc")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.step("")[0], {}

    def step(self, action):
        text = "c" * self.np_random.integers(7)
        return text, 1.0, bool(self.np_random.random() < 0.1), False, {}


def talk():
    return TokenEnvironment(Talk(), LETTERS, context=120, slide=True)


@pytest.mark.long_but("gpt2")
@pytest.mark.parametrize("kind", KINDS)
def test_acting_with_the_models_own_cache_equals_the_whole_game(folders, kind):
    """Rows whose texts have other lengths, that begin anew, and that are asked for twice, of weights that change."""
    run = cloned(Pretrained(folders[kind], LETTERS, lora=4), etude.record(talk, 2), talk)
    network, rng, cached, widest = run.engine._bound.actor["policy"], np.random.default_rng(0), 0, 0
    envs = [talk() for _ in range(3)]
    seen = [env.reset(seed=i) for i, env in enumerate(envs)]
    for step in range(60):
        window = torch.as_tensor(np.stack([observation for observation, _ in seen]))
        found, _ = network({"observation": window, "action_mask": None})
        with torch.no_grad():
            whole = network.whole(window[:, :-1].long())[torch.arange(3), window[:, -1].long()]
        assert found.shape == (3, LETTERS.size) and (found - whole).abs().max() < 1e-5
        held = network._kept.mask.sum(1).numpy()
        cached, widest = cached + (network._kept.mask.shape[1] > held.max()), max(widest, int(np.ptp(held)))
        if step == 30:
            run.train(5)
        if step % 10:  # else the same is asked for again
            actions = [rng.choice(np.flatnonzero(info["action_mask"])) for _, info in seen]
            said = [env.step(action) for env, action in zip(envs, actions, strict=True)]
            seen = [env.reset() if each[2] else (each[0], each[4]) for env, each in zip(envs, said, strict=True)]
    assert cached > 20 and widest > 20


@pytest.mark.long_but("llama")
@pytest.mark.parametrize("kind", KINDS)
def test_bc_trains_adapters_alone(folders, games, kind, tmp_path):
    pretrained = Pretrained(folders[kind], LETTERS, lora={"r": 2, "lora_alpha": 8})
    with cloned(pretrained, games) as run:
        assert run.engine.name == "torch" and all("lora_" in name for name in run.engine.weights())
        with pytest.raises(ConfigError, match="pretrained model; use the engine .* to='safetensors'"):
            run.export(tmp_path / "policy")
        network = run.engine._bound.actor["policy"]
        before = {name: value.clone() for name, value in network._model.state_dict().items()}
        first = run.train(5) and loss_of(run)
        assert run.train(95) and loss_of(run) < first - 0.01
        assert all(torch.equal(before[name], value) for name, value in network._model.state_dict().items())
        assert all(np.abs(value).max() > 0 for name, value in run.engine.weights().items() if "lora_B" in name)
        run.save(tmp_path / "run.etude")
        played = etude.record(wordle, 2, run=run, seed=5)
    with etude.load(tmp_path / "run.etude", env=wordle, config=run.config) as again:
        for one, other in zip(played.episodes, etude.record(wordle, 2, run=again, seed=5).episodes, strict=True):
            assert np.array_equal(one.action, other.action)
        again.train(5)
    with pytest.raises(ConfigError, match="network was made by Pretrained, which is not in its checkpoints"):
        etude.load(tmp_path / "run.etude", env=wordle)


@pytest.mark.parametrize("kind", KINDS)
def test_peft_loads_the_adapters_of_a_run(folders, games, kind, tmp_path):
    with cloned(Pretrained(folders[kind], LETTERS, lora=2), games) as run:
        run.train(5)
        network, own = run.engine._bound.actor["policy"], "actor.policy."
        found = {name.removeprefix(own).replace(".default", ""): x for name, x in run.engine.weights().items()}
    peft.LoraConfig(task_type="CAUSAL_LM", r=2).save_pretrained(tmp_path)
    safetensors.numpy.save_file(found, tmp_path / "adapter_model.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(folders[kind])
    plain, tokens = peft.PeftModel.from_pretrained(model, tmp_path).eval(), torch.arange(9)[None]
    with torch.no_grad():
        begun = torch.cat([torch.full((1, 1), network._begin), tokens], 1)
        theirs = plain(input_ids=begun).logits[..., : LETTERS.size]
        assert (network.whole(tokens) - theirs).abs().max() < 1e-5
        with plain.disable_adapter():
            assert (plain(input_ids=begun).logits[..., : LETTERS.size] - theirs).abs().max() > 1e-3


def test_a_checkpoint_has_no_weights_of_the_model(tmp_path, games):
    transformers.AutoModelForCausalLM.from_config(
        transformers.GPT2Config(n_layer=2, n_head=4, n_embd=128, n_positions=100, **{**SMALL, "vocab_size": 20_000})
    ).save_pretrained(tmp_path)
    with cloned(Pretrained(tmp_path, LETTERS, lora=2), games) as run:
        run.train(5)
        run.save(tmp_path / "run.etude")
    size = (tmp_path / "run.etude").stat().st_size
    assert size < 0.02 * (tmp_path / "model.safetensors").stat().st_size


def test_bfloat16(folders, games):
    with cloned(Pretrained(folders["llama"], LETTERS, dtype="bfloat16"), games) as run:
        run.train(30)
        network = run.engine._bound.actor["policy"]
        assert {value.dtype for value in network._model.get_base_model().parameters() if not value.requires_grad} == {
            torch.bfloat16
        }
        assert all(value.dtype == np.float32 for value in run.engine.weights().values())
        assert np.isfinite(loss_of(run))
        assert run.evaluate(2).mean <= 0


def test_nothing_in_a_folder_is_executed(folders, games, tmp_path):
    """Neither code of a model's own, nor weights that are no safetensors."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "modeling.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    auto = {name: f"modeling.{name}" for name in ("AutoConfig", "AutoModelForCausalLM")}
    (code / "config.json").write_text(json.dumps({"model_type": "of_mine", "auto_map": auto}))
    with pytest.raises(ConfigError, match="was not loaded: "):
        cloned(Pretrained(code, LETTERS), games)
    pickled = tmp_path / "pickled"
    model = transformers.AutoModelForCausalLM.from_pretrained(folders["gpt2"])
    model.config.save_pretrained(pickled)
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="was not loaded: .*safetensors"):
        cloned(Pretrained(pickled, LETTERS), games)
    assert not (tmp_path / "executed").exists()


def test_what_does_not_fit_is_one_clear_error(folders, games, tmp_path, monkeypatch):
    model = folders["gpt2"]
    for wrong, message in (
        ({"model": "/nowhere"}, "there is no folder '/nowhere'. Give one that save_pretrained has written"),
        ({"model": str(tmp_path)}, "has no config.json"),
        ({"dtype": "int8"}, "dtype = 'int8'; expected 'float32' or"),
        ({"lora": 0}, "lora = 0"),
        ({"lora": {"target_modules": ["nothing"]}}, "was not loaded: Target modules"),
        ({"lora": {"rank": 3}}, "was not loaded: .*rank"),
    ):
        with pytest.raises(ConfigError, match=message):
            cloned(Pretrained(**{"model": model, "tokenizer": LETTERS, **wrong}), games)
    with pytest.raises(ConfigError, match="has no tokenizer_config.json"):
        Pretrained(model)
    for path in ("./nowhere", "../nowhere", "~/nowhere", "models/of/mine", "nowhere/", "C:\\nowhere", Path("no/where")):
        for tokenizer in (None, LETTERS):  # none of these asks the hub, which would be waited for
            with monkeypatch.context() as patch, pytest.raises(ConfigError, match="there is no folder"):
                patch.setitem(sys.modules, "huggingface_hub", None)
                Pretrained(path, tokenizer)
    with pytest.raises(NetworkError, match="are not those of the tokenizer of"):
        cloned(Pretrained(model, Characters(LETTERS.characters + "!")), games)
    many = Characters("".join(map(chr, range(32, 127))) + "\n")

    def other():
        return TokenEnvironment(Wordle(5), many)

    def long():
        return TokenEnvironment(Wordle(5), LETTERS, context=300)

    with pytest.raises(NetworkError, match=r"The tokenizer has 98 tokens, and .* has 40"):
        cloned(Pretrained(model, many), etude.record(other, 2), other)
    with pytest.raises(NetworkError, match=r"A game has up to 300 tokens, .* reads 200 at most"):
        cloned(Pretrained(model, LETTERS), etude.record(long, 2), long)
    with pytest.raises(ConfigError, match="which reads whole games of tokens"):
        etude.Run("dqn", wordle, network=Pretrained(model, LETTERS))
    with pytest.raises(ConfigError, match="with engine='torch' and compiled=False"):
        cloned(Pretrained(model, LETTERS), games, compiled=True)


def test_the_tokenizer_comes_with_the_model(folders, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    given = tokenizers.Tokenizer(tokenizers.models.BPE())
    given.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    given.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    given.train_from_iterator(["12+7=19"] * 9, trainer)
    given.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    size = given.get_vocab_size()
    model = transformers.AutoModelForCausalLM.from_config(KINDS["gpt2"](**{**SMALL, "vocab_size": size}))
    model.save_pretrained(tmp_path)
    pretrained = Pretrained(tmp_path)
    assert isinstance(pretrained.tokenizer, HuggingFace) and pretrained.tokenizer.special == {"end": 0}

    def env():
        return TokenEnvironment(Arithmetic(), pretrained.tokenizer, context=40, masked=False)

    games = etude.record(env, 4, seed=1)
    assert not isinstance(games.episodes[0].observation, dict)
    spoken = env()
    spoken.reset(seed=0)
    for token in pretrained.tokenizer.encode("é"):  # two, one for each byte
        spoken.step(token)
    assert spoken.render().endswith("=é")
    with cloned(pretrained, games, env) as run:
        run.train(5)
        assert "+" in run.watch()


def sums():
    return TokenEnvironment(Arithmetic(3), LETTERS_OF_SUMS, context=8, masked=False)


LETTERS_OF_SUMS = Characters("0123456789+=")


def test_algorithms_over_whole_games_take_it(folders, tmp_path):
    """A cloned policy is where the others start, and a reward model where RLHF takes its own from."""
    pretrained, games = Pretrained(folders["gpt2"], LETTERS_OF_SUMS, lora=2), etude.record(sums, 200, seed=1)
    recorded, played = {"data": games, "batch_size": 16, "gradient_steps": 3}, {"environments": 8}
    with cloned(pretrained, games, sums) as run:
        run.train(5)
        clone = run.engine.weights()
    scored = None
    for name, own in (
        ("ilql", {**recorded, "clone": False}),
        ("dpo", recorded),
        ("reward_model", recorded),
        ("grpo", {**played, "group_size": 4}),
        ("rlhf", played),
    ):
        start = {**clone, **(scored or {})}
        with etude.Run(name, sums, network=pretrained, start_from=start, seed=1, **own) as run:
            first, model = run.engine.weights(), run.engine.layout.parts["actor.policy"]._model
            assert sum(value.size for value in first.values()) < 0.4 * sum(x.numel() for x in model.parameters())
            run.train(3 if "data" in own else 60)
            last = run.engine.weights()
            changed = {each.split(".")[0] for each in first if not np.array_equal(first[each], last[each])}
            expected = {
                "ilql": {"critic", "critic_target"},
                "reward_model": {"reward_model"},
                "rlhf": {"actor", "critic"},
            }
            assert changed == expected.get(name, {"actor"})
            policy = {each: value for each, value in clone.items() if each in first}
            assert all(np.array_equal(first[each], value) for each, value in policy.items()) and policy
            same = {
                each: first[each.replace("actor", "reference")]
                for each in policy
                if name not in ("reward_model", "ilql")
            }
            assert all(np.array_equal(last[each.replace("actor", "reference")], same[each]) for each in same)
        if name == "reward_model":
            scored = {each: value for each, value in last.items() if each.startswith("reward_model")}
        elif name == "rlhf":
            assert all(np.array_equal(last[each], value) for each, value in scored.items())
