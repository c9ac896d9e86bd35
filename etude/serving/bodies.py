"""What the bodies of posts hold, in JSON or MessagePack, and the values of spaces in them."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np

from etude.base.errors import SpaceError
from etude.base.spaces import Dict, Space, Tuple, describe, leaves, parts, to_json
from etude.base.trees import Tree
from etude.envs.observations import is_text
from etude.offline.dataset import actions_in, outside

JSON, MSGPACK = "application/json", "application/msgpack"


class Refused(Exception):
    """A request that is answered with an error of HTTP, and these headers."""

    def __init__(self, status: int, message: str, headers: list[tuple[bytes, bytes]] | None = None):
        super().__init__(message)
        self.status, self.headers = status, headers or []


def kind_of_body(content_type: str) -> str:
    """JSON or MessagePack."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (JSON, MSGPACK):
        raise Refused(415, f"Content-Type: expected {JSON} or {MSGPACK}; got {kind!r:.80}.")
    return kind


def unpacked(data: bytes | bytearray, kind: str) -> dict[str, Any]:
    """The dict in a body."""
    try:
        if kind == MSGPACK:
            import msgpack

            found = msgpack.unpackb(data)
        else:
            found = json.loads(data or b"{}")
    except (ValueError, RecursionError, TypeError) as error:  # what msgpack raises is a ValueError
        raise Refused(400, f"The body is no {kind}: {type(error).__name__}: {error!s:.120}.") from None
    if not isinstance(found, dict):
        raise Refused(422, f"The body is a {type(found).__name__}; expected an object with keys.")
    return found


def packed(body: dict[str, Any], kind: str) -> bytes:
    """A dict as a body."""
    if kind == JSON:
        return json.dumps(body, separators=(",", ":")).encode()
    import msgpack

    return msgpack.packb(body)


def number(body: dict[str, Any], name: str, default: float | None) -> Any:
    """A finite number; default: where there is none."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value := float(value)):
        raise Refused(422, f"{name}: expected a finite number; got {value!r:.80}.")
    return value


def flag(body: dict[str, Any], name: str) -> bool:
    """True or False; False where there is none."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise Refused(422, f"{name}: expected true or false; got {value!r:.80}.")
    return value


def array(value: Any, name: str) -> np.ndarray:
    """Numbers: in nested lists, or as {"dtype", "shape", "data"} with their bytes in C order, little-endian; in JSON
    the bytes are base64."""
    try:
        found = _from_bytes(value) if isinstance(value, dict) else np.array(value)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise Refused(422, f"{name}: {error!s:.120}; expected numbers, in lists of one shape.") from None
    if found.dtype.kind not in "biuf":
        raise Refused(422, f"{name}: expected numbers, in lists of one shape; got {value!r:.80}.")
    return found


def _from_bytes(value: dict[str, Any]) -> np.ndarray:
    data, shape = value["data"], tuple(int(size) for size in value["shape"])
    dtype = np.dtype(str(value["dtype"])).newbyteorder("<")
    if dtype.kind not in "biuf" or min(shape, default=1) < 0:
        raise ValueError(f"dtype {value['dtype']!r:.40} of shape {shape!r:.80}")
    raw = base64.b64decode(data, validate=True) if isinstance(data, str) else bytes(data)
    if len(raw) != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{len(raw)} bytes of data for {dtype} of shape {shape}")
    return np.frombuffer(raw, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def value_of(space: Space, given: Any, name: str) -> Tree:
    """A value of a space as its environment would return it; whether it belongs there is checked by whoever reads it.
    Numbers become those of the space's dtype, where that changes none."""
    if isinstance(space, Dict):
        if not isinstance(given, dict):
            raise Refused(422, f"{name}: expected an object with {', '.join(space.spaces)}; got {given!r:.80}.")
        return {key: value_of(part, given.get(key), f"{name}.{key}") for key, part in parts(space)}
    if isinstance(space, Tuple):
        if not isinstance(given, list | tuple) or len(given) != len(space.spaces):
            raise Refused(422, f"{name}: expected a list of {len(space.spaces)}; got {given!r:.80}.")
        return tuple(value_of(part, own, f"{name}.{i}") for (i, part), own in zip(parts(space), given, strict=True))
    if is_text(space):
        if not isinstance(given, str):
            raise Refused(422, f"{name}: expected a text; got {given!r:.80}.")
        return given
    found = array(given, name)
    assert space.dtype is not None
    if found.dtype == space.dtype:
        return found
    with np.errstate(all="ignore"):
        cast = found.astype(space.dtype)
        exact = space.dtype.kind == "f" or bool((cast == found).all())
    if not exact:
        raise Refused(422, f"{name}: expected values of {describe(space)}; got {given!r:.80}.")
    return cast


def action_of(space: Space, given: Any, steps: int | None = None) -> np.ndarray:
    """An action of the environment as the agent's, [1, ...]; or those of so many steps, [steps, ...]."""
    value, each = value_of(space, given, "action"), []
    for (path, leaf), own in zip(leaves(space), leaves_of(space, value), strict=True):
        where, shape = (
            ".".join(map(str, ("action", *path))),
            (*(() if steps is None else (steps,)), *(leaf.shape or ())),
        )
        if own.shape != shape:
            raise Refused(422, f"{where}: expected the shape {shape}; got {own.shape}.")
        own = own[None] if steps is None else own
        if not np.isfinite(own).all() or outside(leaf, own).any():
            raise Refused(422, f"{where}: {own!s:.80} is outside of {leaf!s:.120}.")
        each.append(own)
    return actions_in(space, each)


def numbers(value: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Finite numbers of this shape, float32."""
    found = array(value, name)
    if found.shape != shape:
        raise Refused(422, f"{name}: expected the shape {shape}; got {found.shape}.")
    with np.errstate(over="ignore"):
        found = found.astype(np.float32)
    if not np.isfinite(found).all():
        raise Refused(422, f"{name}: expected finite numbers that float32 holds.")
    return found


def leaves_of(space: Space, value: Any) -> list[np.ndarray]:
    """What `value_of` has found for each leaf of a space."""
    inner = parts(space)
    return [leaf for key, part in inner for leaf in leaves_of(part, value[key])] if inner else [value]


def plain(value: Any) -> Any:
    """A value of a space in numbers, lists and dicts."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def plain_space(space: Space) -> Any:
    """A space as plain data; its text where it has no such form."""
    try:
        return to_json(space)
    except SpaceError:
        return {"text": describe(space)}


# -- JSON schemas of bodies --------------------------------------------------------------------------------------------

EPISODE_NUMBER = {"type": "integer", "minimum": 1, "maximum": 2**53}
FLOAT = {"type": "number", "minimum": -1e30, "maximum": 1e30}


def schema_of(space: Space, steps: bool = False) -> dict[str, Any]:
    """The JSON schema of a value of a space, or of those of several steps."""
    if isinstance(space, Dict):
        each = {key: schema_of(part, steps) for key, part in parts(space)}
        return {"type": "object", "properties": each, "required": list(each)}
    if isinstance(space, Tuple):
        own = [schema_of(part, steps) for _, part in parts(space)]
        return {"type": "array", "prefixItems": own, "items": False, "minItems": len(own), "maxItems": len(own)}
    if is_text(space):
        return {"type": "string"}
    return {"description": describe(space), **_listed({}, (*((None,) if steps else ()), *(space.shape or ())))}


def _listed(element: dict[str, Any], shape: tuple[int | None, ...]) -> dict[str, Any]:
    """Numbers in nested lists of this shape, each None a length of any size; or their bytes."""
    if not shape:
        return {"type": "number", **element}
    data = {"type": "object", "required": ["dtype", "shape", "data"]}
    found: dict[str, Any] = {"type": "number", **element}
    for size in reversed(shape):
        found = {"type": "array", "items": found}
        if size is not None:
            found |= {"minItems": size, "maxItems": size}
    return {"anyOf": [found, data]}


def an_object(required: str, /, **properties: Any) -> dict[str, Any]:
    """The schema of an object. required: names of properties."""
    found = {"type": "object", "properties": properties}
    return found | ({"required": required.split()} if required else {})


def schemas_of(observation: Space, action: Space) -> dict[str, dict[str, Any]]:
    """Those of posts of an episode, by their kinds, where clients have these spaces."""
    told = {"number": EPISODE_NUMBER, "reward": FLOAT}
    mask = {"type": "array", "items": {"type": "integer"}}
    seen = {**told, "observation": schema_of(observation), "action_mask": mask}
    ends = {"terminated": {"type": "boolean"}, "truncated": {"type": "boolean"}}
    own = {"action": schema_of(action), "log_prob": FLOAT}
    steps = {
        "episode": {"type": "string"}, "number": EPISODE_NUMBER, "version": {"type": "integer"},
        "observation": schema_of(observation, True), "action": schema_of(action, True),
        "reward": {"type": "array", "minItems": 1}, "extras": {"type": "object"}, "action_mask": {"type": "array"},
    }  # fmt: skip
    return {
        "act": an_object("number observation", **seen),
        "log_action": an_object("number observation action", **seen, **own),
        "reward": an_object("number", **told),
        "end": an_object("number observation", **seen, **ends),
        "steps": an_object("episode number version observation action reward extras", **steps, **ends),
    }
