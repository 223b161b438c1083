import fedloom.methods as fm


@fm.register
class FedPer(fm.Method):
    """FedPer: a shared body under a private head, trained together. Arivazhagan et al., 2019, arXiv 1912.00818.

    The head is the net's classifier: how many layers it has is the model's. Server: the mean of bodies by samples
    (Algorithm 1). A client that never took part is tested with the first head."""

    spec = fm.Spec(private=frozenset({fm.Role.HEAD}), labels="multi")
