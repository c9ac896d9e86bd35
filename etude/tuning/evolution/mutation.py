"""What a mutation changed, as plain data: lineages keep it, and the transfer of weights follows it."""

from __future__ import annotations

from dataclasses import dataclass

NONE = "none"
ADD_LAYER, REMOVE_LAYER, ADD_UNITS, REMOVE_UNITS = "add_layer", "remove_layer", "add_units", "remove_units"
GROW_KERNEL, SHRINK_KERNEL = "grow_kernel", "shrink_kernel"
ACTIVATION, PARAMETERS, HYPERPARAMETER = "activation", "parameters", "hyperparameter"
LAYER_KINDS = (ADD_LAYER, REMOVE_LAYER, GROW_KERNEL, SHRINK_KERNEL)
UNIT_KINDS = (ADD_UNITS, REMOVE_UNITS)
UNNAMED = -1  # in the place of a layer: that of every block, or the block that is the least useful


@dataclass(frozen=True)
class Mutation:
    """How a genome came from its parent.

    kind: one of the names above. field: of the config, such as "learning_rate" or "network.actor".
    chain, layer, amount: which layer of which chain of a network (`UNNAMED`: see there); how many units it gained or
        lost, or has.
    before, after: values of a hyperparameter, or names of activation functions.
    strength, seed: of the noise on parameters.
    """

    kind: str = NONE
    field: str = ""
    chain: str = ""
    layer: int = 0
    amount: int = 0
    before: float | str | None = None
    after: float | str | None = None
    strength: float = 0.0
    seed: int = 0

    def __str__(self) -> str:
        if self.kind in (HYPERPARAMETER, ACTIVATION):
            return f"{self.field} {_shown(self.before)} -> {_shown(self.after)}"
        if self.kind in (*LAYER_KINDS, *UNIT_KINDS):
            place = self.chain if self.chain == "cell" or self.layer == UNNAMED else f"{self.chain}{self.layer}"
            where = f"{self.field.removeprefix('network').removeprefix('.')} {place}".strip()
            return f"{self.kind.replace('_', ' ')} {where} ({self.amount})"
        return self.kind


def _shown(value: float | str | None) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
