"""Errors that a person can act on.

Every `FedloomError` states the value, why it is wrong and what would be right, in one line. The command line and
notebooks show that line alone and exit with `exit_code`; any other exception is a bug and keeps its traceback."""

import copy
import difflib
import pickle
import re
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

from fedloom.core.synonyms import meant_by, plain_word

# typographic spaces, and the joiners that Persian and Indic words need, and some emoji
_HARMLESS = "\u00a0\u2007\u2009\u202f\u3000\u200c\u200d"
_MAX_COMPARED_LENGTH = 100  # characters of a name that are compared with known names
_MAX_LISTED_NAMES = 30


class FedloomError(Exception):
    """Base of all expected failures: the message is one line for a person."""

    exit_code = 2
    _shown_in_notebook = False

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: the message; where it is asked again, as by `%tb`, the whole trace."""
        if self._shown_in_notebook:
            return "".join(traceback.format_exception(self)).splitlines()
        self._shown_in_notebook = True
        return [f"{type(self).__name__}: {printable(str(self))}"]


class ConfigError(FedloomError):
    """A setting that cannot be used: unknown, out of range, or contradicting another."""


class MissingPackageError(ConfigError):
    """A setting that needs a package which is not installed; it could be used in another environment."""


class UnknownKeyError(ConfigError):
    """A key that its section (dotted, "" for the top level) lacks; `suffix` follows the key in the message."""

    def __init__(self, section: str, key: str, known_keys: Iterable[str], suffix: str = "") -> None:
        self.section, self.key, self.known_keys, self._suffix = section, key, sorted(known_keys), suffix
        super().__init__(self.message_with(suggest_name(key, self.known_keys)))

    def message_with(self, hint: str) -> str:
        path = f"{self.section}.{self.key}" if self.section else self.key
        return f"unknown key {short_repr(path)}{self._suffix}: {hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.section, self.key, self.known_keys, self._suffix)


class DataError(FedloomError):
    """Data that is missing, damaged, or does not fit the scenario."""


class StoppedError(FedloomError):
    """A run that SIGUSR1 ended between two rounds. Its state is saved, and the same command continues."""

    exit_code = 75  # EX_TEMPFAIL: try again


class CheckpointError(FedloomError):
    """A checkpoint that cannot be continued: damaged, of another config, or of another version."""


class RunFolderError(FedloomError):
    """A run folder that cannot be used: in use, unfinished, unwritable, or of another config."""


class ClientError(FedloomError):
    """An exception inside one client's work, which is its `__cause__`. Attributes: `client` (id, or below 0 in a test
    of the server's model), `round` (1-based), `stage` ("begin", "phase 0", "end", "test", ...), `method` (its name,
    empty where it is unknown)."""

    exit_code = 1

    def __init__(self, client: int, round_: int, stage: str, cause: BaseException, method: str = "") -> None:
        self.client, self.round, self.stage, self.method = client, round_, stage, method
        self._cause = self.__cause__ = cause  # set here, because unpickling runs no `raise ... from`
        prefix = f"{method}: " if method else ""
        super().__init__(f"{prefix}{self._work()} failed in round {round_} ({stage}): {type(cause).__name__}: {cause}")

    def _work(self) -> str:
        return f"client {self.client}" if self.client >= 0 else "the server's model"

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows. The failure may lie in the user's code, so the first one names `%tb`."""
        lines = super()._render_traceback_()
        return [f"{lines[0]} (%tb shows where)"] if len(lines) == 1 else lines

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the cause and the notes when the error is pickled."""
        notes = {"__notes__": self.__notes__} if hasattr(self, "__notes__") else {}
        return type(self), (self.client, self.round, self.stage, self._cause, self.method), notes


class ServerError(ClientError):
    """An exception in a hook that the server calls, which is its `__cause__`; `stage` is the hook's name, `client` the
    client for whom it was called, -1 for none."""

    def _work(self) -> str:
        return f"the server, for client {self.client}," if self.client >= 0 else "the server"


def picklable_error(error: Exception) -> Exception:
    """Return the error with its traceback as a note; one that no pickle holds is replaced by one with its message."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.dumps(error)
        copy.deepcopy(error)  # rebuilds the error and its cause as `pickle.loads` would
    except Exception:  # whatever the error's class raises
        if isinstance(error, ClientError):
            error = ClientError(error.client, error.round, error.stage, RuntimeError(repr(error.__cause__)))
        else:
            error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(text)
    return error


def short_repr(value: object, max_length: int = 80) -> str:
    """Return the `repr` of a value for a message, cut in the middle if it is longer than `max_length` characters."""
    text = repr(value)
    return text if len(text) <= max_length else f"{text[: max_length // 2]}...{text[-max_length // 4 :]}"


def printable(text: str, *, keep_lines: bool = False) -> str:
    """Escape what a terminal, a log or a page must not interpret in foreign text: control characters, marks of
    direction, invisible characters and, unless `keep_lines`, tabs and line breaks, which would forge lines of a log."""
    if text.isprintable():
        return text
    if keep_lines:
        return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
    return "".join(c if c.isprintable() or c in _HARMLESS else ascii(c)[1:-1] for c in text)


def suggest_name(name: str, known_names: Iterable[str], kind: str = "") -> str:
    """Return a hint for an unknown `name`: "did you mean 'x'?", or the list of the known names.

    kind: the noun of the names ("method", "metric", ...), under which words of other libraries are known."""
    choices = sorted(known_names)
    hint = meant_by(kind, name)
    if hint and ("'" not in hint or any(f"'{choice}" in hint for choice in choices)):
        return hint
    if nearest := nearest_name(name, choices):
        return f"did you mean '{nearest}'?"
    more = f" and {len(choices) - _MAX_LISTED_NAMES} more" if len(choices) > _MAX_LISTED_NAMES else ""
    return "known: " + (", ".join(choices[:_MAX_LISTED_NAMES]) + more if choices else "none")


def check_choice(key: str, value: object, choices: Sequence[str]) -> None:
    """Raise `ConfigError` if the value of `key` is none of the choices."""
    if value not in choices:
        nearest = nearest_name(str(value), choices)
        hint = f"did you mean '{nearest}'?" if nearest else meant_by("value", str(value), key)
        hint = f"{hint} " if hint else ""
        raise ConfigError(f"{key} = {short_repr(value)}: {hint}need one of {', '.join(choices)}")


def attribute_error(owner: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for a name that `owner`, a module or a class, lacks; programs look for names with _ as well."""
    public = [] if name.startswith("_") else [known for known in names if not known.startswith("_")]
    near = nearest_name(name, public)
    hint = meant_by(owner, name) if public else ""
    hint = hint or (f"did you mean '{near}'?" if near else "")
    return AttributeError(f"{owner} has no attribute '{name}'{hint and f': {hint}'}")


def nearest_name(name: str, choices: Sequence[str]) -> str:
    """Return the choice that `name` probably misspells or begins, or nothing."""
    typed = name[:_MAX_COMPARED_LENGTH].lower()
    same = (choice for choice in choices if plain_word(choice) == plain_word(typed))
    near = difflib.get_close_matches(typed, choices, n=10, cutoff=0.5)
    likely = (choice for choice in near if _is_misspelling(typed, choice.lower()))
    begun = [choice for choice in choices if len(typed) > 2 and choice.startswith(typed)]
    return next(same, None) or next(likely, None) or (begun[0] if len(begun) == 1 else "")


def _is_misspelling(typed: str, name: str) -> bool:
    """Whether two names are near in each of their words: `n_clients` is no misspelling of `min_clients`."""
    parts, of_name = re.split("[_-]", typed), re.split("[_-]", name)
    if 1 < len(parts) == len(of_name):
        return all(map(_is_misspelling, parts, of_name))
    edits = _edits(typed, name)
    if len(typed) < 4 and len(typed) == len(name):  # another letter makes another short word, as in gpu and gpr
        return not edits or sorted(typed) == sorted(name)
    return edits < 2 or (edits == 2 and len(typed) > 5 and difflib.SequenceMatcher(None, typed, name).ratio() > 0.78)


def _edits(first: str, second: str) -> int:
    """Count the letters to insert, delete, replace or swap with their neighbour to turn one word into the other."""
    before, row = list[int](), list(range(len(second) + 1))
    for i, letter in enumerate(first):
        older, before, row = before, row, [i + 1]
        for j, other in enumerate(second):
            row.append(min(before[j + 1] + 1, row[j] + 1, before[j] + (letter != other)))
            if i and j and (letter, other) == (second[j - 1], first[i - 1]):
                row[-1] = min(row[-1], older[j - 1] + 1)
    return row[-1]
