import fedloom.methods as fm


@fm.register
class FedPer(fm.Method):
    """FedPer: a shared body under a private head. Arivazhagan et al., 2019, arXiv 1912.00818.

    Down: the body.   Up: the body, number of samples.   Server: mean of bodies by samples (Algorithm 1).
    Body and head are trained together. The head is the net's classifier: how many layers it has is the model's.
    A client is tested with the server's body and its own head; one that never took part, with the first head.
    """

    spec = fm.Spec(private=frozenset({fm.Role.HEAD}))
    citation = fm.Citation(
        "Arivazhagan et al., preprint 2019, arXiv 1912.00818", traffic=("B", "B", "H"), compared_in=("feddw", "fedco2")
    )
