"""Lists that are derived from code, kept so that showing them needs no import of torch.

The package comes with them, as `make facts` wrote them, for the code that was installed with it. Where that code was
edited, or something plugs in, a list is made once and kept in the cache folder. It holds for one state of the code: the
source files of fedloom and those of every plug-in.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any

from fedloom._version import __version__
from fedloom.core.errors import ConfigError
from fedloom.core.files import cache_dir, json_digest, json_text, parse_json, read_file, write_atomic

_PACKAGE = Path(__file__).resolve().parents[1]
_GROUPS = ("fedloom.methods", "fedloom.models", "fedloom.sources", "fedloom.wrappers")


def cached_list(noun: str, build: Callable[[], tuple[Any, bool]]) -> Any:
    """Return a list of the entries of a registry as JSON values: the package's, one of an earlier process, or anew.

    The package's is used if all files are as they were installed and nothing plugs in, and one in the cache if no file
    of fedloom or of a plug-in has changed and its checksum is right. In a process that has imported torch, `build` is
    called: it is quick there, and others may have registered entries. A cache folder that cannot be written costs time
    alone.

    Args:
        noun: what the list is of, which names its file.
        build: returns the list, and whether it is complete; one that lacks a broken plug-in is not kept, so that every
            call warns.
    """
    if "torch" in sys.modules:
        return _plain(build()[0])
    packaged = _packaged_list(noun)
    if packaged is not None:
        return packaged
    try:
        path, code = _path(noun), _code_digest()
    except ConfigError:  # no folder for the cache
        return _plain(build()[0])
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # one that cannot be read is made again
        kept = parse_json(read_file(path))
        if kept["code"] == code and kept["checksum"] == json_digest(kept["list"]):
            return kept["list"]
    entries, is_complete = build()
    plain = _plain(entries)
    if is_complete:
        with contextlib.suppress(OSError):
            kept = {"code": code, "checksum": json_digest(plain), "list": plain}
            write_atomic(path, json_text(kept), private=True)
    return plain


def packaged_text(entries: Any) -> str:
    """Return the text of a list as the package has it, with one line for each value, so that changes show."""
    return json_text(_plain(entries), indent=1) + "\n"


def _packaged_list(noun: str) -> Any:
    """Return the list that came with the package; None unless it and all code are as they were installed, alone."""
    name = f"{_PACKAGE.name}/cli/lists/{noun}.json"
    with contextlib.suppress(PackageNotFoundError, OSError, ValueError):
        installed = distribution(_PACKAGE.name)
        hashes = {
            file.as_posix(): file.hash.value
            for file in installed.files or ()
            if file.hash is not None and file.parts[0] == _PACKAGE.name and file.suffix in {".py", ".json"}
        }
        root, package_files = _PACKAGE.parent, [_PACKAGE.parent / name, *map(Path, _python_files(_PACKAGE))]
        is_untouched = Path(str(installed.locate_file(name))) == root / name and all(
            hashes.get(file.relative_to(root).as_posix()) == _record_hash(file) for file in package_files
        )
        if is_untouched and not any(entry_points(group=group) for group in _GROUPS):
            return parse_json(read_file(root / name))
    return None


def _record_hash(file: Path) -> str:
    """The hash of a file as an installer notes it in its record."""
    return base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()


def _plain(entries: Any) -> Any:
    return parse_json(json_text(entries, default=str))


def _path(noun: str) -> Path:
    """One file for each installation, so that several do not replace each other's."""
    installation = hashlib.sha256(f"{_PACKAGE}\0{sys.prefix}".encode(errors="surrogateescape")).hexdigest()[:8]
    return cache_dir() / "lists" / f"{noun}-{installation}.json"


def _code_digest() -> str:
    """A hash of all code that a list is derived from, with the versions of fedloom and Python."""
    digest = hashlib.sha256(repr((__version__, sys.version, sys.flags.optimize)).encode())
    for file in _python_files(_PACKAGE):
        digest.update(os.fsencode(file) + b"\0" + hashlib.sha256(Path(file).read_bytes()).digest())
    for group in _GROUPS:
        for plugin in entry_points(group=group):
            distribution = (plugin.dist.name, plugin.dist.version) if plugin.dist else ()
            digest.update(repr((group, plugin.name, plugin.value, distribution)).encode())
            for file in _files_of(plugin):
                status = Path(file).stat()
                digest.update(os.fsencode(file) + f"\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _files_of(plugin: EntryPoint) -> list[str]:
    """The source files of the package of a plug-in, found without importing it."""
    try:
        spec = importlib.util.find_spec(plugin.module.partition(".")[0])
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    folders = spec.submodule_search_locations
    if folders is not None:
        return [file for folder in folders for file in _python_files(Path(folder))]
    return [spec.origin] if spec.origin and Path(spec.origin).is_file() else []


def _python_files(folder: Path) -> list[str]:
    return sorted(str(file) for file in folder.rglob("*.py"))
