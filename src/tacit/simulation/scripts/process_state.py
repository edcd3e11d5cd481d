"""Process state of one simulated worker: ``__main__`` and modules, arguments, environment, random generators.

Workers run alternately in one interpreter, and their state is swapped at each switch, which must be cheap compared with
a training step. The generators of torch and Python are copied (1 and 12 µs). A copy of numpy's generator would take
70 µs, so each worker has its own bit generator, which is installed in 0.3 µs. numpy keeps one number outside of it, the
second of a pair of Gaussians; it is copied only if the memory of the generator shows that the worker has drawn numbers.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from tacit.core.message_kinds import Kinds, kinds_in_use, latest_kinds, restore_latest_kinds, use_kinds
from tacit.core.randomness import Streams
from tacit.session.script_context import ScriptContext, script_context, set_script_context
from tacit.simulation.scripts.frameworks import Singletons, put_singletons, singletons_exist, take_singletons

_MERSENNE_BYTES = 624 * 4 + 4  # its numbers, and the position among them


class Generators:
    """The global random generators of Python, numpy and torch for one worker."""

    def __init__(self, streams: Streams, rank: int) -> None:
        """Seed the generators differently on each rank, as those of new processes are, but from the seed of the run."""
        self._python: object = random.Random(streams.integer("python", rank)).getstate()
        self._numpy: Any = np.random.MT19937(streams.integer("numpy", rank))
        self._drawn = _memory_of(self._numpy)
        self._half_pair: dict[str, Any] | None = None  # numpy's whole state if it holds the second of two Gaussians
        self._torch = torch.Generator().manual_seed(streams.integer("torch", rank)).get_state()
        self._cuda: list[tuple[int, int]] = []  # by device: seed and offset

    def save(self) -> None:
        """Save the state of the generators."""
        self._python = random.getstate()
        self._torch = torch.default_generator.get_state()
        source = np.random.get_bit_generator()  # type: ignore[attr-defined]
        drawn = _memory_of(source)
        if drawn is None or drawn != self._drawn or self._half_pair is not None or source is not self._numpy:
            state = np.random.get_state(legacy=False)
            assert isinstance(state, dict)
            self._half_pair = state if state["has_gauss"] else None
        self._numpy, self._drawn = source, drawn
        self._cuda = [(g.initial_seed(), g.get_offset()) for g in _cuda_generators()]

    def load(self) -> None:
        """Restore the saved state of the generators."""
        random.setstate(self._python)  # type: ignore[arg-type]
        torch.default_generator.set_state(self._torch)
        np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]
        if self._half_pair is not None:
            np.random.set_state(self._half_pair)
        for generator, (seed, offset) in zip(_cuda_generators(), self._cuda, strict=False):
            generator.manual_seed(seed)
            generator.set_offset(offset)


class RngState(NamedTuple):
    """State of the generators as values that can be compared."""

    python: object
    numpy: tuple[bytes, int, int, float]
    torch: bytes

    @classmethod
    def now(cls) -> RngState:
        _, keys, position, has_gauss, gauss = np.random.get_state()
        numpy = (np.asarray(keys).tobytes(), int(position), int(has_gauss), float(gauss))
        return cls(random.getstate(), numpy, torch.get_rng_state().numpy().tobytes())

    def restore(self) -> None:
        """Set the generators to this state."""
        random.setstate(self.python)  # type: ignore[arg-type]
        keys, position, has_gauss, gauss = self.numpy
        np.random.set_state(("MT19937", np.frombuffer(keys, np.uint32), position, has_gauss, gauss))
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch), dtype=torch.uint8))


class ProcessState:
    """State of the interpreter for one worker, or for the process itself between workers."""

    def __init__(
        self, main: ModuleType, arguments: list[str], environment: Mapping[str, str | None], generators: Generators
    ) -> None:
        self.main, self.arguments, self.environment, self.generators = main, arguments, environment, generators
        self.context: ScriptContext | None = None
        self.modules: dict[str, ModuleType] = {}  # those in the folder of the script
        self.kinds = Kinds()  # message classes that it defines
        self.singletons: Singletons = []  # of accelerate


class Interpreter:
    """This process, in which workers run alternately. As a context manager it restores the state at the end."""

    def __init__(self, folder: Path, streams: Streams) -> None:
        self._folder, self._streams = folder, streams
        self.shows_output = True  # whether output is printed now

    def __enter__(self) -> Interpreter:
        environment = {name: os.environ.get(name) for name in environment_of(0, 1)}
        self._host = self._present = ProcessState(
            sys.modules["__main__"], sys.argv, environment, Generators(self._streams, -1)
        )
        self._host.context, self._host.kinds = script_context(), kinds_in_use()
        self._path, self._before = list(sys.path), set(sys.modules)
        self._kinds = latest_kinds()
        self._settings = torch.get_num_threads(), torch.get_default_dtype()
        self._modules = len(sys.modules)
        self._is_local: dict[str, bool] = {}  # by top-level name: whether the module is in the folder of the script
        sys.path.insert(0, str(self._folder))
        return self

    def __exit__(self, *_: object) -> None:
        self.switch_to(self._host)
        restore_latest_kinds(self._kinds)
        sys.path[:] = self._path
        threads, dtype = self._settings
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)

    def switch_to(self, next_one: ProcessState) -> None:
        """Save the present state and install another one."""
        last = self._present
        if last is next_one:
            return
        last.main, last.arguments = sys.modules["__main__"], sys.argv
        last.generators.save()
        if singletons_exist():
            last.singletons = take_singletons()
            put_singletons(next_one.singletons)
        if len(sys.modules) != self._modules:
            last.modules = self._local_modules()
        self._present = next_one
        sys.modules["__main__"], sys.argv = next_one.main, next_one.arguments
        set_script_context(next_one.context)
        use_kinds(next_one.kinds)
        next_one.generators.load()
        for name, value in next_one.environment.items():
            if value != last.environment[name]:
                _set_variable(name, value)
        if last.modules or next_one.modules:
            for name in last.modules:
                sys.modules.pop(name, None)
            sys.modules.update(next_one.modules)
        self._modules = len(sys.modules)

    def _local_modules(self) -> dict[str, ModuleType]:
        """Return the modules that the worker has imported from the script's folder; each worker has its own."""
        new = [(name, module) for name, module in sys.modules.items() if name not in self._before]
        return {name: module for name, module in new if self._is_local_module(name.partition(".")[0])}

    def _is_local_module(self, top: str) -> bool:
        if top not in self._is_local:
            module = sys.modules.get(top)
            file, folders = getattr(module, "__file__", None), getattr(module, "__path__", ())
            places = [Path(folder).parent for folder in folders] or ([Path(file).parent] if file else [])
            self._is_local[top] = any(place.resolve() == self._folder for place in places)
        return self._is_local[top]


class ComputeClock:
    """Real seconds that a worker has run since its last step, without the time in which others ran."""

    def __init__(self) -> None:
        self._ran_s, self._since_s = 0.0, time.perf_counter()

    def start(self) -> None:
        self._since_s = time.perf_counter()

    def stop(self) -> None:
        self._ran_s += time.perf_counter() - self._since_s

    def set(self, ran_s: float) -> None:
        self._ran_s, self._since_s = ran_s, time.perf_counter()

    def read_s(self) -> float:
        return self._ran_s + time.perf_counter() - self._since_s


def environment_of(rank: int, size: int) -> dict[str, str]:
    """Return the variables that torchrun sets for a worker that is the only one on its machine."""
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _memory_of(source: Any) -> bytes | None:
    """Return the memory of a Mersenne twister, in 0.3 µs; None for other generators."""
    if not isinstance(source, np.random.MT19937):
        return None
    return ctypes.string_at(source.ctypes.state_address, _MERSENNE_BYTES)


def _cuda_generators() -> tuple[torch.Generator, ...]:
    return torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]


@contextmanager
def without_autocast() -> Iterator[None]:
    """Suspend an open ``torch.autocast``: it belongs to the thread, which greenlets share."""
    opened = [(kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    if not opened:
        yield
        return
    depth = 1
    while torch.autocast_decrement_nesting() > 0:
        depth += 1
    torch.clear_autocast_cache()
    for kind, _ in opened:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        for kind, dtype in opened:
            torch.set_autocast_enabled(kind, True)
            torch.set_autocast_dtype(kind, dtype)
        for _ in range(depth):
            torch.autocast_increment_nesting()
