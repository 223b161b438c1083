"""Floor 3: one file per method. `METHODS` lists them; `method.py` is the contract.

A plug-in finds everything that it needs here: `from fedloom.methods import Method, register, Train, ...`.
"""

from fedloom.core.records import Record, get_number, get_table, get_tensor, get_tree
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree, clone, combine, select, weighted_mean
from fedloom.methods import (
    apfl,
    ditto,
    fedala,
    fedavg,
    fedbabu,
    fedbn,
    fedco2,
    feddw,
    fedper,
    fedprox,
    fedrep,
    fedsc,
    fedskc,
    fedssa,
    lgfedavg,
    local,
    perfedavg,
    pfedme,
    robust,
)
from fedloom.methods.about import About
from fedloom.methods.facts import ClientContext, Finding, ServerContext, Start, Task, Work
from fedloom.methods.method import METHODS, WRAPPERS, Method, Options, Uploads, register
from fedloom.methods.parts.losses import cross_entropy, kl_divergence
from fedloom.methods.parts.wrapping import averaged, names_of, wrapped
from fedloom.methods.phases import (
    TRAINABLE,
    Batch,
    ClassMeans,
    Collect,
    Consts,
    Objective,
    OptimizerSpec,
    Phase,
    Predictor,
    SampleMean,
    Train,
)
from fedloom.methods.spec import Sent, Spec
from fedloom.nets.bundle import Bundle
from fedloom.nets.frozen import Frozen
from fedloom.nets.net import Net
from fedloom.nets.roles import ALL_ROLES, BN_ROLES, Role

__all__ = [
    "ALL_ROLES",
    "BN_ROLES",
    "METHODS",
    "TRAINABLE",
    "WRAPPERS",
    "About",
    "Batch",
    "Bundle",
    "ClassMeans",
    "ClassTable",
    "ClientContext",
    "Collect",
    "Consts",
    "Finding",
    "Frozen",
    "Method",
    "Net",
    "Objective",
    "OptimizerSpec",
    "Options",
    "Phase",
    "Predictor",
    "Record",
    "Role",
    "SampleMean",
    "Sent",
    "ServerContext",
    "Spec",
    "Start",
    "Task",
    "Train",
    "Tree",
    "Uploads",
    "Work",
    "apfl",
    "averaged",
    "clone",
    "combine",
    "cross_entropy",
    "ditto",
    "fedala",
    "fedavg",
    "fedbabu",
    "fedbn",
    "fedco2",
    "feddw",
    "fedper",
    "fedprox",
    "fedrep",
    "fedsc",
    "fedskc",
    "fedssa",
    "get_number",
    "get_table",
    "get_tensor",
    "get_tree",
    "kl_divergence",
    "lgfedavg",
    "local",
    "names_of",
    "perfedavg",
    "pfedme",
    "register",
    "robust",
    "select",
    "weighted_mean",
    "wrapped",
]
