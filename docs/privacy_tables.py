"""The two tables of the page on privacy, made from the declarations of messages and methods (`Spec.sends`)."""

from fedloom.engine.jobs import methods_by_stage
from fedloom.methods import METHODS
from fedloom.methods.catalogue import abilities, reveals

# Facts in a node's replies, in addition to the method's upload, by the key in the reply (`wire.py`).
REPORTED_FACTS = {
    "when it joins": {
        "token": "a random word by which its disk is known",
        "samples": "how many training samples it has",
        "classes": "the class names that it knows",
        "moments": "once, of each measured column where no scale is agreed on, and with `flower.compare: [moments]` of "
        "the features with an agreed mean or the channels of pictures: mean and squared distances from it; "
        "where missing cells are imputed also the number of observed cells, and of each word its share; zeros for "
        "fewer than five cells. For a median also how many of its cells lie in each of 64 bins within one standard "
        "deviation of the common mean, and in 64 bins of the one with the median, which is cut up to twice more while "
        "it has five cells of all nodes",
        "clock": "its time of day",
        "leaks": "whether its test samples repeat training data",
        "unreadable": "how many samples it leaves out because they cannot be read",
        "labels": "only with `flower.compare: [labels]`: its training samples of each class, 0 for fewer than five",
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
        "`evaluation.intervals`, also the number of its groups of test samples and two sums over them for each metric: "
        "how much it would change if a group counted more, squared",
        "samples": "samples that it adapted a model to",
    },
    "after the last round, if it never trains": {"tested": "the same sums, for each way in which it was served"},
    "when it cannot do what was asked": {
        "error": "the message of the error",
        "raised": "the traceback of an exception in the client's work",
        "lost": "whether the process that did it has ended",
    },
    "while it works": {
        "phase": "a word, such as training",
        "fraction": "of the phase that is done",
        "detail": "the epoch, e.g. epoch 2 of 5",
        "needs": "parts of a message that it lacks",
        "seconds": "how long it has worked",
        "work": "processor time of its process",
    },
}


def reported_facts_table() -> str:
    """Return a Markdown table of the facts that every node reports, whatever its method."""
    rows = ["| a node tells | key | meaning |", "|---|---|---|"]
    rows += [
        f"| {when} | {key} | {meaning} |" for when, facts in REPORTED_FACTS.items() for key, meaning in facts.items()
    ]
    return "\n".join(rows)


def methods_table() -> str:
    """Return a Markdown table of all methods whose clients keep their data."""
    rows = ["| method | leaves a client | reveals of its samples | a secure sum would do |", "|---|---|---|---|"]
    for name, kind in METHODS:
        if kind.spec.pooled:
            continue
        stages = methods_by_stage(kind.configured("sound", {})).values()
        sends = dict.fromkeys(entry for stage in stages for entry in stage.spec.sends)
        able = abilities(kind)
        per_client = f"no: {', '.join(sorted(able.per_client))}" if able.per_client else "nothing is sent"
        secure_sum = "yes" if able.secure_sum else per_client
        rows.append(f"| {name} | {', '.join(sends) or 'nothing'} | {reveals(kind)} | {secure_sum} |")
    return "\n".join(rows)
