"""Pretrained causal language models as networks of agents that learn from whole games of tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from etude.base import checks
from etude.base.errors import ConfigError, needing
from etude.language.tokens import HuggingFace

DTYPES = ("float32", "bfloat16", "float16")
ON_HUB = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*", re.ASCII)  # names of models there; anything else is a path


@dataclass(frozen=True)
class Pretrained:
    """A causal model of `transformers` as the network of an agent that learns from whole games, such as `bc`: on the
    engine torch, with the extra `llm`.

    Its own weights stay as they are. A run trains and saves low-rank adapters of them (LoRA: Hu et al. 2021,
    arXiv:2106.09685), of `peft`, and heads for outputs that are no logits. Weights are read from safetensors, and no
    code that comes with a model is executed.

    model: a folder that `save_pretrained` has written, or the name of a model on Hugging Face's hub.
    tokenizer: of the environment, `TokenEnvironment(env, pretrained.tokenizer)`; None: that of the model, in which the
        model's end of text ends what the agent says.
    lora: rank of the adapters, or a dict of arguments of `peft.LoraConfig`.
    dtype: of the model's own weights, and what it computes in: float32, bfloat16 or float16. Adapters are float32.
    revision: of a model on the hub; None: the newest.
    """

    model: str
    tokenizer: Any = None  # a `Tokenizer`
    lora: int | Mapping[str, Any] = 8
    dtype: str = "float32"
    revision: str | None = None

    def __post_init__(self) -> None:
        checks.one_of(self, "dtype", DTYPES)
        if not isinstance(self.lora, Mapping):
            checks.counts(self, "lora")
        is_path = isinstance(self.model, Path) or not ON_HUB.fullmatch(str(self.model))
        object.__setattr__(self, "model", str(self.model))
        if is_path and not Path(self.model).is_dir():
            raise ConfigError(
                f"Pretrained: there is no folder {self.model!r}. Give one that save_pretrained has written, or a name "
                "on Hugging Face's hub, ORGANISATION/MODEL."
            )
        if self.tokenizer is None:
            path = self.file("tokenizer_config.json")
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
            except (UnicodeDecodeError, json.JSONDecodeError) as problem:
                raise ConfigError(f"Pretrained: {path} is damaged: {problem}.") from problem
            end = (found if isinstance(found, dict) else {}).get("eos_token")
            end = end.get("content") if isinstance(end, dict) else end
            if not isinstance(end, str):
                raise ConfigError(
                    f"Pretrained: tokenizer_config.json of {self.model} has no eos_token. Give a tokenizer: "
                    "tokenizer=HuggingFace('tokenizer.json', end=...)."
                )
            object.__setattr__(self, "tokenizer", HuggingFace(self.file("tokenizer.json"), end))

    def __call__(self) -> NoReturn:
        """Raises ConfigError: what makes networks of single observations takes functions, and this is none."""
        raise ConfigError(
            f"network is Pretrained({self.model!r}), which reads whole games of tokens; algorithms that do are bc and "
            "the others on the page about language. Give this one a spec, such as Mlp()."
        )

    def file(self, name: str) -> Path:
        """The path of a file of the model, downloaded where it is on the hub."""
        if Path(self.model).is_dir():
            path = Path(self.model, name)
            if not path.is_file():
                raise ConfigError(f"Pretrained: {self.model} has no {name}; expected what save_pretrained writes.")
            return path
        with needing("language.Pretrained", "llm"):
            import huggingface_hub
        try:
            return Path(huggingface_hub.hf_hub_download(self.model, name, revision=self.revision))
        except Exception as problem:  # of many kinds: of the network, of names, of rights
            raise ConfigError(
                f"Pretrained: there is no folder {self.model!r}, and {name} of this model was not to be had from the "
                f"hub: {problem!s:.300}"
            ) from problem
