"""Words of other libraries for names of fedloom. A hint looks in `synonyms.yaml` before it compares spellings."""

import difflib
import re
from functools import cache
from pathlib import Path

import yaml


@cache  # read with the first mistake
def _names_by_word() -> dict[str, dict[str, str]]:
    kinds = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return {
        kind: {plain_word(word): names for names, words in groups.items() for word in words.split()}
        for kind, groups in kinds.items()
    }


def plain_word(name: str) -> str:
    """Return a name without case, hyphens, underscores and spaces, in which libraries differ."""
    return re.sub(r"[-_ #]", "", name.lower())


def meant_by(kind: str, name: str, section: str = "") -> str:
    """Return "did you mean 'x'?", or a sentence, for another library's word; nothing if no name here means the same.
    kind: "key" of a config, in a dotted `section`, or the noun of a registry ("method", "metric", ...)."""
    by_word = _names_by_word().get(kind, {})
    words = (plain_word(f"{section}.{name}"), plain_word(name))
    misspelt = difflib.get_close_matches(words[1], by_word, n=1, cutoff=0.9)
    meant = next((by_word[word] for word in (*words, *misspelt) if word in by_word), "")
    names = [name.removeprefix(f"{section}.") for name in meant.split()]
    if len(names) > 3:  # a sentence
        return meant
    return f"did you mean {' or '.join(map(repr, names))}?" if names else ""
