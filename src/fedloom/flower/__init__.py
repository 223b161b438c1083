"""Floor 7: a config's run as a real federation. Flower provides transport, TLS and keys; the rest is fedloom's.

`remote.py` is an engine like the others: the round loop, the methods and the order of sums stay where they are.
`node.py` is the client's side. Both exchange messages (`wire.py`), whose facts are derived from the jobs and results of
the engine, over a transport (`transport.py`). `replies.py` reads the results of jobs. `node_data.py` reads data that
only a node can read, and standardises them. `transport.py` and `apps.py` are the only files that know Flower, by its
public names. `status.py` writes the federation's status to the run's folder, and `logs.py`
logs its events.
"""
