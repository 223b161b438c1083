"""Record the ATen calls of a training step while it is taken, and turn them into a program in C++.

A dispatch mode sees every call below autograd: forward, gradients and update. It notes operator, operands and results;
inputs are known by identity. The list is simplified without changing bits, and each value gets a register."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ATEN = torch.ops.aten
# How C++ makes an operand; `Kind` in replay.cpp has the same numbers.
CONSTANT, REGISTER, TENSORS, OPTIONAL_TENSORS, INTEGERS, STEP_NUMBER, GENERATOR = range(7)
_MEMORY_FORMATS = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]
_RESHAPED = (ATEN.view.default, ATEN._unsafe_view.default, ATEN.expand.default, ATEN._reshape_alias.default)
# Operators whose result depends on the shape, dtype and device of their input alone.
_FILLED = (ATEN.ones_like.default, ATEN.zeros_like.default, ATEN.new_zeros.default, ATEN.new_ones.default)
_INDEXED = (ATEN.index.Tensor, ATEN.index_put.default, ATEN.index_put_.default)
_STEP_NUMBERS = (ATEN._foreach_div_.Scalar, ATEN._foreach_addcdiv_.Scalar, ATEN.div.Tensor, ATEN.div.Scalar)


class UnrecordableError(Exception):
    """A step cannot be replayed with the same bits."""


@dataclass(slots=True)
class Call:
    """A call of an operator: its operands in the order of the schema, and its results; None for no tensor."""

    operator: Any
    operands: list[Any]
    results: list[Any]
    step_numbers: dict[int, int] = field(default_factory=dict)  # index of an operand -> index of the number

    def tensors(self) -> Iterator[Tensor]:
        for operand in self.operands:
            if isinstance(operand, Tensor):
                yield operand
            elif isinstance(operand, list | tuple):
                yield from (element for element in operand if isinstance(element, Tensor))

    def written(self) -> Iterator[Tensor]:
        for operand, argument in zip(self.operands, self.operator._schema.arguments, strict=True):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from operand if isinstance(operand, list | tuple) else [operand]


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A block in which the calls of operators are noted in `calls`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def note(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operator `func`, an overload of `torch.ops`, with its args and kwargs, and note the call."""
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        # a detach that returns its operand makes no new value
        if func not in (ATEN.detach.default, ATEN.lift_fresh.default) or results is not args[0]:
            listed = list(results) if isinstance(results, list | tuple) else [results]
            self.calls.append(Call(func, _operands(func, args, kwargs), listed))
        return results


# Set here, because torch wraps what a class defines, and that wrapper takes more than a second to import torch.compile.
Recording.__torch_dispatch__ = Recording.note  # type: ignore[method-assign, assignment]


def _operands(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    operands = []
    for index, argument in enumerate(operator._schema.arguments):
        if index < len(args) and not argument.kwarg_only:
            operands.append(args[index])
        else:
            operands.append(kwargs.get(argument.name, argument.default_value))
    return operands


def program_of(
    calls: Sequence[Call],
    inputs: Sequence[Tensor],
    outputs: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]],
    step_numbers: Sequence[float],
) -> tuple[Any, bool]:
    """Return recorded calls as a program in C++, and whether it draws random numbers. `inputs` differ from call to
    call, in this order; outputs are scalars, taps and carried state; `step_numbers` are operands that depend on the
    step. Raises `UnrecordableError` if calls depend on values, or draw numbers without a generator."""
    calls = [_with_generator(call) for call in calls]
    for call in calls:
        _refuse_data_dependent(call)
    _mark_step_numbers(calls, step_numbers)
    aliases = _Aliases(calls, inputs)
    kept = aliases.needed_calls([tensor for group in outputs for tensor in group])
    program = _Registers(aliases, inputs).program(kept, outputs, len(step_numbers))
    return program, any(_takes_generator(call.operator) for call in kept)


def _with_generator(call: Call) -> Call:
    """Replace an operator that draws from torch's generator by its overload that takes one."""
    if torch.Tag.nondeterministic_seeded not in call.operator.tags or _takes_generator(call.operator):
        return call
    by_name = {a.name: operand for a, operand in zip(call.operator._schema.arguments, call.operands, strict=True)}
    if by_name.get("dropout_p") == 0:  # attention, which then draws nothing
        return call
    packet, overload = call.operator.overloadpacket, call.operator._overloadname
    name = "generator" if overload == "default" else f"{overload}_generator"
    if name not in packet.overloads():
        raise UnrecordableError(f"{call.operator} draws random numbers and takes no generator")
    operator = getattr(packet, name)
    operands = [by_name.get(argument.name) for argument in operator._schema.arguments]
    return Call(operator, operands, call.results)


def _takes_generator(operator: Any) -> bool:
    return any("Generator" in str(argument.type) for argument in operator._schema.arguments)


def _refuse_data_dependent(call: Call) -> None:
    """Refuse calls whose result is no tensor, or whose shapes depend on values."""
    tags = call.operator.tags
    if call.operator in _INDEXED:  # its shape depends on values if an index is a mask
        by_values = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in call.operands[1])
    else:
        by_values = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
    if by_values:
        raise UnrecordableError(f"the loss or the net depends on values ({call.operator})")
    if torch.Tag.inplace_view in tags:
        raise UnrecordableError(f"the loss or the net changes the shape of a tensor in place ({call.operator})")
    if any(result is not None and not isinstance(result, Tensor) for result in call.results):
        raise UnrecordableError(f"{call.operator} returns no tensor")


def _mark_step_numbers(calls: Sequence[Call], step_numbers: Sequence[float]) -> None:
    """Mark the operands that depend on the number of the step, by their values, from the last call backwards."""
    waiting = list(enumerate(step_numbers))
    # backwards, because the optimiser comes last, and a loss may divide by an equal number
    for call in reversed(calls):
        if not waiting or call.operator not in _STEP_NUMBERS:
            continue
        index, number = waiting[-1]
        places = [place for place, operand in enumerate(call.operands) if operand == number and type(operand) is float]
        if places:
            call.step_numbers[places[0]] = index
            waiting.pop()
    if waiting:
        raise UnrecordableError("the step numbers of the optimiser were not found")


class _Aliases:
    """Which tensors are the same value, which are constant, and which calls are needed."""

    def __init__(self, calls: Sequence[Call], inputs: Sequence[Tensor]) -> None:
        self._calls, self._inputs = calls, {id(tensor) for tensor in inputs}
        self._same: dict[int, Tensor] = {}
        self._producers: dict[int, Call] = {}
        written = [tensor for call in calls for tensor in call.written() if isinstance(tensor, Tensor)]
        self._written = {_storage(tensor) for tensor in written}
        input_storages = {_storage(tensor) for tensor in inputs}
        self.constants: set[int] = set()
        known = set(self._inputs)
        for call in calls:
            for tensor in call.tensors():
                if id(tensor) not in known:
                    if _storage(tensor) in input_storages:
                        raise UnrecordableError("the loss or the net reads a view that was made before the step")
                    if _storage(tensor) in self._written:
                        raise UnrecordableError("the loss or the net keeps a tensor outside its weights and changes it")
                    self.constants.add(id(tensor))
            known |= {id(result) for result in call.results if result is not None}
        for call in calls:
            self._add(call)

    def root(self, tensor: Tensor) -> Tensor:
        """Return the tensor whose register has the value of `tensor`."""
        while id(tensor) in self._same:
            tensor = self._same[id(tensor)]
        return tensor

    def needed_calls(self, outputs: Sequence[Tensor]) -> list[Call]:
        """Return the calls that have an effect or compute a needed value, in order."""
        needed = {id(self.root(tensor)) for tensor in outputs}
        kept = []
        for call in reversed(self._calls):
            has_effect = call.operator._schema.is_mutable or _takes_generator(call.operator)
            results = [result for result in call.results if result is not None]
            new = [result for result in results if self._producers.get(id(result)) is call]
            if has_effect or any(id(result) in needed for result in new):
                kept.append(call)
                needed |= {id(self.root(tensor)) for tensor in call.tensors()}
        return kept[::-1]

    def is_result(self, tensor: Tensor, call: Call) -> bool:
        """Whether the tensor is a new one that the call made."""
        return self._producers.get(id(tensor)) is call

    def _add(self, call: Call) -> None:
        operator, operands = call.operator, call.operands
        if any(isinstance(tensor, Tensor) and tensor is result for tensor in call.written() for result in call.results):
            return  # in place: the result is the operand
        only = call.results[0] if len(call.results) == 1 else None
        if isinstance(only, Tensor) and operands and isinstance(operands[0], Tensor):
            source = self.root(operands[0])
            reshaped = operator in _RESHAPED and (only.shape, only.stride()) == (source.shape, source.stride())
            if operator is ATEN.detach.default or operator is ATEN.alias.default or reshaped:
                self._same[id(only)] = source
                return
            # linear layers transpose their weights, and their gradients transpose them back
            maker = self._producers.get(id(source))
            if operator is ATEN.t.default and maker is not None and maker.operator is ATEN.t.default:
                self._same[id(only)] = self.root(maker.operands[0])
                return
        if self._is_constant(call):
            self.constants |= {id(result) for result in call.results if result is not None}
            return
        for result in call.results:
            if result is not None and id(result) not in self._inputs:
                self._producers.setdefault(id(result), call)

    def _is_constant(self, call: Call) -> bool:
        """Whether a call has the same result in every step, into which nothing writes."""
        if call.operator._schema.is_mutable or torch.Tag.nondeterministic_seeded in call.operator.tags:
            return False
        if any(result is not None and _storage(result) in self._written for result in call.results):
            return False
        if "empty" in call.operator._schema.name:  # undefined until a later call writes it
            return False
        return call.operator in _FILLED or all(id(self.root(tensor)) in self.constants for tensor in call.tensors())


def _storage(tensor: Tensor) -> int:
    storage: int = tensor.untyped_storage()._cdata
    return storage


class _Registers:
    """The registers of the values, and the program that uses them."""

    def __init__(self, aliases: _Aliases, inputs: Sequence[Tensor]) -> None:
        self._aliases, self._program = aliases, torch.classes.fedloom_replay.Program()
        self._registers: dict[int, int] = {id(tensor): index for index, tensor in enumerate(inputs)}
        self._count, self._fixed = len(inputs), set(range(len(inputs)))
        self._inputs = {_storage(tensor) for tensor in inputs}
        self._outgoing: set[int] = set()  # ids of tensors that the step carries on, which others may change

    def program(self, calls: Sequence[Call], outputs: tuple[Sequence[Tensor], ...], step_numbers: int) -> Any:
        scalars, taps, state = outputs
        self._outgoing = {id(self._aliases.root(tensor)) for tensor in state}
        last_use: dict[int, int] = {}
        for index, call in enumerate(calls):
            for result in call.results:
                if result is not None and self._aliases.is_result(result, call):
                    last_use.setdefault(self._new_register(result), index)
            for tensor in call.tensors():
                last_use[self._register(tensor)] = index
        results = [self._register(tensor) for group in outputs for tensor in group]
        # registers are freed after their last use, so that a program needs no more memory than the step
        dead: dict[int, list[int]] = {}
        for register, index in last_use.items():
            if register not in self._fixed and register not in results:
                dead.setdefault(index, []).append(register)
        for index, call in enumerate(calls):
            self._emit(call, dead.get(index, []))
        # what outlives the step must not be an input, such as the buffer of batches, or belong to all clients
        copied = [self._register(tensor) in self._fixed or _storage(tensor) in self._inputs for tensor in state]
        self._program.finish(self._count, results, len(scalars), len(taps), step_numbers, copied)
        return self._program

    def _new_register(self, tensor: Tensor) -> int:
        if id(tensor) not in self._registers:
            self._registers[id(tensor)] = self._count
            self._count += 1
        return self._registers[id(tensor)]

    def _register(self, tensor: Tensor) -> int:
        root = self._aliases.root(tensor)
        if id(root) not in self._registers:
            if id(root) not in self._aliases.constants:
                raise UnrecordableError("a result of the step was made outside its calls")
            self._fixed.add(self._new_register(root))
            constant = root.detach().clone() if id(root) in self._outgoing else root.detach()
            self._program.capture(self._registers[id(root)], constant)
        return self._registers[id(root)]

    def _emit(self, call: Call, dead: list[int]) -> None:
        kinds, registers, constants = [], [], []
        for index, (operand, argument) in enumerate(zip(call.operands, call.operator._schema.arguments, strict=True)):
            kind, indices, constant = self._operand(operand, argument)
            if index in call.step_numbers:
                kind, indices, constant = STEP_NUMBER, [call.step_numbers[index]], None
            kinds.append(kind)
            registers.append(indices)
            constants.append(constant)
        outputs = [
            self._registers[id(result)] if result is not None and self._aliases.is_result(result, call) else -1
            for result in call.results
        ]
        name, overload = call.operator._schema.name, call.operator._schema.overload_name
        self._program.call(name, overload, kinds, registers, constants, outputs, dead)

    def _operand(self, operand: Any, argument: Any) -> tuple[int, list[int], Any]:
        """Return the kind of an operand, its registers or integers, and its value if it is constant."""
        if "Generator" in str(argument.type):
            return GENERATOR, [], None
        if isinstance(operand, Tensor):
            return REGISTER, [self._register(operand)], None
        if isinstance(operand, list | tuple):
            if any(isinstance(element, Tensor) for element in operand):
                indices = [-1 if element is None else self._register(element) for element in operand]
                kind = argument.type.getElementType() if hasattr(argument.type, "getElementType") else argument.type
                return OPTIONAL_TENSORS if "Optional" in str(kind) else TENSORS, indices, None
            if all(isinstance(element, int) for element in operand):
                return INTEGERS, [int(element) for element in operand], None
            return CONSTANT, [], [float(element) for element in operand]
        if isinstance(operand, torch.memory_format):
            return CONSTANT, [], _MEMORY_FORMATS.index(operand)
        return CONSTANT, [], operand
