"""Floor 3: one file per method. `METHODS` lists them; `contract/method.py` defines a method.

One import has everything that a method needs, here and in a plug-in: `import fedloom.methods as fm`. This file imports
no method, so that a run loads only those that it uses."""

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record, get_number, get_table, get_tensor, get_tree
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree, clone, combine, select, weighted_mean
from fedloom.methods.contract.citation import Citation, training
from fedloom.methods.contract.contexts import (
    ClientContext,
    Diagnostic,
    Received,
    ServerContext,
    Start,
    Task,
    Tasks,
    Work,
)
from fedloom.methods.contract.method import (
    METHODS,
    PRESETS,
    WRAPPERS,
    Method,
    Options,
    Uploads,
    Weights,
    numbers_of,
    option,
    register,
    tables_of,
    tensors_of,
)
from fedloom.methods.contract.phases import (
    ABSENT,
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
    cross_entropy,
    kl_divergence,
)
from fedloom.methods.contract.sample_statistics import (
    ClassCovariances,
    ClassMeans,
    LabelledRows,
    Moments,
    Rows,
    SampleMean,
    Statistic,
)
from fedloom.methods.contract.spec import Part, Sent, Spec
from fedloom.methods.wrappers.wrapping import averaged, names_of, wrapped
from fedloom.nets.blueprint import Bundle
from fedloom.nets.net import ALL_ROLES, BN_ROLES, EXTRA, FunctionalNet, Net, Role

__all__ = [
    "ABSENT", "ALL_ROLES", "BN_ROLES", "EXTRA", "METHODS", "PRESETS", "TRAINABLE", "WRAPPERS", "Batch", "Bundle",
    "Choose", "Citation", "ClassCovariances", "ClassMeans", "ClassTable", "ClientContext", "Collect", "ConfigError",
    "Consts", "Diagnostic", "FunctionalNet", "LabelledRows", "Method", "Moments", "Net", "Objective", "OptimizerSpec",
    "Options", "Part", "Phase", "Predictor", "Received", "Record", "Role", "Rows", "SampleMean", "Sent",
    "ServerContext", "Spec", "Start", "Statistic", "Task", "Tasks", "Train", "Tree", "Uploads", "Weights", "Work",
    "averaged", "clone", "combine", "cross_entropy", "get_number", "get_table", "get_tensor", "get_tree",
    "kl_divergence", "names_of", "numbers_of", "option", "register", "select", "tables_of", "tensors_of", "training",
    "weighted_mean", "wrapped"
]  # fmt: skip
