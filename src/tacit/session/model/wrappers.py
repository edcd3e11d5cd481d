"""Wrappers around an attached model that communicate on their own: DDP and FSDP.

Frameworks wrap the model themselves and pass the inner one to callbacks. Such a wrapper all-reduces every gradient,
whatever the strategy decides, and its bytes are not counted.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Final

import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tacit.errors import MisplacedCall

WAY_OUT: Final = (
    "Remove the wrapper; while a strategy is attached nothing else may communicate gradients or parameters.\n"
    "  your own loop           do not wrap the model: call the inner model, and attach it\n"
    "  Hugging Face Trainer    trainer.accelerator.prepare_model = lambda model, **_: model, before trainer.train()\n"
    "  accelerate              do not pass the model to accelerator.prepare(); optimizer and data loaders may be\n"
    "  Lightning               "
    "Trainer(strategy=SingleDeviceStrategy(device=…), plugins=[LightningEnvironment()], devices=1)\n"
    "To keep DDP and only compress what it sends, use model.register_comm_hook(state, tacit.hooks.ef21) "
    "without tacit.attach."
)


def refuse_wrappers(model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
    """Raise if an existing wrapper communicates ``parameters``, or ``model`` itself was sharded in place."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return  # neither kind of wrapper exists without a process group
    name = _sharded_in_place(model) or _existing(parameters)
    if name is None:
        return
    gc.collect()  # a wrapper that was dropped remains in a reference cycle
    name = _sharded_in_place(model) or _existing(parameters)
    if name is not None:
        raise MisplacedCall(
            f"the attached model is wrapped in {name}, which communicates in every step; "
            f"the strategy would have no effect. {WAY_OUT}"
        )


def _sharded_in_place(model: nn.Module) -> str | None:
    """Return "fully_shard" if FSDP2 has changed the class of a module of ``model``, else None."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not hasattr(fsdp, "FSDPModule"):
        return None
    return "fully_shard" if any(isinstance(module, fsdp.FSDPModule) for module in model.modules()) else None


def _existing(parameters: Sequence[nn.Parameter]) -> str | None:
    """Return the class of a wrapper that holds one of ``parameters``, found among all objects of the process."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kinds: tuple[type[nn.Module], ...] = (DistributedDataParallel,)
    if fsdp is not None:
        kinds += (fsdp.FullyShardedDataParallel,)
    mine, everything = {id(p) for p in parameters}, gc.get_objects()
    wrapping = {kind for kind in set(map(type, everything)) if any(known in kind.__mro__ for known in kinds)}
    found = (thing for thing in everything if type(thing) in wrapping) if wrapping else ()
    for wrapper in found:
        if any(id(p) in mine for p in wrapper.parameters()):
            return next(kind.__name__ for kind in kinds if isinstance(wrapper, kind))
    return None
