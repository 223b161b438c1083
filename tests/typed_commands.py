"""Commands and files of a documentation page, taken from its text as a reader finds them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = (
    "fedloom", "flwr", "flower-superlink", "flower-supernode", "scp", "rm", "ssh-keygen", "pip", "make", "python",
    "python3",
)  # fmt: skip
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^(?:#+ (.*)|\*\*([^*]+?)[.:]\*\*.*)$", re.MULTILINE)
_MACHINE = re.compile(
    r"^On (the server|node \d+)(?:, in a second terminal)?:\n\n\Z", re.MULTILINE
)  # the line before a block
_SPAN = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Typed:
    """A command of a page: its section (a heading, or the bold words that begin a paragraph), and its machine."""

    page: str
    section: str
    machine: str
    text: str

    @property
    def program(self) -> str:
        return self.text.split()[0]


def commands_of(page: Path) -> list[Typed]:
    """The commands of a page in their order: lines of `text` blocks, cells of tables, and prose that has arguments.

    A line such as `On node 0:` before a block names the machine; all else is typed on the server. Words such as
    `fedloom report` in prose name a command, and nobody types them.
    """
    text = page.read_text(encoding="utf-8")
    found = [(match.start(2) + line.start(), _machine(text[: match.start()]), line[0])
             for match in _FENCE.finditer(text)
             if match[1] == "text" for line in re.finditer(r"^.+$", match[2], re.MULTILINE)]  # fmt: skip
    outside = _FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    place = 0
    for line in outside.splitlines(keepends=True):
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")] if line.startswith("| ") else []
        is_header = bool(cells) and outside[place + len(line) :].startswith("|---")
        for span in _SPAN.finditer(line):
            is_cell = f"`{span[1]}`" in cells
            if not is_header and (is_cell or not re.fullmatch(r"[a-z -]+|\S+", span[1])):
                found.append((place + span.start(), "server", span[1]))
        place += len(line)
    sections = [(match.start(), match[1] or match[2]) for match in _SECTION.finditer(outside)]
    return [
        Typed(page.name, _section_at(start, sections), machine, words)
        for start, machine, words in sorted(found)
        if words.split()[0] in PROGRAMS
    ]


def block_of(page: Path, containing: str) -> str:
    """The only fenced block of a page that contains some words: a file that the page says to write."""
    (block,) = [match[2] for match in _FENCE.finditer(page.read_text(encoding="utf-8")) if containing in match[2]]
    return block


def without_comment(command: str) -> list[str]:
    """The words of a command as a shell reads them."""
    return shlex.split(command, comments=True)


def _machine(before: str) -> str:
    line = _MACHINE.search(before)
    return line[1].removeprefix("the ") if line else "server"


def _section_at(place: int, sections: list[tuple[int, str]]) -> str:
    before = [name for start, name in sections if start <= place]
    return before[-1] if before else ""
