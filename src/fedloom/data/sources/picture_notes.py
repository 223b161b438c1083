"""Count unusual pictures of a set while they are read, and describe them."""

from __future__ import annotations

from collections import Counter

_SENTENCES = {
    "deep": "pictures with more than 256 levels: {count}; all pixels are kept as real numbers from 0 to 255",
    "dark": "pictures with 16 bits that use the lower 12 at most: {count}; normalise=own sees all their levels, unit "
    "and half make them nearly black",
    "reduced": "pictures with more than 8 bits per channel, of which the upper 8 are read: {count}, first {first}",
    "frames": "pictures with several frames or pages, of which only the first is read: {count}, first {first}",
    "format": "pictures of another format than their suffix says, read by their content: {count}, first {first}",
    "drawn": "pictures drawn in their transparency alone, laid over white (light ones over black): {count}, first "
    "{first}",
    "resized": "pictures of another size than the model's, which were resized: {count}, first {first}",
    "exif": "pictures with a damaged EXIF block, whose orientation is not known: {count}, first {first}",
}


class PictureNotes:
    """Counts the pictures of a set that are read, and what is unusual about them."""

    def __init__(self) -> None:
        self.total = 0
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, kind: str, name: str) -> None:
        """Count the picture `name` under `kind`, a key of `_SENTENCES`."""
        self._counts[kind] += 1
        self._first.setdefault(kind, name)

    def sentences(self, *, with_depth: bool = True) -> tuple[str, ...]:
        """One sentence for each kind that occurred among the pictures that were read.

        Args:
            with_depth: also how many levels they have, which decides how the pixels of a set are kept.
        """
        return tuple(sentence for _, _, sentence in self.by_kind(with_depth=with_depth))

    def by_kind(self, *, with_depth: bool = True) -> list[tuple[str, int, str]]:
        """Kind, number of pictures and sentence of each kind that occurred; `with_depth` as for `sentences`."""
        counts = dict(self._counts)
        if not with_depth:
            counts.pop("deep", None)
        if counts.get("dark") != counts.get("deep"):  # some use the whole range: no sign of 12 bits
            counts.pop("dark", None)
        return [
            (kind, counts[kind], text.format(count=f"{counts[kind]:,} of {self.total:,}", first=self._first[kind]))
            for kind, text in _SENTENCES.items()
            if kind in counts
        ]
