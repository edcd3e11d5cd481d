"""Record the torch operations of a function, and make a function of them for any number of replicas.

The function is recorded for two numbers of replicas, the second twice the first. Both recordings must have the same
operations. A size that differs between them must be a multiple of the number of replicas. The result is a Python
function without branches, in which repeated operations, unused results and views of unchanged shape are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Function = Callable[..., Sequence[Tensor]]

_ATEN: Final = torch.ops.aten
_VIEWS: Final = {
    _ATEN.detach.default,
    _ATEN.alias.default,
    _ATEN.view.default,
    _ATEN._unsafe_view.default,
    _ATEN.expand.default,
}
"""Operations that do nothing if the result has the shape of the argument."""


class CannotRecord(Exception):
    """A function whose operations depend on more than the number of replicas, or that overwrites tensors."""


class Operation(NamedTuple):
    """A torch operation; tensors among its arguments and results are numbered in the order of their occurrence."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any


class Numbered(NamedTuple):
    """A tensor in a recording."""

    number: int


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records all operations that reach the device, below the layers of ``torch.func``."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensors: list[Tensor] = []  # kept, so that no two of them have the same identity
        self.constants: dict[int, Tensor] = {}  # by number: those that no recorded operation has made
        self.operations: list[Operation] = []
        self._numbers: dict[int, Numbered] = {}
        for tensor in inputs:
            self._add(tensor)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function._schema.is_mutable:
            raise CannotRecord
        own_args, own_kwargs = _mapped(args, self.numbered), _mapped(kwargs or {}, self.numbered)
        results = function(*args, **kwargs or {})
        self.operations.append(Operation(function, own_args, own_kwargs, _mapped(results, self._add)))
        return results

    def numbered(self, tensor: Tensor) -> Numbered:
        """Return the number of a tensor; an unknown one is a constant."""
        if id(tensor) not in self._numbers:
            self.constants[len(self.tensors)] = tensor
            self._add(tensor)
        return self._numbers[id(tensor)]

    def _add(self, tensor: Tensor) -> Numbered:
        number = self._numbers.setdefault(id(tensor), Numbered(len(self.tensors)))
        self.tensors.append(tensor)
        return number


def recorded(function: Function, inputs: Sequence[Tensor], more: Sequence[Tensor]) -> Function:
    """Return a function of the number of replicas and of inputs like ``inputs``, which returns a tuple.

    more: inputs for twice as many replicas.
    """
    recordings = []
    for given in (inputs, more):
        with Recorder(given) as recorder:
            results = function(*given)
        recordings.append((recorder, [recorder.numbered(result) for result in results]))
    (one, results), (two, others) = recordings
    _require(results == others and one.constants.keys() == two.constants.keys())
    _require(len(one.operations) == len(two.operations))
    for number, constant in one.constants.items():
        _require(torch.equal(constant, two.constants[number]))
    return _Writer(one, two, len(inputs), len(inputs[0])).function([result.number for result in results])


class _Writer:
    """Writes a Python function of two recordings."""

    def __init__(self, one: Recorder, two: Recorder, inputs: int, replicas: int) -> None:
        self._one, self._two, self._replicas = one, two, replicas
        self._inputs = [f"t{number}" for number in range(inputs)]
        self._names = {number: f"t{number}" for number in (*range(inputs), *one.constants)}  # of tensors
        self._objects: dict[str, Any] = {f"t{number}": constant for number, constant in one.constants.items()}
        self._lines: list[tuple[str, str, list[str]]] = []  # name, expression, and names in it

    def function(self, results: Sequence[int]) -> Function:
        """Return the function whose results are the tensors with these numbers."""
        known: dict[str, str] = {}  # names of results by expression
        for one, two in zip(self._one.operations, self._two.operations, strict=True):
            _require(one.function is two.function and isinstance(one.results, Numbered) and one.results == two.results)
            number = one.results.number
            if one.function in _VIEWS and self._is_unchanged(one.args[0].number, number):
                self._names[number] = self._names[one.args[0].number]
                continue
            used: list[str] = []
            args = [self._text(a, b, used) for a, b in zip(one.args, two.args, strict=True)]
            args += [f"{name}={self._text(value, two.kwargs[name], used)}" for name, value in one.kwargs.items()]
            expression = f"{self._object(one.function)}({', '.join(args)})"
            if expression not in known:
                known[expression] = f"t{number}"
                self._lines.append((f"t{number}", expression, used))
            self._names[number] = known[expression]
        return self._compiled([self._names[number] for number in results])

    def _compiled(self, results: list[str]) -> Function:
        """Return the function; a tensor is deleted behind its last use."""
        needed, lines = set(results), [f"    return ({', '.join(results)},)"]
        for name, expression, used in reversed(self._lines):
            if name not in needed:
                continue
            last = [one for one in dict.fromkeys(used) if one not in needed and one not in self._objects]
            lines.append(f"    {name} = {expression}" + (f"; del {', '.join(last)}" if last else ""))
            needed.update(used)
        source = "\n".join([f"def run(replicas, {', '.join(self._inputs)}):", *reversed(lines)])
        exec(compile(source, "<recorded gradient>", "exec"), self._objects)
        function: Function = self._objects["run"]
        return function

    def _is_unchanged(self, before: int, after: int) -> bool:
        """Return whether two tensors have the same shape and strides in both recordings."""
        pairs = [(recorder.tensors[before], recorder.tensors[after]) for recorder in (self._one, self._two)]
        return all(a.shape == b.shape and a.stride() == b.stride() for a, b in pairs)

    def _text(self, one: Any, two: Any, used: list[str]) -> str:
        """Return an argument of both recordings as Python."""
        if isinstance(one, Numbered):
            _require(one == two)
            used.append(self._names[one.number])
            return used[-1]
        if isinstance(one, tuple | list):
            _require(len(one) == len(two))
            return f"[{', '.join([self._text(a, b, used) for a, b in zip(one, two, strict=True)])}]"
        if type(one) is int and one != two:
            _require(one % self._replicas == 0 and two == 2 * one)
            return f"replicas * {one // self._replicas}" if one > self._replicas else "replicas"
        _require(type(one) is type(two) and one == two)
        return repr(one) if isinstance(one, int | None) else self._object(one)

    def _object(self, value: Any) -> str:
        """Return the name of a value in the function."""
        for name, other in self._objects.items():
            if type(other) is type(value) and not isinstance(value, Tensor) and other == value:
                return name
        name = f"o{len(self._objects)}"
        self._objects[name] = value
        return name


def _mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return ``value`` with its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return [_mapped(one, change) for one in value]
    if isinstance(value, dict):
        return {name: _mapped(one, change) for name, one in value.items()}
    return value


def _require(holds: bool) -> None:
    if not holds:
        raise CannotRecord
