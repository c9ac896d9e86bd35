"""The page of the package on an index, which knows neither this repository's files nor its pictures: links of README
lead to where the repository can be read, and are texts where `url` in pyproject.toml does not say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")


def absolute(text: str, url: str) -> str:
    """A page whose links to files of the repository at `url` resolve everywhere. url: "" where there is none."""

    def link(found: re.Match[str]) -> str:
        picture, words, place = found.groups()
        if not url:
            return "" if picture else words
        return f"{picture}[{words}]({url}/{'raw' if picture else 'blob'}/main/{place})"

    return _LINK.sub(link, text)


class IndexPage(MetadataHookInterface):
    """Writes the readme and the URLs into the package's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        url, page = self.config["url"], Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(page, url)}
        pages = {"Documentation": "tree/main/docs", "Changelog": "blob/main/CHANGELOG.md", "Issues": "issues"}
        metadata["urls"] = {"Source": url, **{name: f"{url}/{page}" for name, page in pages.items()}} if url else {}
