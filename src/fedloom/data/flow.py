"""The flow of data: rows, groups and sites at each stage, from the rows of the files to the parts of a scenario."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.scenario import PICTURED_CLIENTS, Scenario
from fedloom.data.views import Indices


def parts(scenario: Scenario) -> dict[str, tuple[Dataset, Indices]]:
    """Return the samples of each part. Newcomers' test rows in an official test set are rows of the test set."""
    data, test_set = scenario.train_set, scenario.test_set
    samples = {"training": (data, scenario.train.order), "validation": (data, scenario.val.order)}
    samples["test"] = (test_set, np.arange(len(test_set)))
    if scenario.public is not None:
        samples["public"] = (scenario.public, np.arange(len(scenario.public)))
    if (newcomers := scenario.newcomers) is not None:
        rows = np.concatenate([newcomers.train.order, newcomers.val.order])
        samples["newcomers' training"] = (newcomers.train_set, rows)
        if newcomers.test_set is not scenario.test_set:
            samples["newcomers' test"] = (newcomers.test_set, newcomers.test.order)
    return {name: part for name, part in samples.items() if len(part[1])}


def stage(sites: Indices, names: Sequence[str], groups: Indices | None) -> dict[str, Any]:
    """Return the rows and groups of a stage, in all and at its first sites, as JSON values; None for unnamed groups.
    sites, groups: those of each row [n], -1 for none; `names` names the sites."""
    rows, held = np.bincount(sites[sites >= 0], minlength=len(names)).tolist(), [None] * len(names)
    if groups is not None:
        is_known, numbers = (sites >= 0) & (groups >= 0), int(groups.max(initial=0)) + 1
        pairs = np.unique(sites[is_known] * numbers + groups[is_known])
        held = np.bincount(pairs // numbers, minlength=len(names)).tolist()
    by_site = [[name, count, of] for name, count, of in zip(names, rows, held, strict=True) if count]
    total = None if groups is None else len(np.unique(groups[groups >= 0]))
    return {"rows": len(sites), "groups": total, "sites": by_site[:PICTURED_CLIENTS]}


def flow_of(scenario: Scenario) -> dict[str, Any]:
    """Return the stages of the source, then those of the parts, which also count the classes; empty for remote clients.
    A site is a client, under the name of its owner where clients are owners that the data came with."""
    if scenario.remote:
        return {}
    data, newcomers, stages = scenario.train_set, scenario.newcomers, dict(scenario.flow)
    sites = {id(of): np.full(len(of), -1) for of, _ in parts(scenario).values()}
    for who, first in [(scenario, 0), *([] if newcomers is None else [(newcomers, scenario.clients)])]:
        for of, views in ((data, who.train), (data, who.val), (who.test_set, who.test)):
            if id(of) in sites:
                sites[id(of)][views.order] = views.holders() + first
    names = [*map("client {}".format, range(scenario.clients)), *map("newcomer {}".format, scenario.newcomer_ids)]
    if scenario.by_owners and data.domain is not None:
        for site, row in zip(*np.unique(sites[id(data)], return_index=True), strict=True):
            names[site] = data.domains[data.domain[row]] if site >= 0 else names[site]
    for part, (data, rows) in parts(scenario).items():
        labels, groups = data.y.cpu().numpy()[rows], None if data.group is None else data.group.cpu().numpy()[rows]
        classes = np.bincount(labels, minlength=data.num_classes) if labels.ndim == 1 else (labels == 1).sum(0)
        stages[part] = stage(sites[id(data)][rows], names, groups) | {"classes": classes.tolist()}
    return stages
