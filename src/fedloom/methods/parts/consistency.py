"""Equations of DW: how a classification layer [C, d] relates its classes (CR), and how far that is from soft labels.

Relations are [C, C] with softmaxed rows, so they are not symmetric."""

import torch
from torch import Tensor

import fedloom.methods as fm


def class_relations(weight: Tensor, *, relu: bool = False) -> Tensor:
    """Return the softmax of the rows of w w^T (Eq. 11): [C, C]; with `relu`, of its positive part."""
    gram = weight @ weight.T
    return torch.softmax(gram.relu() if relu else gram, dim=1)


def softmax_linearised(weight: Tensor, reference: Tensor) -> Tensor:
    """Return `class_relations` to first order around the reference: linear in `weight`, same value and gradient."""
    relations, step = class_relations(reference), weight - reference
    # The change of w w^T without the product of two steps, then the softmax's Jacobian p (v - p . v) by row.
    change = reference @ step.T + step @ reference.T
    return relations + relations * (change - (relations * change).sum(1, keepdim=True))


def gram_linearised(weight: Tensor, reference: Tensor) -> Tensor:
    """w w^T to first order around the reference, no softmax (Eq. 26-30 as printed; no approximation of Eq. 11)."""
    cross = reference @ weight.T
    return cross + cross.T - reference @ reference.T


def inconsistency(relations: Tensor, soft_labels: Tensor, rows: Tensor | None) -> Tensor:
    """Return |SL - CR|^2 / C^2 over the `rows` [C] that count, Eq. 11, of relations CR and soft labels SL [C, C]."""
    difference = relations - soft_labels
    counted = difference if rows is None else torch.where(rows.unsqueeze(1), difference, 0.0)
    # Over all C^2 entries, as printed, however many rows count.
    return counted.square().mean()


def next_soft_labels(fresh: fm.ClassTable, last: fm.ClassTable, absent_row: str, ema: float) -> fm.ClassTable:
    """Return the next SL matrix [C, C] (Eq. 7): rows without data by the rule `absent_row`, then the moving average of
    `fresh` and `last` with weight `ema` of the fresh rows. Rows of one round only are not averaged."""
    classes, dtype = len(fresh.held), fresh.values.dtype
    last = last.to(dtype)
    if absent_row == "keep":
        fresh = fresh.fill_missing(last)
    elif absent_row != "mask":
        fresh = fresh.fill_missing((identity_labels if absent_row == "eye" else uniform_labels)(classes).to(dtype))
    in_both_rounds, mixed = (fresh.held & last.held).unsqueeze(1), ema * fresh.values + (1 - ema) * last.values
    return fm.ClassTable(torch.where(in_both_rounds, mixed, fresh.values), fresh.held)


def identity_labels(classes: int) -> fm.ClassTable:
    """Return soft labels [C, C] that are one-hot."""
    return fm.ClassTable(torch.eye(classes), torch.ones(classes, dtype=torch.bool))


def uniform_labels(classes: int) -> fm.ClassTable:
    """Return soft labels [C, C] of 1 / C."""
    return fm.ClassTable(torch.full((classes, classes), 1 / classes), torch.ones(classes, dtype=torch.bool))
