"""The nodes' data compared before the first round: other units, marks, codes and colours are asked about."""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

import numpy as np

from fedloom.core.errors import ConfigError
from fedloom.data.sites import UnlikeColumn, unlike_columns
from fedloom.flower.node_data import measured_names
from fedloom.flower.status import LogRecord
from fedloom.flower.wire import JoinReply
from fedloom.runs.config.run_config import RunConfig

_LACKING = 0.5  # difference of the shares of missing cells
_USUAL_SHARE = 0.1  # of a class at the median node, which another one lacks


def compare_nodes(config: RunConfig, replies: Mapping[int, JoinReply], say: Callable[[str], None]) -> None:
    """Compare the `replies` with which nodes joined, by client, and `say` what is unlike the others'. Raises
    `ConfigError` for what a mistake explains, except as `flower.accept_unlike` names it."""
    names, clients, findings = measured_names(config), sorted(replies), list[UnlikeColumn]()
    moments = [moments for client in clients if (moments := replies[client].moments) is not None]
    if names and len(moments) == len(clients):
        samples = np.array([[replies[client].samples] * len(names) for client in clients], np.float64)
        counts = np.array([of.observed or row for of, row in zip(moments, samples, strict=True)], np.float64)
        means, squares = np.array([of.mean for of in moments]), np.array([of.squares for of in moments])
        findings += unlike_columns(names, means, np.sqrt(squares / np.maximum(1, counts)), counts)
        lacking = 1 - counts / np.maximum(1, samples)
        usual = np.median(lacking, axis=0)
        for site, at in zip(*np.nonzero(abs(lacking - usual) > _LACKING), strict=True):
            numbers = f"{lacking[site, at]:.0%} of the cells are missing, at the median node {usual[at]:.0%}"
            findings.append(UnlikeColumn(int(site), names[at], numbers, "", True))
        findings += _grey(means, squares) if names[0] == "channel 0" and len(names) == 3 else []
    labels = [replies[client].labels for client in clients]
    if clients and all(labels):
        of_nodes = np.array(labels, np.float64)
        shares = of_nodes / np.maximum(1, of_nodes.sum(1, keepdims=True))
        for site, label in zip(*np.nonzero((of_nodes == 0) & (np.median(shares, axis=0) > _USUAL_SHARE)), strict=True):
            numbers = f"hardly a sample, at the median node {np.median(shares[:, label]):.0%}"
            findings.append(UnlikeColumn(int(site), f"class {replies[clients[0]].classes[label]}", numbers, "", True))
    accepted, stops = set[str](), list[str]()
    for unlike in findings:
        key = f"{clients[unlike.site]}/{unlike.column}"
        patterns = {pattern for pattern in config.flower.accept_unlike if fnmatchcase(key, pattern)}
        accepted |= patterns
        text = f"client {clients[unlike.site]}, '{unlike.column}': {unlike.numbers}"
        text += f": {unlike.reason}" if unlike.reason else ""
        say(LogRecord(text, "unlike", client=clients[unlike.site]))
        stops += [] if unlike.is_note or patterns else [f"{text} (accept: '{key}')"]
    for pattern in sorted({*config.flower.accept_unlike} - accepted):
        say(f"flower.accept_unlike: no column that is unlike the others matches '{pattern}'")
    if stops:
        pair = "; of two nodes nobody can tell which one is wrong" if len(clients) == 2 else ""
        raise ConfigError(
            f"the data of nodes differ as by mistake: {'; '.join(stops[:5])}{pair}; mend the data at the node and "
            "start again, or name the columns that are right in flower.accept_unlike"
        )


def _grey(means: np.ndarray, squares: np.ndarray) -> list[UnlikeColumn]:
    """Return the nodes [n] whose three channels are one, where most nodes have colours, or the reverse."""
    is_grey = (np.ptp(means, axis=1) == 0) & (np.ptp(squares, axis=1) == 0)
    most = 2 * is_grey.sum() > len(is_grey)
    words = ("colours", "three equal channels")
    texts = [f"its pictures have {words[grey]}, those of most nodes {words[int(most)]}" for grey in is_grey.astype(int)]
    sites = np.flatnonzero(is_grey != most).tolist()
    return [UnlikeColumn(site, "channels", texts[site], "grey and colour pictures", False) for site in sites]
