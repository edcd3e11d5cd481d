"""The optimizers of one model: one, or several that divide its parameters (Muon for matrices, AdamW for the rest)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tacit.core.strategy import Strategy
from tacit.errors import TacitError, require

_WRAPPING_PACKAGES = ("accelerate.", "lightning.", "pytorch_lightning.")


class Optimizers:
    """Optimizers in the user's order. The learning rate is that of the first one's first group."""

    def __init__(self, given: Sequence[Optimizer]) -> None:
        self._all = tuple(given)

    def __iter__(self) -> Iterator[Optimizer]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __str__(self) -> str:
        return ", ".join(type(optimizer).__name__ for optimizer in self._all)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all optimizers, in order."""
        return [group for optimizer in self._all for group in optimizer.param_groups]

    @property
    def learning_rate(self) -> float:
        return float(self._all[0].param_groups[0]["lr"])

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a single optimizer as torch does, or a dict with those of several."""
        if len(self._all) == 1:
            return self._all[0].state_dict()
        return {"optimizers": [optimizer.state_dict() for optimizer in self._all]}

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        parts: list[Any] = stored.get("optimizers", [stored])
        if len(parts) != len(self._all):
            raise TacitError(
                f"the checkpoint has the state of {len(parts)} optimizers, but {len(self._all)} are attached ({self}); "
                f"attach the optimizers it was written with."
            )
        for optimizer, part in zip(self._all, parts, strict=True):
            optimizer.load_state_dict(part)


def optimizers_of(given: object) -> Optimizers:
    """Return the optimizers that the user passed to ``attach``, one or a list, without framework wrappers."""
    several = list(given) if isinstance(given, list | tuple) else [given]
    require(bool(several), "optimizer=[] must hold at least one torch.optim optimizer.")
    optimizers = [_unwrapped(one) for one in several]
    require(len({id(one) for one in optimizers}) == len(optimizers), "the list of optimizers holds one of them twice.")
    return Optimizers(optimizers)


def _unwrapped(given: object) -> Optimizer:
    inner = getattr(given, "optimizer", None)
    if isinstance(inner, Optimizer) and any(k.__module__.startswith(_WRAPPING_PACKAGES) for k in type(given).__mro__):
        return _unwrapped(inner)
    if not isinstance(given, Optimizer):
        raise TypeError(f"optimizer={given!r} must be a torch.optim optimizer, or a list of them.")
    if not hasattr(given, "_optimizer_step_pre_hooks"):
        raise TypeError(
            f"optimizer is a {type(given).__name__}, which wraps another optimizer and does not call step hooks; "
            f"attach the optimizer inside (optimizer.optimizer)."
        )
    return given


def check_optimizers(optimizers: Optimizers, model: nn.Module, strategy: Strategy[Any]) -> None:
    """Raise unless the optimizers hold exactly the trainable parameters of ``model`` and suit ``strategy``."""
    for optimizer in optimizers:
        require(
            not (evaluates_several_times(optimizer) and needs_gradient(strategy)),
            f"{type(optimizer).__name__} computes several gradients in one step, and {strategy} communicates the "
            f"gradient before the step; use a strategy that averages models, such as LocalSGD().",
        )
    names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    held: dict[int, Optimizer] = {}
    groups = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
    for number, (optimizer, group) in enumerate(groups):
        for parameter in group["params"]:
            require(
                id(parameter) in names or not parameter.requires_grad,
                f"the optimizer's parameter group {number} holds a parameter of shape {tuple(parameter.shape)} that is "
                f"not one of the model's; make the optimizer from model.parameters(), after any change of the model.",
            )
            require(
                held.setdefault(id(parameter), optimizer) is optimizer,
                f"two optimizers hold the parameter {names.get(id(parameter), '')}; give each parameter to one of "
                f"them.",
            )
    missing = [name for own, name in names.items() if own not in held]
    shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
    require(
        not missing,
        f"{optimizers} does not hold every trainable parameter of the model; missing: {shown}. If another optimizer "
        f"trains them, attach all of them: tacit.attach(model, [first, second], …). If nothing trains them, set "
        f"requires_grad_(False) on them.",
    )


def needs_gradient(strategy: Strategy[Any]) -> bool:
    """Whether ``strategy`` has a hook between the gradient and the optimizers' step."""
    return type(strategy).before_step is not Strategy.before_step


def evaluates_several_times(optimizer: Optimizer) -> bool:
    """Whether ``optimizer`` evaluates its closure several times in a step and stores curvature."""
    return isinstance(optimizer, torch.optim.LBFGS)


def is_moment(value: object, parameter: Tensor) -> bool:
    """Whether a value of an optimizer's state can be averaged: floating point, in the parameter's shape."""
    return isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point()
