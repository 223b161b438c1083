"""Names of the documented Python API that have changed. An old name fails with an error that says the new one."""

from __future__ import annotations

from collections.abc import Mapping

# By module or class: {old name: new name}.
RENAMED: Mapping[str, Mapping[str, str]] = {
    "fedloom.methods": {"Finding": "Diagnostic", "Frozen": "FunctionalNet"},
    "fedloom.methods.Method": {"degeneracies": "diagnostics"},
}


def missing_attribute(owner: str, name: str) -> AttributeError:
    """The error for the unknown attribute `name` of `owner`, which names the attribute's new name if it was renamed."""
    renamed = RENAMED.get(owner, {}).get(name)
    hint = f"; it is now called {renamed!r}" if renamed else ""
    return AttributeError(f"{owner!r} has no attribute {name!r}{hint}")
