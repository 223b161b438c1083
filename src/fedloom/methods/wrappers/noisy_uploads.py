"""The uploads of a round as `+dp` lets a method see them: means with noise, and class tables of clients with noise.

Every release is a sum over clients, or one slot for each client, of vectors cut to a length, plus Gaussian noise: of
all trees (`clip`); of averaged class tables (`table_clip`), with how many clients hold each class; of each client's
class tables that are read one by one (`Sent(dp="noise")`, `table_clip`)."""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.core.records import Value

if TYPE_CHECKING:
    from fedloom.methods.wrappers.privacy import Options


class NoisyUploads(Mapping[int, fm.Record]):
    """The uploads of a round as the method may see them: class tables that are read client by client have noise, counts
    are ones, "samples" is 1. Averaged entries are zeros in their shape, with the client's own mask for class tables
    (FedSSA reads it); their means come from `noisy`. `drawn` clients count, and the run asks for the number `among`.

    With clients drawn by chance, every client of the federation has an upload if entries are read client by client,
    because the number of drawn clients has no noise. With a fixed number, tables are in random order: replacing a
    client then changes one table, as the accountant assumes."""

    def __init__(
        self,
        options: "Options",
        sends: Mapping[str, fm.Sent],
        uploads: fm.Uploads,
        server: fm.Record,
        ctx: fm.ServerContext,
        drawn: Collection[int],
        among: int,
    ) -> None:
        self._options, self._sends, self._uploads, self._server, self._ctx = options, sends, uploads, server, ctx
        self._among, self._scales = among, dict[int, float]()
        self._counted = [client for client in uploads if client in drawn]
        self._first = uploads[next(iter(uploads))]  # what kinds of values clients send
        mean_names = sorted(name for name in self._first if name in sends and not sends[name].per_client)
        self._tables = [name for name in mean_names if isinstance(self._first[name], fm.ClassTable)]
        self._trees = [name for name in mean_names if name not in self._tables]
        own = {name: sends[name].dp for name in self._first if name in sends and sends[name].per_client}
        self._own_tables = sorted(name for name, kind in own.items() if kind == "noise")
        self._ones = [name for name, kind in own.items() if kind == "ones"]
        by_chance = options.sampling == "poisson" and bool(ctx.participants)
        in_slots = by_chance and bool(self._own_tables or self._ones)
        self._clients = range(ctx.task.clients) if in_slots else tuple(uploads)
        self._senders = dict(zip(self._clients, self._clients, strict=True))  # whose tables each upload shows
        if options.sampling == "fixed" and self._own_tables:
            order = ctx.task.streams.numpy("dp.order", ctx.round).permutation(len(uploads))
            self._senders = {client: self._clients[k] for client, k in zip(self._clients, order, strict=True)}

    def __getitem__(self, client: int) -> fm.Record:
        if client not in self._clients:
            raise KeyError(client)
        ones = {name: torch.ones_like(cast(Tensor, self._first[name])) for name in self._ones}
        sender = self._senders[client]
        rows = self._cut_rows(sender, self._own_tables) if sender in self._counted else {}
        tables = {name: self._own_table(name, rows.get(name), client) for name in self._own_tables}
        blanks = {name: self._blank(name, client) for name in self._trees + self._tables}
        return {"samples": 1, **blanks, **ones, **tables}

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        """Return m, because the true number would reveal single clients."""
        return self._among

    def _blank(self, key: str, client: int) -> Value:
        value = self._first[key]
        if isinstance(value, fm.ClassTable):
            sent = cast(fm.ClassTable, self._uploads[client][key]).held if client in self._uploads else None
            return fm.ClassTable(_zeros(value.values), torch.zeros_like(value.held) if sent is None else sent)
        zeros = {name: _zeros(tensor) for name, tensor in _as_tree(value).items()}
        return zeros if isinstance(value, dict) else zeros[""]

    @property
    def releases(self) -> int:
        """Number of vectors that get noise in a round."""
        return bool(self._trees) + 2 * bool(self._tables) + bool(self._own_tables)

    def noisy(self, key: str) -> Value:
        """The mean with noise of what clients sent as `key`."""
        first = self._first[key]
        rng = self._ctx.task.streams.numpy(f"dp.{key}", self._ctx.round)
        if isinstance(first, fm.ClassTable):
            return self._mean_table(key, first, rng)
        mean = self._mean_tree(key, _as_tree(first), rng)
        return mean if isinstance(first, dict) else mean[""]

    def _mean_tree(self, key: str, like: fm.Tree, rng: np.random.Generator) -> fm.Tree:
        """Return the server's tree plus (sum of cut changes + noise) / m, without counters and frozen parameters."""
        reference = self._had(key, like)
        sums = {name: torch.zeros(reference[name].shape, dtype=torch.float64) for name in self._noised(like)}
        for client in self._counted:
            scale = self._tree_scale(client)
            uploaded = _as_tree(self._uploads[client][key])
            for name in sums if scale else ():
                sums[name] += scale * (uploaded[name].double() - reference[name].double())
        std, noisy = self._options.noise * self._options.clip, dict(reference)
        for name, total in sums.items():
            # divided by the fixed m: the number of clients that came would have no noise
            change = (total + std * _normal(total.shape, rng)) / self._among
            noisy[name] = (reference[name].double() + change).to(like[name].dtype)
        return noisy

    def _tree_scale(self, client: int) -> float:
        """Return the factor that cuts a client's trees to the allowed length; 0 if they are not finite."""
        if client not in self._scales:
            upload, square = self._uploads[client], 0.0
            for key in self._trees:
                uploaded = _as_tree(upload[key])
                reference, noised = self._had(key, uploaded), self._noised(uploaded)
                square += sum(float((uploaded[n].double() - reference[n].double()).square().sum()) for n in noised)
            self._scales[client] = _cut(self._options.clip, square)
        return self._scales[client]

    def _noised(self, tree: fm.Tree) -> list[str]:
        frozen = self._ctx.task.frozen
        return [name for name, value in tree.items() if value.is_floating_point() and name not in frozen]

    def _had(self, key: str, like: fm.Tree) -> fm.Tree:
        """Return the entries that changes are counted from: the server's, or zero for an upload that is a change."""
        had = self._server.get(key)
        whole = isinstance(had, dict) and self._sends[key].form == "whole"
        server_tree: fm.Tree = cast(fm.Tree, had) if whole else {}
        return {n: server_tree[n] if n in server_tree else torch.zeros_like(value) for n, value in like.items()}

    def _mean_table(self, key: str, like: fm.ClassTable, rng: np.random.Generator) -> fm.ClassTable:
        """Divide the sum of cut rows by the number of holders, both with noise; a class needs one holder, rounded."""
        rows, holders = torch.zeros_like(like.values, dtype=torch.float64), torch.zeros(like.held.shape).double()
        for client in self._counted:
            rows += self._cut_rows(client, self._tables)[key]
            holders += cast(fm.ClassTable, self._uploads[client][key]).held.double()
        noise = self._options.noise
        rows += noise * self._table_length(self._tables) * _normal(rows.shape, rng)
        # a mask of C classes is no longer than the root of C
        holders += noise * self._classes(self._tables) ** 0.5 * _normal(holders.shape, rng)
        return fm.ClassTable.from_sums(rows, torch.where(holders >= 0.5, holders.clamp(min=1), 0))

    def _own_table(self, key: str, rows: Tensor | None, client: int) -> fm.ClassTable:
        """Add noise to a client's cut rows. All classes count as held, because its own mask would have no noise."""
        like = cast(fm.ClassTable, self._first[key])
        rng = self._ctx.task.streams.numpy(f"dp.{key}", self._ctx.round, client)
        noise = self._options.noise * self._table_length(self._own_tables) * _normal(like.values.shape, rng)
        values = noise if rows is None else rows + noise
        return fm.ClassTable(values.to(like.values.dtype), torch.ones_like(like.held))

    def _cut_rows(self, client: int, keys: list[str]) -> dict[str, Tensor]:
        """Cut a client's rows one by one to `row_clip`, then together to `table_clip`; 0 if not all are finite."""
        rows = {key: cast(fm.ClassTable, self._uploads[client][key]).values.double() for key in keys}
        if not all(bool(values.isfinite().all()) for values in rows.values()):
            return {key: torch.zeros_like(values) for key, values in rows.items()}
        if (longest := self._options.row_clip) is not None:
            lengths = {key: values.norm(dim=-1, keepdim=True).clamp(min=1e-300) for key, values in rows.items()}
            rows = {key: values * (longest / lengths[key]).clamp(max=1) for key, values in rows.items()}
        scale = _cut(self._options.table_clip, sum(float(values.square().sum()) for values in rows.values()))
        return {key: scale * values for key, values in rows.items()}

    def _table_length(self, keys: list[str]) -> float:
        row_clip, table_clip = self._options.row_clip, self._options.table_clip
        return table_clip if row_clip is None else min(table_clip, row_clip * self._classes(keys) ** 0.5)

    def _classes(self, keys: list[str]) -> int:
        return sum(cast(fm.ClassTable, self._first[key]).held.numel() for key in keys)


def _cut(length: float, square: float) -> float:
    # 1e-300 keeps a change of zeros from 0 / 0
    return min(1.0, length / max(square**0.5, 1e-300)) if np.isfinite(square) else 0.0


def _zeros(like: Tensor) -> Tensor:
    # one number in memory, whatever the shape
    return like.new_zeros(()).expand(like.shape)


def _as_tree(value: Value) -> fm.Tree:
    return value if isinstance(value, dict) else {"": cast(Tensor, value)}


def _normal(shape: torch.Size, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.standard_normal(tuple(shape)))
