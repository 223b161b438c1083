"""Floor 3: one file per method. `METHODS` lists them; `contract/method.py` says what a method is.

A plug-in finds everything that it needs here: `from fedloom.methods import Method, register, Train, ...`.
"""

from fedloom.core.records import Record, get_number, get_table, get_tensor, get_tree
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree, clone, combine, select, weighted_mean
from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, Received, ServerContext, Start, Task, Work
from fedloom.methods.contract.losses import cross_entropy, kl_divergence
from fedloom.methods.contract.method import METHODS, WRAPPERS, Method, Options, Uploads, register
from fedloom.methods.contract.parts_of_data import Part
from fedloom.methods.contract.phases import (
    TRAINABLE,
    Batch,
    Choose,
    Collect,
    Consts,
    Objective,
    OptimizerSpec,
    Phase,
    Predictor,
    Train,
)
from fedloom.methods.contract.sample_statistics import (
    ClassCovariances,
    ClassMeans,
    LabelledRows,
    Moments,
    Rows,
    SampleMean,
)
from fedloom.methods.contract.spec import Sent, Spec
from fedloom.methods.wrappers.wrapping import averaged, names_of, wrapped
from fedloom.nets.blueprint import Bundle
from fedloom.nets.net import ALL_ROLES, BN_ROLES, FunctionalNet, Net, Role

__all__ = [
    "ALL_ROLES",
    "BN_ROLES",
    "METHODS",
    "TRAINABLE",
    "WRAPPERS",
    "Batch",
    "Bundle",
    "Choose",
    "Citation",
    "ClassCovariances",
    "ClassMeans",
    "ClassTable",
    "ClientContext",
    "Collect",
    "Consts",
    "Diagnostic",
    "FunctionalNet",
    "LabelledRows",
    "Method",
    "Moments",
    "Net",
    "Objective",
    "OptimizerSpec",
    "Options",
    "Part",
    "Phase",
    "Predictor",
    "Received",
    "Record",
    "Role",
    "Rows",
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
    "averaged",
    "clone",
    "combine",
    "cross_entropy",
    "get_number",
    "get_table",
    "get_tensor",
    "get_tree",
    "kl_divergence",
    "names_of",
    "register",
    "select",
    "weighted_mean",
    "wrapped",
]
