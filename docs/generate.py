"""Writes the parts of these pages that follow from the code and from measurements: `python docs/generate.py`.

README.md         the table of algorithms, from the code, and that of speed, from benchmarks/whole_run.json
licences.md       from what the dependencies declare
which-algorithm.md   what was measured, from benchmarks/learning.json; which spaces and rollouts each algorithm takes
spaces.md         from the cases of spaces and values that tests run
benchmarks*.md    from benchmarks/*.json, where there are some
reliability.md    the tables, from benchmarks/reliability/*.json
algorithms/*.md   the configs and presets, from the code, and the results, from benchmarks/learning.json,
                  offline.json and multi_agent.json
coming-from-*.md  the tables of names, from the hints of etude's errors
gallery.md        every picture of curves/
curves/*.png      from benchmarks/curves/*/*.csv
figures/*.png     from the same, and from benchmarks/whole_run.json
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import figures
from benchmarks_page import benchmarks
from compared import summary
from families import algorithms
from licences import licences
from markdown_table import NOTE, escaped, table, title
from measured import asked, bandits, by_environment, curves, learning, multi_agent, offline, pictures
from measured_reliability import MARKS
from other_names import CLEANRL, SB3, names
from spaces_page import spaces_and_data
from usable import usable

from etude import ActorCritic, Conv, Mlp, Recurrent, Transformer
from etude.algorithms import ALGORITHMS
from etude.base.schedules import Linear
from etude.base.text import brief
from etude.cli.options import field_comments
from etude.networks import SimBa
from etude.presets import PRESETS
from etude.report.plots import draw_runs

HERE = Path(__file__).parent


def config(algorithm: str) -> str:
    """The fields of an algorithm's config: its own first, then those that it shares with others."""
    kind = ALGORITHMS[algorithm][1]
    meaning = field_comments(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    own = [name for name in kind.__annotations__ if name in names]
    shared = [name for name in names if name not in own]
    default = kind()
    rows = [[f"`{name}`", f"`{_literal(getattr(default, name))}`", escaped(meaning[name])] for name in (*own, *shared)]
    return table(["field", "default", "meaning"], rows)


def _literal(value: Any) -> str:
    """A value as Python reads it; of a dataclass, what is required, what differs from its defaults, and its kind or
    widths."""
    if isinstance(value, float):
        return f"{value:g}"
    if not dataclasses.is_dataclass(value):
        return f"{value:_}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)
    given = []
    for place, field in enumerate(dataclasses.fields(value)):
        held = getattr(value, field.name)
        required = field.default is field.default_factory is dataclasses.MISSING
        first = place == 0 and isinstance(held, str | tuple)
        if required or first:
            given.append(_literal(held))
        elif held != (field.default if field.default_factory is dataclasses.MISSING else field.default_factory()):
            given.append(f"{field.name}={_literal(held)}")
    return f"{type(value).__name__}({', '.join(given)})"


# -- presets -----------------------------------------------------------------------------------------------------------


def presets(algorithm: str) -> str:
    """The presets of an algorithm: a row for each field, a column for each set of values, and their sources."""
    held = PRESETS.get(algorithm, {})
    columns: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for environment, preset in held.items():
        given = {f"`{name}`": _value(value) for name, value in preset.config.items()}
        values = {"steps": f"{preset.steps:,}", "environments": str(preset.environments), **given}
        columns.setdefault(tuple(values.items()), []).append(f"`{environment}`")
    if not columns:
        return "None yet.\n"
    fields = dict.fromkeys(name for column in columns for name, _ in column)
    rows = [[name, *(dict(column).get(name, "default") for column in columns)] for name in fields]
    sources = [f"- `{environment}`: {escaped(preset.source.rstrip('.'))}.\n" for environment, preset in held.items()]
    head = ["field", *("<br>".join(environments) for environments in columns.values())]
    return f"{table(head, rows)}\nSources:\n\n{''.join(sources)}"


def _value(value: Any) -> str:
    if isinstance(value, Linear):
        over = "" if value.fraction == 1 else f" in {value.fraction:g} of the run"
        return f"{value.start:g} to {value.end:g}{over}"
    if isinstance(value, ActorCritic):
        return f"{_value(value.actor)}; critics {_value(value.critic)}"
    if isinstance(value, SimBa):
        return brief(value)
    if isinstance(value, Recurrent):
        before, after = (" x ".join(map(str, widths)) for widths in (value.before.widths, value.widths))
        return ", ".join(filter(None, (before, f"{value.cell} {value.units}", after))) + f" {value.before.activation}"
    if isinstance(value, Transformer):
        return f"transformer, {value.layers} x {value.width}, feedforward {value.feedforward}, context {value.context}"
    if isinstance(value, Mlp | Conv):
        head = (", dueling" if value.dueling else "") + (f", noisy {value.noisy:g}" if value.noisy else "")
        return " x ".join(map(str, value.widths)) + f" {value.activation}{head}"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def filled(text: str, name: str, content: str) -> str:
    """A page with what stands between its marks `<!-- name -->` and `<!-- end -->` replaced."""
    mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    return mark.sub(lambda match: f"{match[1]}\n{content.rstrip()}\n\n{match[2]}", text)


def gallery() -> str:
    """A page with every learning curve, by environment."""
    shown: dict[str, list[str]] = {}
    for name in ALGORITHMS:
        for path, runs in curves(name).items():
            where = runs[0].environment
            picture = f"[![{title(name)} on {where}](curves/{path.name})](algorithms/{name}.md)\n"
            shown.setdefault(where.partition(",")[0], []).append(picture)
    parts = "".join(f"\n## {where}\n\n" + "\n".join(found) for where, found in shown.items())
    return f"""# Gallery

{NOTE}
Compare algorithms on one environment: the return with the preset, its mean and range over seeds. A picture leads to the
algorithm's page, with the hyperparameters and the return of each seed.
{parts}"""


def pages(measured: bool = True) -> dict[Path, str]:
    """Every page that is written, or partly written, here. measured: with the parts that depend on measurements."""
    readme = HERE.parent / "README.md"
    found = {HERE / "spaces.md": spaces_and_data(), HERE / "gallery.md": gallery(), HERE / "licences.md": licences()}
    found[readme] = filled(readme.read_text(encoding="utf-8"), "algorithms", algorithms())
    for page, those in (("coming-from-sb3", SB3), ("coming-from-cleanrl", CLEANRL)):
        path = HERE / f"{page}.md"
        found[path] = filled(path.read_text(encoding="utf-8"), "names", names(those))
    which = HERE / "which-algorithm.md"
    found[which] = filled(which.read_text(encoding="utf-8"), "usable", usable())
    if measured:
        found[which] = filled(found[which], "measured", by_environment())
        found[readme] = filled(found[readme], "speed", summary())
        found |= {HERE / name: text for name, text in benchmarks().items()}
        path = HERE / "reliability.md"
        found[path] = path.read_text(encoding="utf-8")
        for mark, content in MARKS.items():
            found[path] = filled(found[path], mark, content())
    for name in ALGORITHMS:
        path = HERE / "algorithms" / f"{name}.md"
        text = filled(path.read_text(encoding="utf-8"), "config", config(name))
        text = filled(text, "presets", presets(name))
        if measured:
            shown = pictures(name)
            results = {
                "results": learning(name),
                "several": multi_agent(),
                "offline": offline(name),
                "bandits": bandits(),
                "asked": asked(),
            }
            for mark, content in results.items():
                text = filled(text, mark, content + (shown if mark != "asked" else ""))
            text = filled(text, "curves", shown)
        found[path] = text
    return found


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    (HERE / "curves").mkdir(exist_ok=True)
    for name in ALGORITHMS:
        for path, runs in curves(name).items():
            draw_runs(runs, path, statistic="mean", band="range")
    figures.draw()
