"""The confusion matrix of any single client of a run: the page has the counts of all, and its script draws one."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from fedloom.results.report.markup import client_confusion
from fedloom.runs.storage.run_data import Confusion, RunData

_MOST_CELLS = 100_000  # of all clients of a row: about 1 MB of a page


def client_matrices(name: str, run: RunData, classes: Sequence[str]) -> Markup | None:
    """Render a matrix with a field that chooses the client, the least accurate client first; None without counts.

    Args:
        name: prefix of the files that it is saved as, unique in the page.
        run: the run whose clients were tested.
        classes: names of the C classes.
    """
    confusions = run.confusions()
    if not confusions:
        return None
    chosen, room = dict[int, Confusion](), _MOST_CELLS
    for client in sorted(confusions, key=lambda client: (_accuracy(confusions[client]), client)):
        room -= len(confusions[client])
        if room < 0:
            break
        chosen[client] = confusions[client]
    caption = f"The client's test samples, seed {run.numbers['seed']}; the least accurate client first."
    if len(chosen) < run.numbers["clients"]:
        caption += f" {len(chosen)} of {run.numbers['clients']} clients; Result.confusion(client) has those recorded."
    clients = [[client, [count for cell in cells for count in cell]] for client, cells in chosen.items()]
    return client_confusion(
        name, "Confusion matrix of one client", caption, {"classes": list(classes), "clients": clients}
    )


def _accuracy(confusion: Confusion) -> float:
    total = sum(samples for *_, samples in confusion)
    return sum(samples for true, predicted, samples in confusion if true == predicted) / max(total, 1)
