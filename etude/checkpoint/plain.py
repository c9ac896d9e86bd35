"""State as JSON and named arrays, and back.

JSON has no tuples, arrays or infinite numbers; those are objects with a single key that begins with `$`:
`{"$array": name}`, `{"$scalar": name}` (a NumPy scalar), `{"$tuple": [...]}`, `{"$float": hex of its 8 bytes}`, and
`{"$dict": [[key, value], ...]}` for a dict whose own keys begin with `$`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_LARGEST = 16 * 2**20  # bytes


class Unstorable(ValueError):
    """A value that no checkpoint can hold; the message names where it is and what to give instead."""


def parse(text: bytes) -> Any:
    """Strict JSON: no repeated keys, no NaN, no nesting beyond what Python can follow. Raises ValueError."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_object(path: Path) -> dict[str, Any]:
    """The object in a small JSON file, such as the config.json of a run. Raises OSError, and ValueError where the file
    holds something else, or more than a file of this kind ever does."""
    if (size := path.stat().st_size) > _LARGEST:
        raise ValueError(f"it has {size:,} bytes; expected at most {_LARGEST:,}")
    found = parse(path.read_bytes())
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}; expected an object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key occurs twice")
    return table


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def split(value: Any, storable: Callable[[np.dtype], bool]) -> tuple[bytes, dict[str, np.ndarray]]:
    """A value as JSON text and the arrays it refers to, named by their place in it (a JSON pointer, RFC 6901)."""
    arrays: dict[str, np.ndarray] = {}
    try:
        tree = _plain(value, "", arrays, storable)
        return json.dumps(tree, separators=(",", ":"), allow_nan=False).encode(), arrays
    except RecursionError as error:
        raise Unstorable("it is nested too deeply, or contains itself") from error


def _plain(value: Any, place: str, arrays: dict[str, np.ndarray], storable: Callable[[np.dtype], bool]) -> Any:
    """As JSON has it. place: in the whole. arrays: where those of the value are put."""
    if isinstance(value, np.ndarray | np.generic):
        if isinstance(value, np.ma.MaskedArray) or not storable(value.dtype):
            what = "masked array" if isinstance(value, np.ma.MaskedArray) else f"array of dtype {value.dtype}"
            raise Unstorable(f"{place or 'it'} is an {what}; expected booleans, integers, or floats of 16 to 64 bits")
        arrays[place] = np.asarray(value)
        return {"$scalar" if isinstance(value, np.generic) else "$array": place}
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        if value.bit_length() > 8192:  # Python itself refuses to read decimal numbers of more than 4300 digits
            raise Unstorable(f"{place or 'it'} is an integer of {value.bit_length()} bits; expected at most 8192")
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, dict):
        for key in value:
            if type(key) is not str:
                raise Unstorable(f"{place or 'it'} is a dict with the key {key!r}; expected keys that are strings")
        items = {
            k: _plain(v, f"{place}/{k.replace('~', '~0').replace('/', '~1')}", arrays, storable)
            for k, v in value.items()
        }
        if any(key.startswith("$") for key in items):
            return {"$dict": [[key, item] for key, item in items.items()]}
        return items
    if type(value) in (list, tuple):
        found = [_plain(item, f"{place}/{i}", arrays, storable) for i, item in enumerate(value)]
        return found if type(value) is list else {"$tuple": found}
    raise Unstorable(
        f"{place or 'it'} is a {type(value).__module__}.{type(value).__name__}; expected NumPy arrays, numbers, "
        "strings, booleans and None, in dicts, lists and tuples"
    )


def join(text: bytes, arrays: dict[str, np.ndarray]) -> Any:
    """The value that `split` took apart. Raises ValueError where text and arrays do not belong together."""
    tree, remaining = parse(text), dict(arrays)
    try:
        value = _restored(tree, remaining)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except struct.error as error:
        raise ValueError(f"it has a number that cannot be read: {error}") from error
    if remaining:
        raise ValueError(f"nothing refers to its array {next(iter(remaining))!r}")
    return value


def _restored(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(tree, list):
        return [_restored(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    tag = next(iter(tree), "")
    if not tag.startswith("$"):
        return {key: _restored(item, arrays) for key, item in tree.items()}
    content = tree[tag]
    if len(tree) == 1 and tag in ("$array", "$scalar") and isinstance(content, str) and content in arrays:
        array = arrays.pop(content)
        return array if tag == "$array" else array[()]
    if len(tree) == 1 and tag == "$tuple" and isinstance(content, list):
        return tuple(_restored(item, arrays) for item in content)
    if len(tree) == 1 and tag == "$float" and isinstance(content, str) and len(content) == 16:
        return struct.unpack(">d", bytes.fromhex(content))[0]
    if len(tree) == 1 and tag == "$dict" and isinstance(content, list):
        return {key: _restored(item, arrays) for key, item in _unique([_pair(pair) for pair in content]).items()}
    raise ValueError(f"it has a part {tag} that cannot be read")


def _pair(pair: Any) -> tuple[str, Any]:
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
        raise ValueError("a $dict is not made of pairs")
    return pair[0], pair[1]
