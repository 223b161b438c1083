"""The two tables of the page on privacy, made from the declarations of messages and methods (`Spec.sends`)."""

from dataclasses import dataclass

from fedloom.engine.jobs import methods_by_stage
from fedloom.methods import METHODS

# Facts in a node's replies, in addition to the method's upload, by the key in the reply (`wire.py`).
REPORTED_FACTS = {
    "when it joins": {
        "token": "a random word by which its disk is known",
        "samples": "how many training samples it has",
        "classes": "the class names that it knows",
        "moments": "once, of each measured column where no scale is agreed on: mean and squared distances from it; "
        "where missing cells are imputed also the number of observed cells, and of each word its share; zeros for "
        "fewer than five cells. For a median also how many of its cells lie in each of 64 bins within one standard "
        "deviation of the common mean, and in 64 bins of the one with the median, which is cut up to twice more while "
        "it has five cells of all nodes",
        "clock": "its time of day",
    },
    "with an upload": {
        "steps": "optimiser steps",
        "samples": "samples that it went through",
        "seconds": "how long it took",
        "terms": "the mean of each term of its loss",
        "norms": "how strongly each term pulls, in a few rounds",
        "notes": "what its engine reports",
        "has_state": "whether it keeps a private state",
    },
    "with a test": {
        "tested": "the sums of every metric: confusion matrix, whose rows are its tested samples of each class, summed "
        "loss, confidences in 15 bins, and those of `evaluation.metrics`; after the last round, with "
        "`evaluation.intervals`, also four sums over its groups of test samples, and their number",
        "samples": "samples that it adapted a model to",
    },
    "after the last round, if it never trains": {"tested": "the same sums, for each way in which it was served"},
    "when it cannot do what was asked": {
        "error": "the message of the error",
        "raised": "the traceback of an exception in the client's work",
    },
}

INDIRECTLY = "indirectly: the last layer"
OUTPUTS = "indirectly: outputs of the network, which favour frequent classes"
BODY = "perhaps: the body's weights"
_WITH_HEAD = {"P", "W", "H", "Q", "X"}  # symbols of traffic that hold a classifier's weights


@dataclass(frozen=True, slots=True)
class Privacy:
    """The privacy of one method.

    sends: entries of uploads, also in an opening or closing round. labels: entries that reveal the label mix directly.
    head: whether trained weights of a classifier head are sent, whose changes follow the class counts. outputs: whether
    predictions are sent. per_client:
    entries that the server reads client by client, which a secure sum cannot replace.
    """

    method: str
    sends: tuple[str, ...]
    labels: tuple[str, ...]
    head: bool
    outputs: bool
    per_client: tuple[str, ...]

    @property
    def label_disclosure(self) -> str:
        """Say how an upload reveals the client's labels."""
        ways = [f"directly: {', '.join(self.labels)}"] if self.labels else []
        ways += [INDIRECTLY] if self.head else [OUTPUTS] if self.outputs else []
        return "; ".join(ways) or (BODY if self.sends else "nothing is sent")

    @property
    def secure_sums(self) -> bool:
        """Whether the server needs only sums over clients."""
        return not self.per_client and bool(self.sends)


def privacy_of(method: str) -> Privacy:
    """Return the privacy of `method` with default options. Raises `ConfigError` for an unknown method."""
    kind = METHODS.get(method)
    up = kind.citation.up.keys() if kind.citation is not None else ()
    instance = kind.configured("sound", {})
    stages = [instance, *methods_by_stage(instance).values()]  # the rounds' entries come first
    sends = {name: sent for stage in stages for name, sent in stage.spec.sends.items()}
    return Privacy(
        method,
        tuple(sends),
        tuple(name for name, sent in sends.items() if sent.labels),
        bool(sends) if kind.citation is None else not _WITH_HEAD.isdisjoint(up),
        "outputs" in up,
        tuple(name for name, sent in sends.items() if sent.per_client or sent.sliced),
    )


def reported_facts_table() -> str:
    """Return a Markdown table of the facts that every node reports, whatever its method."""
    rows = ["| a node tells | key | meaning |", "|---|---|---|"]
    rows += [
        f"| {when} | {key} | {meaning} |" for when, facts in REPORTED_FACTS.items() for key, meaning in facts.items()
    ]
    return "\n".join(rows)


def methods_table() -> str:
    """Return a Markdown table of all methods whose clients keep their data."""
    rows = ["| method | leaves a client | tells of its labels | a secure sum would do |", "|---|---|---|---|"]
    for name, kind in METHODS:
        if kind.spec.pooled:
            continue
        privacy = privacy_of(name)
        per_client = f"no: {', '.join(privacy.per_client)}" if privacy.per_client else "nothing is sent"
        secure_sum = "yes" if privacy.secure_sums else per_client
        cells = (name, ", ".join(privacy.sends) or "nothing", privacy.label_disclosure, secure_sum)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
