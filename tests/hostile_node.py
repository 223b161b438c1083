"""A node process with a valid key that lies: what its Python loads at start, to change how fedloom answers there.

The app comes from the server, so a hostile node changes the package that the app imports.
"""

from pathlib import Path

_CODE = '''
import importlib.abc, importlib.util, os, sys


class Changed(importlib.abc.MetaPathFinder):
    """Changes fedloom.flower.node after it is loaded."""

    def find_spec(self, name, path, target=None):
        if name != "fedloom.flower.node":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), change(module))
        return spec


def change(module):
    import math, torch
    from fedloom.core.records import from_bytes, to_bytes
    from fedloom.flower.wire import JoinReply, Message, Request, read

    kind, honest = os.environ["HOSTILE"], module.Node.answer

    def answer(self, letter):
        order, said = read(letter, Request), honest(self, letter)
        if kind == "thief" and order.do == "join":
            return read(said, JoinReply).model_copy(update={"client": 0}).to_message()
        if kind == "upload" and order.do == "train" and order.round == 1:
            record = from_bytes(said.body)
            record["model"] = {name: torch.full_like(value, math.nan) for name, value in record["model"].items()}
            return Message(said.facts, to_bytes(record))
        if kind == "upload" and order.do == "train" and order.round == 2:
            return Message(said.facts, os.urandom(100_000_000))
        return said

    module.Node.answer = answer


if "HOSTILE" in os.environ:
    sys.meta_path.insert(0, Changed())
'''


def hostile(folder: Path, kind: str) -> list[str]:
    """Words before the command of a node that make it hostile. kind: "upload" sends NaN in round 1 and 100 MB in round
    2, "thief" joins as client 0. folder: where the code goes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_CODE, encoding="utf-8")
    return ["env", f"HOSTILE={kind}", f"PYTHONPATH={folder}"]
