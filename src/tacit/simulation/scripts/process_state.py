"""What of this process belongs to one simulated worker: its ``__main__`` and modules, arguments, environment, random
generators.

Workers take turns in one interpreter, so these are swapped when another worker's turn begins; that must stay cheap
beside a training step. torch's and python's generators are copied (1 and 12 µs). numpy's would cost 70 µs, so every
worker has a bit generator of its own, put in place for 0.3 µs; only the one number that numpy keeps outside of it, the
second of a pair of Gaussians, has to be fetched, and only where the generator's memory shows that the worker has drawn
since.
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
    """Where python's, numpy's and torch's global generators stand for one worker."""

    def __init__(self, streams: Streams, rank: int) -> None:
        """Begin like a fresh process, seeded by chance; but chance comes from the run's seed."""
        self._python: object = random.Random(streams.integer("python", rank)).getstate()
        self._numpy: Any = np.random.MT19937(streams.integer("numpy", rank))
        self._drawn = _memory_of(self._numpy)
        self._half_pair: dict[str, Any] | None = None  # numpy's whole state, where it holds the second of two Gaussians
        self._torch = torch.Generator().manual_seed(streams.integer("torch", rank)).get_state()
        self._cuda: list[tuple[int, int]] = []  # by device: seed and offset

    def save(self) -> None:
        """Take down where the generators stand."""
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
        """Let the generators go on from there."""
        random.setstate(self._python)  # type: ignore[arg-type]
        torch.default_generator.set_state(self._torch)
        np.random.set_bit_generator(self._numpy)  # type: ignore[attr-defined]
        if self._half_pair is not None:
            np.random.set_state(self._half_pair)
        for generator, (seed, offset) in zip(_cuda_generators(), self._cuda, strict=False):
            generator.manual_seed(seed)
            generator.set_offset(offset)


class RngState(NamedTuple):
    """Where the generators stand, as values that compare."""

    python: object
    numpy: tuple[bytes, int, int, float]
    torch: bytes

    @classmethod
    def now(cls) -> RngState:
        _, keys, position, has_gauss, gauss = np.random.get_state()
        numpy = (np.asarray(keys).tobytes(), int(position), int(has_gauss), float(gauss))
        return cls(random.getstate(), numpy, torch.get_rng_state().numpy().tobytes())

    def take_up(self) -> None:
        """Let the generators go on from here."""
        random.setstate(self.python)  # type: ignore[arg-type]
        keys, position, has_gauss, gauss = self.numpy
        np.random.set_state(("MT19937", np.frombuffer(keys, np.uint32), position, has_gauss, gauss))
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch), dtype=torch.uint8))


class ProcessState:
    """Everything of the interpreter that one worker, or the process itself between turns, calls its own."""

    def __init__(
        self, main: ModuleType, arguments: list[str], environment: Mapping[str, str | None], generators: Generators
    ) -> None:
        self.main, self.arguments, self.environment, self.generators = main, arguments, environment, generators
        self.context: ScriptContext | None = None
        self.modules: dict[str, ModuleType] = {}  # those that lie beside the script
        self.kinds = Kinds()  # message classes that it defines
        self.singletons: Singletons = []  # of accelerate


class Interpreter:
    """This process, which workers use in turns. As a context manager it is left as it was found."""

    def __init__(self, folder: Path, streams: Streams) -> None:
        self._folder, self._streams = folder, streams
        self.is_heard = True  # whether what is printed now is to be seen

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
        self._is_beside: dict[str, bool] = {}  # by top-level name: whether it lies beside the script
        sys.path.insert(0, str(self._folder))
        return self

    def __exit__(self, *_: object) -> None:
        self.give_to(self._host)
        restore_latest_kinds(self._kinds)
        sys.path[:] = self._path
        threads, dtype = self._settings
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)

    def give_to(self, next_one: ProcessState) -> None:
        """Begin somebody's turn."""
        last = self._present
        if last is next_one:
            return
        last.main, last.arguments = sys.modules["__main__"], sys.argv
        last.generators.save()
        if singletons_exist():
            last.singletons = take_singletons()
            put_singletons(next_one.singletons)
        if len(sys.modules) != self._modules:
            last.modules = self._modules_beside_the_script()
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

    def _modules_beside_the_script(self) -> dict[str, ModuleType]:
        """Return what the worker has imported from the script's folder: state of its own, as in a process of its own."""
        new = [(name, module) for name, module in sys.modules.items() if name not in self._before]
        return {name: module for name, module in new if self._lies_beside(name.partition(".")[0])}

    def _lies_beside(self, top: str) -> bool:
        if top not in self._is_beside:
            module = sys.modules.get(top)
            file, folders = getattr(module, "__file__", None), getattr(module, "__path__", ())
            places = [Path(folder).parent for folder in folders] or ([Path(file).parent] if file else [])
            self._is_beside[top] = any(place.resolve() == self._folder for place in places)
        return self._is_beside[top]


class ComputeClock:
    """Real seconds that a worker has run since its last step; it stands still while others run."""

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
    """Return what torchrun would set for a worker that is alone on its machine, as simulated ones are."""
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _memory_of(source: Any) -> bytes | None:
    """Return a Mersenne twister's state as it lies in memory, for a third of a microsecond; None for other generators."""
    if not isinstance(source, np.random.MT19937):
        return None
    return ctypes.string_at(source.ctypes.state_address, _MERSENNE_BYTES)


def _cuda_generators() -> tuple[torch.Generator, ...]:
    return torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]


@contextmanager
def without_autocast() -> Iterator[None]:
    """Leave an open ``torch.autocast`` for a while: it belongs to the thread, and greenlets share one."""
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
