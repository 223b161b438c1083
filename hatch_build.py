"""The README of a release: a package index shows no files beside it, so its links lead to the repository or go.

FEDLOOM_HOME: address of the repository's files at the release's tag, such as https://example.org/fedloom/blob/v0.2.0.
Without it, links become their text and pictures are left out.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")


class ReadmeLinks(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        home = os.environ.get("FEDLOOM_HOME", "").rstrip("/")
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": with_links_to(home, text)}
        if home:
            metadata["urls"] = {"Documentation": f"{home}/README.md", "Changelog": f"{home}/CHANGELOG.md"}


def with_links_to(home: str, text: str) -> str:
    """Return Markdown whose relative links lead below `home`; "" leaves their text alone."""
    if not home:
        return _LINK.sub(lambda link: "" if link[1] else link[2], text)
    raw = home.replace("/blob/", "/raw/")  # pictures as files, and not as pages about them
    return _LINK.sub(lambda link: f"{link[1]}[{link[2]}]({raw if link[1] else home}/{link[3]})", text)
