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
from typing import Any

_FIELD = re.compile(r"^    (\w+): .*?(?:  # (.*))?$", re.MULTILINE)


def field_comments(kind: type) -> dict[str, str]:
    """What the comments say of each field of a dataclass; those of the classes that it derives from, where it has none
    of its own."""
    told: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):  # made while the program runs
            continue
        told |= {name: comment for name, comment in _FIELD.findall(source) if comment}
    return told


def struct_rule(info: Any) -> Any:
    """tyro's rule for dataclasses, with these help texts; None for other types."""
    if not (isinstance(info.type, type) and dataclasses.is_dataclass(info.type)):
        return None
    from tyro.constructors import StructConstructorSpec, StructFieldSpec

    told, hints = field_comments(info.type), typing.get_type_hints(info.type, include_extras=True)
    fields = [
        StructFieldSpec(field.name, hints[field.name], _default(field, info.default), told.get(field.name))
        for field in dataclasses.fields(info.type)
        if field.init
    ]
    return StructConstructorSpec(info.type, tuple(fields))


def _default(field: dataclasses.Field, whole: Any) -> Any:
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
