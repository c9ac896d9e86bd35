"""The Python blocks of each page as programs, for type checkers: `python tests/docs/programs.py build/typed`.

Blocks that need an engine make a program of their own, with those that need none.
"""

import sys
from pathlib import Path

from written import PAGES, blocks, name_of

MYPY = (
    "# mypy: disallow-subclassing-any, disallow-untyped-decorators, warn-return-any, warn-unused-ignores, "
    "strict-equality, extra-checks, allow-redefinition"
)  # --strict beside [tool.mypy], less annotations of functions


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        found = [block for block in blocks(page) if block.language == "python"]
        for mark in sorted({block.mark for block in found}):
            text = "\n".join([MYPY, *(block.text for block in found if block.mark in ("", mark))])
            name = f"{name_of(page).removesuffix('.md')}_{mark}".rstrip("_")
            (folder / f"{name.replace('/', '_').replace('-', '_')}.py").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
