"""The cache folder, standard JSON, files that are written completely or not at all, and YAML that people wrote.

PyYAML's safe loader builds no objects, but it recurses as deep as its input, expands aliases without limit, keeps the
last of two equal keys, and follows YAML 1.1: it reads off, on, no and yes as truth values, although an option may be
called `off`, 010 as 8, and 1:30 as 90."""

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Hashable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

import yaml

from fedloom.core.errors import ConfigError, short_repr

_SHARED_FILE, _PRIVATE_FILE, _PRIVATE_FOLDER = 0o644, 0o600, 0o700


def cache_dir() -> Path:
    """Return the folder of files that can be made again: $FEDLOOM_CACHE, else the platform's cache folder."""
    return user_folder("cache", "FEDLOOM_CACHE")


def user_folder(purpose: Literal["cache", "state"], variable: str) -> Path:
    """Return the folder that an environment variable names, else the platform's folder for fedloom and this purpose.
    Raises `ConfigError` if the variable is not set and there is no home directory."""
    if configured_folder := os.environ.get(variable):
        return expand_home(configured_folder)
    import platformdirs  # slower to import than this whole file, and not needed where the variable is set

    platform_folder = {"cache": platformdirs.user_cache_dir, "state": platformdirs.user_state_dir}[purpose]
    try:
        return Path(platform_folder("fedloom", appauthor=False)).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"no folder for the {purpose}: {error}; or set {variable} to a folder of your own") from None


def expand_home(path: Path | str) -> Path:
    """Replace ~ or ~user at the beginning of a path. Raises `ConfigError` without a home directory, or for no path."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{short_repr(path)} is of type {type(path).__name__}; need a path, as a text or a Path")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        remedy = "write the path in full"
        raise ConfigError(f"{path}: no home directory is known for {Path(path).parts[0]}; {remedy}") from None


def expand_if_path(value: Any) -> Any:
    """Return a value of a config unchanged, but a path with `expand_home`."""
    return expand_home(value) if isinstance(value, Path) else value


def json_text(value: Any, **dump_options: Any) -> str:
    """Return `value` as JSON with null for NaN and infinity, which JSON lacks. dump_options: those of `json.dumps`."""
    return json.dumps(without_nan(value), allow_nan=False, **dump_options)


def json_digest(value: Any) -> str:
    """Return the sha256 (64 hex digits) of a value as JSON, whatever the order of its keys. Objects become texts."""
    return hashlib.sha256(json_text(value, sort_keys=True, default=str).encode()).hexdigest()


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text. Raises `ValueError` if it is no JSON, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def without_nan(value: Any) -> Any:
    """Return a JSON value with None for each number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_nan(entry) for key, entry in value.items()}
    return [without_nan(entry) for entry in value] if isinstance(value, list | tuple) else value


def read_file(path: Path) -> bytes:
    """Read a regular file. Raises `OSError`, also for a pipe or a device, which might never end."""
    with open_to_read(path) as stream:
        return stream.read()


def open_to_read(path: Path) -> io.BufferedReader:
    """Open a regular file for reading. Raises `OSError`, also for a pipe or a device, which might never end."""
    return os.fdopen(_descriptor(path, os.O_RDONLY), "rb")


def open_to_append(path: Path) -> BinaryIO:
    """Open a regular file for appending, made if needed. Raises `OSError`, also for a symbolic link."""
    return os.fdopen(_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)), "ab")


def _descriptor(path: Path, flags: int) -> int:
    """Open a regular file without waiting, as opening a pipe would."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    try:
        _refuse_irregular(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_irregular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))


def refuse_unwritable(path: Path) -> None:
    """Raise `OSError` if `write_atomic` could not write to `path`, before there is anything to write."""
    if path.exists() and not path.is_symlink():
        _refuse_irregular(path, path.stat())
    folder = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def write_atomic(path: Path, data: bytes | str, *, private: bool = False) -> None:
    """Write a file completely or not at all; a symbolic link is replaced, and its target stays. A `private` file is
    0600, new folders 0700. Raises `OSError` and then leaves `path` as it was."""
    raw = data.encode(errors="backslashreplace") if isinstance(data, str) else data  # file names may be no valid text
    if private:
        private_folder(path.parent)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    refuse_unwritable(path)
    # In the same folder, because a rename is atomic within one file system only.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    # O_EXCL refuses an existing file or link, which another user could have put there.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE if private else _SHARED_FILE)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
            stream.flush()
            # Before the rename: after a crash, the new name could otherwise point to an empty file.
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def private_folder(folder: Path) -> None:
    """Create a folder, and missing ones above it, that only its owner can enter (0700). Raises `OSError`."""
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)


def restrict_to_owner(folder: Path) -> None:
    """Remove the permissions of group and others from what this user owns in a folder; links are not followed."""
    if not hasattr(os, "getuid"):
        return
    for parent, folders, files in os.walk(folder, followlinks=False):
        for path in (Path(parent), *(Path(parent, name) for name in (*folders, *files))):
            with contextlib.suppress(FileNotFoundError):  # another process may have renamed it
                status = path.lstat()
                if not stat.S_ISLNK(status.st_mode) and status.st_uid == os.getuid() and status.st_mode & 0o077:
                    path.chmod(stat.S_IMODE(status.st_mode) & 0o700)


@contextlib.contextmanager
def private_umask() -> Iterator[None]:
    """Set the umask to 077 within the block: only the owner can read new files, also those that libraries write."""
    previous_mask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(previous_mask)


_MAX_LENGTH = 1 << 16  # characters; parsed within seconds
_MAX_DEPTH = 30
_MAX_VALUES = 100_000  # after aliases are expanded


class _RefusedYaml(yaml.YAMLError):
    """Valid YAML that no config needs."""


_BOOL_TAG, _INT_TAG, _FLOAT_TAG = (f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float"))


class _Loader(yaml.SafeLoader):
    """The safe loader without duplicate keys. Truth values are true and false, as in YAML 1.2. Numbers are written in
    decimal or hexadecimal digits; 1:30 and 010 are texts, of which a key that takes a number reads 010 as ten."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first_character: [entry for entry in resolvers if entry[0] not in (_BOOL_TAG, _INT_TAG, _FLOAT_TAG)]
        for first_character, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in names:
                    raise _RefusedYaml(f"the key '{key.value}' comes twice, again in line {key.start_mark.line + 1}")
                names.add(key.value)
        return super().construct_mapping(node, deep)


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    digits = str(loader.construct_scalar(node)).replace("_", "")
    return int(digits, 16 if digits.startswith("0x") else 10)


_Loader.add_implicit_resolver(_BOOL_TAG, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    _FLOAT_TAG,
    re.compile(
        r"^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver(
    _INT_TAG, re.compile("^(?:[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+)$"), list("-+0123456789")
)
_Loader.add_constructor(_INT_TAG, _whole_number)


def parse_yaml(text: str, max_length: int = _MAX_LENGTH) -> Any:
    """Parse one YAML document of at most `max_length` characters into plain values. Raises `yaml.YAMLError` for invalid
    YAML, duplicate keys, and documents that are larger or deeper than any config."""
    if len(text) > max_length:
        raise _RefusedYaml(f"more than {max_length:,} characters; no config is that long")
    try:
        return copied(_load(text))
    except (ValueError, OverflowError) as error:  # a date such as 2024-99-99, a number of 5,000 digits
        raise _RefusedYaml(str(error)) from None


def read_yaml(path: Path) -> Any:
    """Parse a YAML file into plain values. Raises `ConfigError`, one line that names the file."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(4 * _MAX_LENGTH + 1)  # the file may be a device without end
        return parse_yaml(raw.decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file") from None
    except OSError as error:
        raise ConfigError(f"{path}: not readable: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {one_line(error)}") from None


def shipped_folder(name: str) -> Path:
    """Return a folder that comes with fedloom: next to the installed package's files, or at the root of a checkout.
    Raises `ConfigError` if it is missing."""
    package = Path(__file__).resolve().parents[1]
    folders = [package / name, package.parents[1] / name]
    for folder in folders:
        if folder.is_dir():
            return folder
    raise ConfigError(f"neither {folders[0]} nor {folders[1]} is there; reinstall fedloom")


def package_table(path: Path) -> dict[str, dict[str, Any]]:
    """Return the sections of a TOML file of the package, with tuples for lists."""
    import tomllib  # not needed by commands without data and nets

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    sections = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: {key: frozen(value) for key, value in keys.items()} for name, keys in sections.items()}


def one_line(error: BaseException) -> str:
    """Return the message of an error without line breaks."""
    return " ".join(str(error).split())


@lru_cache(64)  # the settings of a study share their files
def _load(text: str) -> Any:
    _refuse_large(text)
    return yaml.load(text, _Loader)  # a safe loader


def copied(value: Any) -> Any:
    """Copy mappings and lists, which YAML aliases and cached documents would share; the values in them are shared."""
    if isinstance(value, Mapping):
        return {key: copied(entry) for key, entry in value.items()}
    return [copied(entry) for entry in value] if isinstance(value, list) else value


def _refuse_large(text: str) -> None:
    """Refuse deep nesting, recursive aliases and aliases that expand to too much, before PyYAML recurses into them."""
    sizes: dict[str | None, int] = {}
    open_collections: list[tuple[str | None, int]] = []  # anchor, and number of values before it
    size = 0
    # Events come one at a time, so the limits end the parse before any value is built.
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_collections):
                raise _RefusedYaml(f"the alias *{event.anchor} refers to itself")
            # An alias counts as much as its anchor, and aliases within aliases multiply.
            size += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            size += 1
            sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_collections.append((event.anchor, size))
            size += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size_before = open_collections.pop()
            sizes[anchor] = size - size_before
        if len(open_collections) > _MAX_DEPTH:
            raise _RefusedYaml(f"nested more than {_MAX_DEPTH} deep")
        if size > _MAX_VALUES:
            raise _RefusedYaml(f"aliases unfold to more than {_MAX_VALUES:,} values")
