"""A user's model as one flat vector: parameters become views into one buffer, gradients are gathered on request.

Most models have one dtype on one device, and the vector *is* the buffer. A model that mixes them (float32 norms in a
bfloat16 model, layers on two devices) has a buffer for each combination, and a vector of the widest dtype on the first
device, which is filled when a hook asks for it and written back after the hook.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from tacit.core.parameter_layout import Layout
from tacit.errors import MisplacedCall, require


@dataclass(frozen=True)
class _Slot:
    """The position of one parameter in the model and in the vector."""

    name: str
    parameter: nn.Parameter
    owner: nn.Module  # the module that has it as an attribute
    attribute: str
    start: int
    end: int


class FlatModel:
    """The trainable parameters of a model as one vector, in the model's own order; tied weights appear once."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.slots = _slots(model)
        require(bool(self.slots), "the model has no trainable parameters; attach after requires_grad is set.")
        for slot in self.slots:
            require(
                not hasattr(slot.parameter, "placements"),
                f"parameter {slot.name} is sharded (a DTensor), and tacit averages whole models; "
                f"use torchtitan or torchft for sharded ones.",
            )
            require(
                slot.parameter.is_floating_point() and slot.parameter.layout is torch.strided,
                f"parameter {slot.name} is {slot.parameter.dtype}, {slot.parameter.layout}; "
                f"only dense real ones can be averaged.",
            )
        self.parameters = [slot.parameter for slot in self.slots]
        self.dimension = self.slots[-1].end
        self.layout = Layout.of(model)
        self.dtype = reduce(torch.promote_types, (p.dtype for p in self.parameters))
        self.device = self.parameters[0].device
        self.is_mixed = len({(p.dtype, p.device) for p in self.parameters}) > 1
        self._vector = torch.empty(self.dimension, dtype=self.dtype, device=self.device)
        self._buffers = self._adopt()
        self._is_handed_out = False  # a mixed model's vector must be written back
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
        """Give every parameter its own memory again."""
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()

    # The vector.

    def vector(self) -> Tensor:
        """Return all parameters as one flat vector to write to in place; call ``write_back`` when done."""
        self.check()
        if self.is_mixed and not self._is_handed_out:
            self._is_handed_out = True
            torch._foreach_copy_(self.split(self._vector), self._buffers)
        return self._vector

    def copy(self) -> Tensor:
        """Return a copy of all parameters on the CPU, without any check."""
        if self.is_mixed and not self._is_handed_out:
            torch._foreach_copy_(self.split(self._vector), self._buffers)
        return self._vector.detach().to("cpu", copy=True)

    def write_back(self) -> None:
        """Write a mixed model's vector back into its parameters, if it was handed out."""
        if self._is_handed_out:
            self._is_handed_out = False
            torch._foreach_copy_(self._buffers, self.split(self._vector))

    def split(self, vector: Tensor, begin: int = 0, end: int | None = None) -> list[Tensor]:
        """Return views of ``vector``, one shaped like each parameter.

        ``vector`` may be the range from ``begin`` to ``end`` of the whole.
        """
        inside = self.slots if end is None else [slot for slot in self.slots if begin <= slot.start < end]
        return [_part(vector, slot.parameter, slot.start - begin) for slot in inside]

    # Gradients.

    def gather_gradient(self) -> Tensor:
        """Return the gradients as one flat vector, valid until the next step; a missing gradient counts as zero."""
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
        if vector.numel() != self.dimension:
            raise ValueError(f"the gradient has {self.dimension} numbers, but {vector.numel()} were assigned.")
        parts = self.split(vector)
        for parameter in self.parameters:
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = torch.empty_like(parameter)
        torch._foreach_copy_([p.grad for p in self.parameters], parts)  # type: ignore[misc]

    # Changes that the user makes to the model.

    def check(self) -> None:
        """Move parameters that got other memory back into the buffer; refuse changes that cannot be followed."""
        for slot, view in zip(self.slots, self._buffers, strict=True):
            parameter = slot.parameter
            if slot.owner._parameters.get(slot.attribute) is not parameter:
                raise MisplacedCall(
                    f"parameter {slot.name} is another object than at tacit.attach (load_state_dict(assign=True) does "
                    f"this, and the optimizer does not follow it either); load without assign=True, or load before "
                    f"making the optimizer and attaching."
                )
            if parameter.data_ptr() == view.data_ptr():
                continue
            if parameter.dtype != view.dtype or parameter.device != view.device or parameter.shape != view.shape:
                raise MisplacedCall(
                    f"parameter {slot.name} was {_described(view)} at tacit.attach and is {_described(parameter)} now; "
                    f"move or cast the model before making the optimizer and attaching."
                )
            view.copy_(parameter.data)
            parameter.data = view


def _slots(model: nn.Module) -> list[_Slot]:
    slots: list[_Slot] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            path, _, attribute = name.rpartition(".")
            start = slots[-1].end if slots else 0
            slots.append(_Slot(name, parameter, model.get_submodule(path), attribute, start, start + parameter.numel()))
    return slots


def _part(vector: Tensor, like: Tensor, start: int) -> Tensor:
    """Return the part of ``vector`` from ``start`` on, with the shape and memory format of ``like``."""
    if like.is_contiguous() or not _is_channels_last(like):
        return vector[start : start + like.numel()].view(like.shape)
    return vector.as_strided(like.shape, like.stride(), vector.storage_offset() + start)


def _is_channels_last(tensor: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
