"""Compression of uploads: wrappers over any method that sends trees which the server has as well.

A client sends the change of the trained entries since it received them, in fewer bytes, and the server adds it to what
it had sent. Buffers, class tables and numbers travel as they are: a changed sign would make variances negative. Where
the compressed change is biased, the client adds its residual to its next change (`Sent.no_feedback` says where not)."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.methods.wrappers.wrapping import Changed, alone

WORDS = ("topk", "int8", "sign")  # all wrappers of this file


class TopKShare(fm.Options):
    """Options of top-k."""

    share: float = fm.option(0.1, "Share of the entries that travels.", gt=0, le=1)


class Packed(fm.Method):
    """Base of compressions: `squeezed` on the client and `restored` on the server, both of a change as a vector [d].
    With `feedback` the client keeps what it did not send, one number for each trained entry."""

    packing: ClassVar[str]  # the word of the wrapper
    Packing: ClassVar[type[fm.Options]] = fm.Options
    feedback: ClassVar[bool] = True

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        self.packing_names = fm.names_of(self, self.packing)
        self.packing_options: Any = self.packing_names.options(self.Packing, self.options)
        if all(sent.form == "own" for sent in self.spec.sends.values()):
            self._refuse_packing()

    @abstractmethod
    def squeezed(self, change: Tensor, sizes: Sequence[int], rng: np.random.Generator) -> fm.Tree:
        """Return a `change` [d], float64, of entries with these `sizes` as tensors; `rng` serves random rounding."""

    @abstractmethod
    def restored(self, sent: fm.Tree, sizes: Sequence[int]) -> Tensor:
        """Return the change [d], float64, that `squeezed` sent."""

    def begin(self, payload: fm.Record, state: fm.Record, ctx: fm.ClientContext) -> fm.Start:
        return super().begin(payload, self._without_left(state), ctx)

    def end(self, work: fm.Work, state: fm.Record, ctx: fm.ClientContext) -> tuple[fm.Record, fm.Record]:
        return super().end(work, self._without_left(state), ctx)

    def pack(
        self, upload: fm.Record, state: fm.Record, received: fm.Record, before: fm.Record, ctx: fm.ClientContext
    ) -> tuple[fm.Record, fm.Record]:
        upload, state = super().pack(upload, state, received, self._without_left(before), ctx)
        for key in self._trees_both_ways(received):
            received_tree, entry = fm.get_tree(received, key), self.packing_names.entry(key)
            tree = fm.get_tree(upload, key) if isinstance(upload.get(key), dict) else {}
            trained = ctx.task.names(fm.TRAINABLE)
            names = [name for name in received_tree if name in tree and name in trained]
            if not names:
                continue
            change = torch.cat([tree[name].flatten() for name in names]).double()
            if self.spec.sends[key].form != "change":
                change = change - torch.cat([received_tree[name].flatten() for name in names]).double()
            # Error feedback adds the residual that compression left out in earlier rounds.
            change = change + (fm.get_tensor(before, entry) if entry in before else 0)
            sent, residual = self._compressed(change, [tree[name] for name in names], entry, ctx)
            # positions, because names of a small net would cost more bytes than its entries
            missing = [index for index, name in enumerate(received_tree) if name not in tree]
            if missing:
                sent["missing"] = torch.tensor(missing, dtype=torch.int32)
            others = {name: value for name, value in tree.items() if name not in names}
            remaining = {name: value for name, value in upload.items() if name != key}
            upload = remaining | ({key: others} if others else {}) | {entry: sent}
            added_later = [ctx.task.roles[name] not in self.spec.sends[key].no_feedback for name in names]
            if self.feedback and any(added_later):  # with nothing but this it would not begin from `client_init` again
                sizes = torch.tensor([tree[name].numel() for name in names])
                counts = torch.tensor(added_later).repeat_interleave(sizes)
                state = (state or self.client_init(ctx)) | {entry: torch.where(counts, residual, 0.0)}
        return upload, state

    def _compressed(
        self, change: Tensor, like: Sequence[Tensor], entry: str, ctx: fm.ClientContext
    ) -> tuple[fm.Tree, Tensor]:
        sizes, dtype = [value.numel() for value in like], like[0].dtype
        parts = self.squeezed(change, sizes, ctx.task.streams.numpy(entry, ctx.round, ctx.client))
        sent = {name: part.to(dtype) if part.is_floating_point() else part for name, part in parts.items()}
        return sent, (change - self.restored(sent, sizes)).to(dtype)

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        server = super().server_init(ctx)
        # A payload shows which trees go both ways; client 0 stands for all.
        if not self._trees_both_ways(super().down(server, 0, replace(ctx, client=0, drawn=(0,)))):
            self._refuse_packing()
        return server

    def unpack(self, server: fm.Record, uploads: fm.Uploads, of: Callable[[int], fm.ServerContext]) -> fm.Uploads:
        def whole(client: int, upload: fm.Record) -> fm.Record:
            received = self.down(server, client, of(client))
            for key in self._trees_both_ways(received):
                upload = self._reconstructed(key, upload, fm.get_tree(received, key))
            return upload

        return super().unpack(server, Changed(uploads, whole), of)

    def _reconstructed(self, key: str, upload: fm.Record, received: fm.Tree) -> fm.Record:
        entry = self.packing_names.entry(key)
        if entry not in upload:
            return upload
        sent, tree = fm.get_tree(upload, entry), dict(fm.get_tree(upload, key)) if key in upload else {}
        missing = set(sent["missing"].tolist()) if "missing" in sent else set()
        sent_names = [name for index, name in enumerate(received) if index not in missing]
        names = [name for name in sent_names if name not in tree]
        sizes = [received[name].numel() for name in names]
        for name, part in zip(names, torch.split(self.restored(sent, sizes), sizes), strict=True):
            change, whole = part.view(received[name].shape), self.spec.sends[key].form == "whole"
            tree[name] = (received[name].double() + change if whole else change).to(received[name].dtype)
        return self.packing_names.without(upload, key) | {key: {name: tree[name] for name in sent_names}}

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        return super().predictors(server, None if state is None else self._without_left(state), ctx)

    def _trees_both_ways(self, received: fm.Record) -> list[str]:
        sends = self.spec.sends
        return [key for key, sent in sends.items() if sent.form != "own" and isinstance(received.get(key), dict)]

    def _without_left(self, state: fm.Record) -> fm.Record:
        return self.packing_names.without(state, *self.spec.sends)

    def _refuse_packing(self) -> None:
        sends = ", ".join(self.spec.sends) or "nothing"
        raise fm.ConfigError(
            f"{self.name()}: {self.packing} compresses the change of trees that the server has, too, and here clients "
            f"send none (sent: {sends})"
        )


class TopK(Packed):
    """The k = ceil(share d) largest of the d entries of a change, as 32-bit indices and values; the others wait. Stich
    et al., NeurIPS 2018, arXiv 1809.07599, Algorithm 1."""

    packing, Packing = "topk", TopKShare

    def squeezed(self, change: Tensor, sizes: Sequence[int], rng: np.random.Generator) -> fm.Tree:
        # 0.07 * 100 is a little above 7 in floats, and 8 entries would travel
        count = min(len(change), int(np.ceil(self.packing_options.share * len(change) - 1e-9)))
        indices = change.abs().topk(count, sorted=False).indices.sort().values
        return {"indices": indices.to(torch.int32), "values": change[indices]}

    def restored(self, sent: fm.Tree, sizes: Sequence[int]) -> Tensor:
        change, indices = torch.zeros(sum(sizes), dtype=torch.float64), sent["indices"].long()
        # a hostile node may send any numbers as indices
        if len(indices) and (indices[0] < 0 or indices[-1] >= len(change) or (indices.diff() <= 0).any()):
            raise ValueError(f"indices that do not rise from 0 or more to less than {len(change):,}")
        change[indices] = sent["values"].double()
        return change


class Int8(Packed):
    """QSGD: whole steps in -127 .. 127, rounded at random without bias; a step is 1 / 127 of the largest magnitude of
    its tensor. Alistarh et al., NeurIPS 2017, arXiv 1610.02132, Section 3.1, with that magnitude for the norm."""

    packing, feedback = "int8", False

    def squeezed(self, change: Tensor, sizes: Sequence[int], rng: np.random.Generator) -> fm.Tree:
        parts = torch.split(change, list(sizes))
        largest = torch.stack([part.abs().max() if len(part) else part.sum() for part in parts])
        steps = (largest / 127).float()
        # a step that was rounded down would push the largest entry past level 127
        steps = torch.where(steps.double() * 127 < largest, torch.nextafter(steps, torch.tensor(torch.inf)), steps)
        steps_by_entry = _spread(steps, sizes)
        # floor(x + u) with u uniform in [0, 1) is x in the mean, so no residual needs to be kept
        levels = change / torch.where(steps_by_entry == 0, 1.0, steps_by_entry)
        whole = torch.floor(levels + torch.from_numpy(rng.random(len(change))))
        return {"levels": torch.nan_to_num(whole, 0.0).clamp(-127, 127).to(torch.int8), "steps": steps}

    def restored(self, sent: fm.Tree, sizes: Sequence[int]) -> Tensor:
        return sent["levels"].double() * _spread(sent["steps"], sizes)


class Sign(Packed):
    """EF-signSGD: the sign of each entry, a bit (+ for 0), times the mean magnitude of its tensor. Karimireddy et al.,
    ICML 2019, arXiv 1901.09847, Algorithm 1."""

    packing = "sign"

    def squeezed(self, change: Tensor, sizes: Sequence[int], rng: np.random.Generator) -> fm.Tree:
        parts = torch.split(change, list(sizes))
        scales = torch.stack([part.abs().mean() if len(part) else part.sum() for part in parts])
        return {"bits": torch.from_numpy(np.packbits((change >= 0).numpy())), "scales": scales}

    def restored(self, sent: fm.Tree, sizes: Sequence[int]) -> Tensor:
        bits = torch.from_numpy(np.unpackbits(sent["bits"].numpy(), count=sum(sizes)))
        return (bits.double() * 2 - 1) * _spread(sent["scales"], sizes)


def _spread(numbers: Tensor, sizes: Sequence[int]) -> Tensor:
    return numbers.double().repeat_interleave(torch.tensor(list(sizes)))


def _register(kind: type[Packed]) -> None:
    def put_over(base: type[fm.Method]) -> type[fm.Method]:
        alone(base, kind.packing, WORDS, "a compression", "would find nothing left to compress")
        return fm.wrapped(kind, base, kind.packing, kind.Packing)

    fm.WRAPPERS.register(kind.packing)(put_over)


for _kind in (TopK, Int8, Sign):
    _register(_kind)
