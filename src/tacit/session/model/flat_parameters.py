"""A user's model as one flat vector: parameters become views into one buffer, gradients are gathered when asked for.

Most models have one dtype on one device, and the vector *is* the buffer. A model that mixes them (float32 norms in a
bfloat16 model, layers on two devices) has a buffer for each and a vector of the widest dtype on the first device,
filled when a hook asks for it and written back after the hook.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from tacit.core.parameter_layout import Layout
from tacit.errors import MisplacedCall, require


@dataclass(frozen=True)
class _Place:
    """Where one parameter lives: in the model, and in the vector."""

    name: str
    parameter: nn.Parameter
    owner: nn.Module  # whose attribute it is
    attribute: str
    start: int
    end: int


class FlatModel:
    """The trainable parameters of a model, laid end to end in the model's own order; tied weights appear once."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.places = _places(model)
        require(bool(self.places), "the model has no trainable parameters; attach after requires_grad is set.")
        for place in self.places:
            require(
                not hasattr(place.parameter, "placements"),
                f"parameter {place.name} is sharded (a DTensor); tacit averages whole models: use torchtitan or torchft for sharded ones.",
            )
            require(
                place.parameter.is_floating_point() and place.parameter.layout is torch.strided,
                f"parameter {place.name} is {place.parameter.dtype}, {place.parameter.layout}; only dense real ones can be averaged.",
            )
        self.parameters = [place.parameter for place in self.places]
        self.dimension = self.places[-1].end
        self.layout = Layout.of(model)
        self.dtype = reduce(torch.promote_types, (p.dtype for p in self.parameters))
        self.device = self.parameters[0].device
        self.is_mixed = len({(p.dtype, p.device) for p in self.parameters}) > 1
        self._vector = torch.empty(self.dimension, dtype=self.dtype, device=self.device)
        self._buffers = self._adopt()
        self._is_lent = False  # a mixed model's vector was handed out and must be written back
        self._gradient: Tensor | None = None
        self._gradient_parts: list[Tensor] = []

    def _adopt(self) -> list[Tensor]:
        """Move all parameters into buffers, one per dtype and device, and return the views they became."""
        kinds = dict.fromkeys((p.dtype, p.device) for p in self.parameters)
        sizes = {kind: sum(p.numel() for p in self.parameters if (p.dtype, p.device) == kind) for kind in kinds}
        buffers = {
            (dtype, device): torch.empty(size, dtype=dtype, device=device) for (dtype, device), size in sizes.items()
        }
        if not self.is_mixed:
            buffers = dict.fromkeys(kinds, self._vector)
        filled, views = dict.fromkeys(kinds, 0), []
        for parameter in self.parameters:
            kind = (parameter.dtype, parameter.device)
            view = _part(buffers[kind], parameter, filled[kind])
            view.copy_(parameter.data)
            parameter.data = view
            filled[kind] += parameter.numel()
            views.append(view)
        return views

    def release(self) -> None:
        """Give every parameter memory of its own again."""
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()

    # The vector.

    def vector(self) -> Tensor:
        """Return all parameters as one flat vector to write to in place; call ``settle`` when done."""
        self.check()
        if self.is_mixed and not self._is_lent:
            self._is_lent = True
            torch._foreach_copy_(self.split(self._vector), self._buffers)
        return self._vector

    def copy(self) -> Tensor:
        """Return all parameters on the CPU, as they were last seen: never refused."""
        if self.is_mixed and not self._is_lent:
            torch._foreach_copy_(self.split(self._vector), self._buffers)
        return self._vector.detach().to("cpu", copy=True)

    def settle(self) -> None:
        """Write a mixed model's vector back into its parameters, if it was handed out."""
        if self._is_lent:
            self._is_lent = False
            torch._foreach_copy_(self._buffers, self.split(self._vector))

    def split(self, vector: Tensor, begin: int = 0, end: int | None = None) -> list[Tensor]:
        """Return views of ``vector``, one shaped like each parameter; it may be the stretch from ``begin`` to ``end``
        of the whole.
        """
        inside = self.places if end is None else [place for place in self.places if begin <= place.start < end]
        return [_part(vector, place.parameter, place.start - begin) for place in inside]

    # Gradients.

    def gather_gradient(self) -> Tensor:
        """Return the gradients as one flat vector that lives until the next step; a parameter without one counts as
        zero.
        """
        self.check()
        if self._gradient is None:
            self._gradient = torch.empty_like(self._vector)
            self._gradient_parts = self.split(self._gradient)
        parts = self._gradient_parts
        given = [(part, p.grad) for part, p in zip(parts, self.parameters, strict=True) if p.grad is not None]
        if len(given) < len(parts):
            self._gradient.zero_()
        if given:
            torch._foreach_copy_([part for part, _ in given], [grad.to_dense() for _, grad in given])
        return self._gradient

    def scatter_gradient(self, vector: Tensor) -> None:
        """Make ``vector`` the parameters' gradients."""
        require(
            vector.numel() == self.dimension,
            f"the gradient has {self.dimension} numbers, but {vector.numel()} were assigned.",
        )
        parts = self.split(vector)
        for parameter in self.parameters:
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = torch.empty_like(parameter)
        torch._foreach_copy_([p.grad for p in self.parameters], parts)  # type: ignore[misc]

    # What may change under our feet.

    def check(self) -> None:
        """Take back parameters that were given other memory; refuse what cannot be followed, with what to do."""
        for place, view in zip(self.places, self._buffers, strict=True):
            parameter = place.parameter
            if place.owner._parameters.get(place.attribute) is not parameter:
                raise MisplacedCall(
                    f"parameter {place.name} is another object than at tacit.attach (load_state_dict(assign=True) does this, and the optimizer "
                    f"does not follow it either); load without assign=True, or load before making the optimizer and attaching."
                )
            if parameter.data_ptr() == view.data_ptr():
                continue
            if parameter.dtype != view.dtype or parameter.device != view.device or parameter.shape != view.shape:
                raise MisplacedCall(
                    f"parameter {place.name} was {_described(view)} at tacit.attach and is {_described(parameter)} now; "
                    f"move or cast the model before making the optimizer and attaching."
                )
            view.copy_(parameter.data)
            parameter.data = view


def _places(model: nn.Module) -> list[_Place]:
    places: list[_Place] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            path, _, attribute = name.rpartition(".")
            start = places[-1].end if places else 0
            places.append(
                _Place(name, parameter, model.get_submodule(path), attribute, start, start + parameter.numel())
            )
    return places


def _part(vector: Tensor, like: Tensor, start: int) -> Tensor:
    """Return the part of ``vector`` from ``start`` on, shaped like ``like`` and, in channels_last, laid out like it."""
    if like.is_contiguous() or not _is_channels_last(like):
        return vector[start : start + like.numel()].view(like.shape)
    return vector.as_strided(like.shape, like.stride(), vector.storage_offset() + start)


def _is_channels_last(tensor: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
