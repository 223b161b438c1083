"""clients.json: the predictions of the last test by class, of every client. Needs no torch.

The file has, by protocol and client, the confusion matrix as the pairs of classes that occur, one after another: true
class, predicted class, samples. So it grows with the test samples and not with the squared number of classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedloom.core.errors import RunFolderError
from fedloom.runs.storage.run_folder import RunFolder

# By protocol, client and name.
ClientDetails = Mapping[str, Mapping[str, Mapping[str, list[int]]]]
Confusion = list[tuple[int, int, int]]  # true class, predicted class, samples

FILE = "clients.json"
_CONFUSION = "confusion"
_Numbers = list[Annotated[int, Field(ge=0, le=2**53)]]
_FILE = TypeAdapter(dict[str, dict[str, dict[str, _Numbers]]], config=ConfigDict(strict=True))


def write_client_details(folder: RunFolder, details: ClientDetails) -> None:
    """Write the file, unless no client was tested."""
    if any(details.values()):
        folder.write_json(FILE, details, indent=None)


def read_client_details(folder: RunFolder) -> ClientDetails:
    """Read the file; empty where there is none. Raises `RunFolderError` if it is damaged."""
    try:
        return _FILE.validate_python(folder.read_json(FILE) or {})
    except ValidationError:
        raise RunFolderError(
            f"{folder.path / FILE}: damaged; delete this file, or the run folder and run again"
        ) from None


def confusions_of(details: ClientDetails, protocol: str, classes: int) -> dict[int, Confusion]:
    """Return the pairs of classes of every client whose matrix was kept.

    Args:
        details: contents of the file.
        protocol: which model was tested on whose data, as "personal/local".
        classes: number of classes C.

    Raises `RunFolderError` for numbers that are no such pairs.
    """
    of_clients = details.get(protocol, {})
    return {
        int(client): _pairs(of[_CONFUSION], client, classes) for client, of in of_clients.items() if _CONFUSION in of
    }


def matrix_of(confusion: Confusion, classes: int) -> list[list[int]]:
    """Return samples by true and predicted class [C][C].

    Args:
        confusion: the pairs of classes that occur.
        classes: number of classes C.
    """
    counts = [[0] * classes for _ in range(classes)]
    for true, predicted, samples in confusion:
        counts[true][predicted] = samples
    return counts


def _pairs(numbers: Sequence[int], client: str, classes: int) -> Confusion:
    pairs = list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=False))
    if len(numbers) % 3 or any(max(true, predicted) >= classes for true, predicted, _ in pairs):
        raise RunFolderError(f"{FILE}: the confusion of client {client} is damaged; delete the file")
    return pairs
