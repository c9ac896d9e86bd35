"""Help texts of options, from the comments beside the fields of dataclasses.

tyro reads them itself where the class has a source: not of a class that was made while the program runs, and not where
a derived class gives a field another default without saying again what it means.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import shutil
import textwrap
import typing
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Annotated, Any

from etude.base.schedules import Linear

_FIELD = re.compile(r"^    (\w+): .*?(?:  # (.*))?$", re.MULTILINE)
_GROUP = re.compile(r"^    # -- (\w+)$", re.MULTILINE)  # the options below are a group, which --help leaves out


def field_comments(kind: type) -> dict[str, str]:
    """What the comments say of each field of a dataclass; those of the classes that it derives from, where it has none
    of its own."""
    told: dict[str, str] = {}
    for source in _sources(kind):
        told |= {name: comment for name, comment in _FIELD.findall(source) if comment}
    return told


def _sources(kind: type) -> Iterator[str]:
    """The sources of the classes that a class derives from, and its own, but for one made while the program runs."""
    for base in reversed(kind.__mro__[:-1]):
        with suppress(OSError, TypeError):
            yield inspect.getsource(base)


def for_help(kind: type, whole: bool) -> type:
    """A dataclass that has the help of another one, of options: of all by group; or of those above the first group, and
    of the hyperparameters `set` that hold no others within."""
    groups: dict[str, list[str]] = {"": []}
    for source in _sources(kind):
        for name, part in zip(["", *_GROUP.findall(source)], _GROUP.split(source)[::2], strict=True):
            groups.setdefault(name, []).extend(field for field, _ in _FIELD.findall(part))
    if len(groups) == 1:
        return kind
    made = _options(kind, groups.pop(""))
    for name, fields in groups.items() if whole else ():
        group = dataclasses.make_dataclass(name, _options(kind, fields, named_alone=True))
        made.append((name, group, dataclasses.field(default_factory=group)))
    nested = {f.name: value for f in dataclasses.fields(kind) if _has_options(value := _default(f, None))}
    for name, value in nested.items() if whole else ():
        made.append((name, type(value), dataclasses.field(default_factory=_returning(value))))
    if "set" in nested and not whole:
        config: Any = nested["set"]
        flat = [field.name for field in dataclasses.fields(config)]
        part = dataclasses.make_dataclass("set", _options(type(config), flat, config))
        made.append(("set", part, dataclasses.field(default_factory=part)))
    return dataclasses.make_dataclass(kind.__name__, made)


def _returning(value: Any) -> Callable[[], Any]:
    return lambda: value


def _has_options(value: Any) -> bool:
    """Whether a field's value is a dataclass with an option for each of its fields; schedules are one option."""
    return dataclasses.is_dataclass(value) and not isinstance(value, Linear)


def _options(kind: type, names: Collection[str], whole: Any = None, named_alone: bool = False) -> list[Any]:
    """Some fields of a dataclass, for another one: with their help, and the values that they have in `whole`."""
    from tyro.conf import arg

    told, hints = field_comments(kind), typing.get_type_hints(kind, include_extras=True)
    found = []
    for field in dataclasses.fields(kind):
        value = _default(field, whole)
        if field.name in names and not _has_options(value):
            hint = Annotated[hints[field.name], arg(prefix_name=False)] if named_alone else hints[field.name]
            metadata = {"help": told.get(field.name)}
            made = dataclasses.field(default_factory=_returning(value), metadata=metadata)
            found.append((field.name, hint, made))
    return found


def struct_rule(info: Any) -> Any:
    """tyro's rule for dataclasses, with these help texts; None for other types."""
    if not (isinstance(info.type, type) and dataclasses.is_dataclass(info.type)):
        return None
    from tyro.constructors import StructConstructorSpec, StructFieldSpec

    told, hints = field_comments(info.type), typing.get_type_hints(info.type, include_extras=True)
    told |= {field.name: field.metadata["help"] for field in dataclasses.fields(info.type) if "help" in field.metadata}
    fields = [
        StructFieldSpec(
            field.name,
            hints[field.name],
            _default(field, info.default),
            told.get(field.name),
        )
        for field in dataclasses.fields(info.type)
        if field.init
    ]
    return StructConstructorSpec(info.type, tuple(fields))


def _default(field: dataclasses.Field[Any], whole: Any) -> Any:
    import tyro

    if dataclasses.is_dataclass(whole):
        return getattr(whole, field.name)
    if field.default is not dataclasses.MISSING:
        return field.default
    return tyro.MISSING if field.default_factory is dataclasses.MISSING else field.default_factory()


def description(kind: type) -> str:
    """The docstring of a class, in lines that fit the terminal; none where Python leaves docstrings out (-OO), so that
    a dataclass has its signature in the place of it."""
    if (kind.__doc__ or "").startswith(f"{kind.__name__}("):
        return ""
    width, indent = max(40, shutil.get_terminal_size().columns), " "  # tyro joins lines that begin with a letter
    parts = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    return "\n\n".join(
        textwrap.fill(part, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        for part in parts
    )
