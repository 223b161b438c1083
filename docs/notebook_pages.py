"""Pages of the site from the executed notebooks in docs/notebooks, with their outputs."""

import html
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

NOTEBOOKS = Path(__file__).parent / "notebooks"
_COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*m")
_LINK = re.compile(r"\]\(([\w-]+)\.ipynb\)")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add a page beside every notebook."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        page = notebook_page(json.loads(path.read_text(encoding="utf-8")), path.name)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
    return files


def notebook_page(notebook: dict[str, Any], file_name: str) -> str:
    """Return a notebook as Markdown: its texts, its code, and its outputs as HTML. Links lead to other pages."""
    blocks: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(_LINK.sub(r"](\1.md)", source))
        else:
            blocks.append(f"```python\n{source}\n```")
            blocks += [f'<div class="notebook-output">{_output(output)}</div>' for output in cell["outputs"]]
    title, *others = blocks
    download = f"This page is a notebook with its outputs. [Download it]({file_name}) and run it cell by cell."
    return "\n\n".join([title, download, *others]) + "\n"


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _preformatted("".join(output["text"]))
    if output["output_type"] == "error":
        return _preformatted("\n".join(output["traceback"]))
    data = {kind: "".join(content) for kind, content in output["data"].items()}
    if "text/html" in data:
        return re.sub(r"\n\s*\n", "\n", data["text/html"]) if "<pre" not in data["text/html"] else data["text/html"]
    if "image/png" in data:
        return f'<img alt="{html.escape(data["text/plain"])}" src="data:image/png;base64,{data["image/png"].strip()}">'
    return _preformatted(data["text/plain"])


def _preformatted(text: str) -> str:
    return f"<pre>{html.escape(_COLOUR_CODES.sub('', text).rstrip())}</pre>"
