"""The sentences of a text in Markdown."""

import re

LONGEST = 45  # words in a sentence


def sentences(text: str) -> list[str]:
    """The sentences of a page, without code, equations, tables and the words of lists' neighbours."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\$\$.*?\$\$", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^(\||#|:::|---).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*([-*]|\d+\.) ", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    pieces = (piece for block in re.split(r"\n\s*\n", text) for piece in re.split(r"(?<=[.!?])[*_)]*\s+", block))
    return [" ".join(piece.split()) for piece in pieces if piece.strip()]
