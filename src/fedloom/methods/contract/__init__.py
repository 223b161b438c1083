"""The contract of a method: its declaration, its hooks, and the types that they exchange with the engine.

A method imports all of it from here: `from fedloom.methods.contract import Method, Options, Train, register`.
"""

from fedloom.methods.contract.citation import Citation
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, Received, ServerContext, Start, Task, Work
from fedloom.methods.contract.means import (
    ByNumber,
    mean_of,
    require_linear_head,
    require_same_heads,
    require_same_width,
    require_trained_body,
    require_trained_head,
)
from fedloom.methods.contract.method import LATER, METHODS, WRAPPERS, Method, Options, Uploads, Weights, register
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

__all__ = [
    "LATER",
    "METHODS",
    "TRAINABLE",
    "WRAPPERS",
    "Batch",
    "ByNumber",
    "Choose",
    "Citation",
    "ClassCovariances",
    "ClassMeans",
    "ClientContext",
    "Collect",
    "Consts",
    "Diagnostic",
    "LabelledRows",
    "Method",
    "Moments",
    "Objective",
    "OptimizerSpec",
    "Options",
    "Part",
    "Phase",
    "Predictor",
    "Received",
    "Rows",
    "SampleMean",
    "Sent",
    "ServerContext",
    "Spec",
    "Start",
    "Statistic",
    "Task",
    "Train",
    "Uploads",
    "Weights",
    "Work",
    "cross_entropy",
    "kl_divergence",
    "mean_of",
    "register",
    "require_linear_head",
    "require_same_heads",
    "require_same_width",
    "require_trained_body",
    "require_trained_head",
]
