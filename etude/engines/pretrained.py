"""Causal models of `transformers`, with adapters of `peft`, as networks over tokens; both are imported here alone."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch

from etude.base.errors import ConfigError, MissingExtra, NetworkError
from etude.base.spaces import Space
from etude.base.trees import Tree
from etude.language.environment import vocabulary_of
from etude.language.pretrained import Pretrained
from etude.networks.encoding import Path, at
from etude.networks.maker import WrapModel
from etude.networks.network import Part
from etude.networks.tokens import tokens_of

HEAD = "head."  # what the names of its variables begin with
SMALL = 0.01  # the scale of first weights of a head before embeddings, which multiply what it returns by their norms


def pretrained_models() -> WrapModel:
    """What makes networks of `Pretrained` for the parts of an agent: those of one model share its weights."""
    loaded: list[tuple[Pretrained, Any]] = []

    def network(spec: Any, space: Space, outputs: int, seed: int) -> _PretrainedNetwork:
        if not isinstance(spec, Pretrained):
            raise ConfigError(
                f"network is {spec!r:.200}; over tokens this algorithm expects Transformer() or language.Pretrained()."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = next((model for known, model in loaded if known is spec), None)
            if model is None:
                model = _load(spec)
                loaded.append((spec, model))
            return _PretrainedNetwork(spec, model, space, outputs)

    return network


def _load(spec: Pretrained) -> Any:
    """The model, with adapters."""
    try:
        import peft
        import transformers
    except ImportError:
        raise MissingExtra("language.Pretrained", "llm") from None
    spec.file("config.json")  # named where it is missing
    lora = spec.lora if isinstance(spec.lora, Mapping) else {"r": spec.lora}
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of options that are set right for the model
            model = transformers.AutoModelForCausalLM.from_pretrained(
                spec.model, revision=spec.revision, dtype=getattr(torch, spec.dtype), use_safetensors=True,
                trust_remote_code=False,  # None would ask at a terminal
            )  # fmt: skip
            return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **lora)).eval()
    except Exception as problem:  # of many kinds: of files, of names, of arguments
        raise ConfigError(f"Pretrained: {spec.model} was not loaded: {str(problem).strip()[:400]}") from problem
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()


class _Kept(NamedTuple):
    """What a network computed when it acted last: keys and values in slots, as many for each row; those that a row does
    not use are masked."""

    version: tuple[int, ...]  # of the weights
    tokens: torch.Tensor  # [N, T] of each row's game, in the order of its slots
    mask: torch.Tensor  # [N, S] which slots a row uses
    cache: Any  # of the model, for S slots


class _PretrainedNetwork(Part):
    """As `networks.tokens.TokenNetwork`: `whole(tokens)` for losses, and `network(observation, state)` for acting.

    Outputs are the model's logits where there are as many as tokens. Others are heads on its last hidden states: of
    numbers a linear layer, and of as many numbers as there are tokens, or several times as many, after the others, a
    linear layer before the model's own output embeddings, as a layer of that size would be larger than the adapters by
    far. Dropout is off: with it, the ratios of probabilities that losses read would be noise. The keys and values of
    the games that it acts in stay in the model's own cache, and the state says nothing.

    fixed: how many numbers it computes with that are no variables.
    """

    portable = in_numpy = False
    state_size = 1

    def __init__(self, spec: Pretrained, model: Any, space: Space, outputs: int):
        from peft.tuners.lora import LoraLayer

        self.path: Path
        self.space: Any  # of `Tokens`
        self.path, self.space = tokens_of(space)
        config, vocabulary = model.get_base_model().config, self.space.vocabulary
        if vocabulary != vocabulary_of(spec.tokenizer):
            raise NetworkError(
                f"The tokens of the environment, {self.space}, are not those of the tokenizer of {spec.model}. Give "
                "that one to the environment: TokenEnvironment(env, pretrained.tokenizer)."
            )
        if len(vocabulary) > config.vocab_size:
            raise NetworkError(
                f"The tokenizer has {len(vocabulary):,} tokens, and {spec.model} has {config.vocab_size:,}. Give the "
                "tokenizer that belongs to the model."
            )
        longest = getattr(config, "max_position_embeddings", None)
        if longest is not None and self.space.context + 1 > longest:
            raise NetworkError(
                f"A game has up to {self.space.context:,} tokens, and one before; {spec.model} reads {longest:,} at "
                "most. Give TokenEnvironment a smaller context."
            )
        tokens = (config.bos_token_id, config.eos_token_id, 0)
        self._begin: int = next(each for each in tokens if type(each) is int and 0 <= each < config.vocab_size)
        self._logits: bool = outputs == len(vocabulary)
        self._model, self._module = model, model if self._logits else model.get_base_model().base_model
        takes = inspect.signature(model.get_base_model().forward).parameters
        self._cached_as: str = "cache" if "cache" in takes else "past_key_values"  # before transformers 5.24
        self._last_alone: dict[str, int] = {"logits_to_keep": 1} if self._logits and "logits_to_keep" in takes else {}
        for layer in model.modules():
            if isinstance(layer, LoraLayer):
                for name in layer.active_adapters:
                    layer.reset_lora_parameters(name, True)
        trained = {name: value for name, value in self._module.named_parameters() if value.requires_grad}
        self.fixed: int = sum(value.numel() for value in model.parameters()) - sum(map(torch.numel, trained.values()))
        for name, size in {"numbers": outputs % len(vocabulary), "tokens": outputs // len(vocabulary)}.items():
            if size and not self._logits:
                hidden = config.hidden_size
                head = torch.nn.Linear(hidden, size if name == "numbers" else size * hidden)
                scale = 1.0 if name == "numbers" else SMALL
                trained |= {f"{HEAD}{name}.{each}": scale * value for each, value in head.named_parameters()}
        self.variables: dict[str, Any] = {name: x.detach().float().cpu().numpy().copy() for name, x in trained.items()}
        self._kept: _Kept | None = None

    def bound(self, variables: Mapping[str, Any], training: bool = False) -> Self:
        part = super().bound(variables, training)
        part._kept = None  # it is changed in place
        return part

    def whole(self, tokens: torch.Tensor) -> torch.Tensor:
        """[B, L + 1, outputs] after 0, 1, ... and all of the tokens [B, L] of sequences."""
        return self._outputs(torch.cat([torch.full_like(tokens[:, :1], self._begin), tokens], 1))[0]

    def __call__(self, observation: Tree = None, state: Any = None) -> tuple[Any, Any]:
        """(outputs [N, outputs] after the last token of each window, state) of observations [N, ...]."""
        window = at(observation, self.path).long()
        tokens = torch.cat([torch.full_like(window[:, :1], self._begin), window[:, :-1]], 1)
        return self._continued(tokens, window[:, -1] + 1), state

    @torch.no_grad()
    def _continued(self, tokens: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """The outputs after `count` [N] of the tokens [N, T], of which those are computed that are not kept."""
        version, places = tuple(value._version for value in self.variables.values()), torch.arange(tokens.shape[1] + 1)
        places = places.to(tokens.device)
        kept, most = self._kept, 2 * tokens.shape[1]
        if kept is None or kept.version != version or len(kept.mask) != len(tokens) or kept.mask.shape[1] >= most:
            kept = _Kept(version, tokens, tokens.new_zeros(len(tokens), 0), None)
        # A row goes on from the tokens that it shares with what is kept of it; the last one is always computed.
        same = (kept.tokens == tokens) & (places[:-1] < kept.mask.sum(1, keepdim=True))
        shared = torch.minimum(same.long().cumprod(1).sum(1), count - 1)[:, None]
        mask = kept.mask * (kept.mask.cumsum(1) <= shared)
        new = int((count - shared[:, 0]).max())
        # The tokens to compute, of all rows the last one in the last slot.
        number = count[:, None] - new + places[:new]
        mask = torch.cat([mask, (number >= shared).long()], 1)
        number, before = number.clamp(min=0), {} if kept.cache is None else {self._cached_as: kept.cache}
        found, cache = self._outputs(
            tokens.gather(1, number), attention_mask=mask, position_ids=number, use_cache=True, **before,
            **self._last_alone,
        )  # fmt: skip
        self._kept = _Kept(version, tokens, mask, cache)
        return found[:, -1]

    def _outputs(self, tokens: torch.Tensor, **options: Any) -> tuple[torch.Tensor, Any]:
        """(outputs [B, L, outputs] after each of the tokens [B, L], the model's cache); with a cache, heads are of the
        last one alone."""
        self._model.to(tokens.device)
        own = {name: value for name, value in self.variables.items() if not name.startswith(HEAD)}
        given = {"input_ids": tokens, "use_cache": False, **options}
        found = torch.func.functional_call(self._module, own, (), given)
        cache = found[self._cached_as] if given["use_cache"] else None
        if self._logits:
            return found.logits[..., : len(self.space.vocabulary)].float(), cache
        heads, hidden = [], found.last_hidden_state[:, -1 if given["use_cache"] else 0 :].float()
        if f"{HEAD}numbers.weight" in self.variables:
            heads.append(self._head("numbers", hidden))
        if f"{HEAD}tokens.weight" in self.variables:
            embeddings = self._model.get_base_model().get_output_embeddings().weight[: len(self.space.vocabulary)]
            each = self._head("tokens", hidden).unflatten(-1, (-1, hidden.shape[-1]))
            heads.append((each.to(embeddings.dtype) @ embeddings.T).float().flatten(-2))
        return torch.cat(heads, -1), cache

    def _head(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        weight, bias = (self.variables[f"{HEAD}{name}.{each}"] for each in ("weight", "bias"))
        return torch.nn.functional.linear(hidden, weight, bias)
