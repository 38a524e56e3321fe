"""Replace a few functions of PyTorch by ones that do the same and let the loop observe them."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any, Literal, Protocol
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stallscope.training.integrations.fit import ROLLOUTS
from stallscope.training.integrations.pytorch_before import Before
from stallscope.training.integrations.pytorch_forward import ModuleCalls
from stallscope.training.integrations.pytorch_loop import Loop
from stallscope.training.integrations.pytorch_updates import computes_update, with_readable_inputs
from stallscope.training.shim import pipeline

is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", bool)
"""`torch.compiler.is_compiling`. `Patches` refuses versions of PyTorch without it."""
is_traced: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", bool)
"""`torch.compiler.is_dynamo_compiling`, which takes half the time."""

_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
)
_PHASES = {
    "torch": {"save": "checkpoint", "load": "restore"},
    "torch.distributed.checkpoint": {
        "save": "checkpoint",
        "async_save": "checkpoint",
        "save_state_dict": "checkpoint",
        "load": "restore",
        "load_state_dict": "restore",
    },
    "torch.distributed.checkpoint.state_dict": {
        "get_model_state_dict": "checkpoint",
        "get_optimizer_state_dict": "checkpoint",
        "get_state_dict": "checkpoint",
        "set_model_state_dict": "restore",
        "set_optimizer_state_dict": "restore",
        "set_state_dict": "restore",
    },
    "safetensors.torch": {
        "save_file": "checkpoint",
        "save_model": "checkpoint",
        "serialize_file": "checkpoint",  # which programs that imported save_file earlier get to
        "load_file": "restore",
        "load_model": "restore",
    },
    "accelerate.accelerator": {
        "Accelerator.load_state": "restore",
        "Accelerator.save": "checkpoint",
        "Accelerator.save_model": "checkpoint",
        "Accelerator.save_state": "checkpoint",
    },
    "lightning.pytorch.trainer.trainer": {"Trainer.save_checkpoint": "checkpoint"},
    "transformers.trainer": {
        "Trainer._load_best_model": "restore",
        "Trainer._load_from_checkpoint": "restore",
        "Trainer._load_optimizer_and_scheduler": "restore",
        "Trainer._save_checkpoint": "checkpoint",
        "Trainer.evaluate": "evaluation",
        "Trainer.predict": "evaluation",
    },
    "trl.trainer.grpo_trainer": {f"GRPOTrainer.{method}": phase for method, phase in ROLLOUTS.items()},
    "trl.trainer.rloo_trainer": {f"RLOOTrainer.{method}": phase for method, phase in ROLLOUTS.items()},
    "trl.generation.vllm_generation": {"VLLMGeneration.sync_weights": "weight_sync"},
}
"""Functions that are a phase each, by module: `name`, or `Class.name`."""
_FRAMES = "_frames_up"
"""Argument of `torch.jit.script`: how many frames above the names are that the scripted code uses."""


class FindsLoop(Protocol):
    """Finds the loop that is observed."""

    def __call__(self, shows: Literal["", "loader", "backward", "optimizer"] = "") -> Loop | None:
        """Return the loop, or None.

        Args:
            shows: which event shows that a loop has begun, if it does.
        """


class Patches:
    """All replaced functions, and the way back.

    Each does what it did, whatever becomes of the observing, and nothing else while no loop is observed. Types,
    signatures and results stay; `torch.compile` sees through them.
    """

    def __init__(self, find: FindsLoop) -> None:
        """Replace them.

        Args:
            find: called at each event.

        Raises:
            RuntimeError: this PyTorch is too old.
        """
        if not hasattr(torch.compiler, "is_compiling"):
            raise RuntimeError(
                f"PyTorch {torch.__version__}: not supported; use 2.3 or newer, or wrap the loader in stallscope.track"
            )
        self._find = find
        self.loop: Loop | None = None
        """The newest loop."""
        self.calls = ModuleCalls()
        self.before = Before(self.calls)
        """Calls before the loop begins."""
        self.reduced: WeakSet[Any] = WeakSet()
        """Models whose gradients `DistributedDataParallel` reduces over ranks."""
        self.computed_gradients = False
        """True if the program has computed gradients with `torch.autograd.grad`."""
        self._storing: set[int] = set()
        """Threads that write or read a checkpoint."""
        self.has_optimizers = False
        """True if the program has created an optimizer."""
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._handles = [
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ended),
        ]
        self._on_gpu = False
        self._replace(DataLoader, "__iter__", self._iter)
        self._replace(_BaseDataLoaderIter, "__next__", self._next)
        self._replace(torch.autograd, "backward", self._backward)
        self._replace(torch.autograd, "grad", self._grad)
        self._replace(torch.nn.Module, "train", self._train)
        self._replace(torch.optim.Optimizer, "add_param_group", self._make_optimizer)
        self._replace(torch, "compile", self._compile)
        self._replace(torch.nn.Module, "compile", self._compile)
        self._replace(torch.amp.GradScaler, "step", self._scaled_step)
        for context in (torch.no_grad, torch.set_grad_enabled, torch.inference_mode):
            self._replace(context, "__enter__", self._switch_gradients)
            self._replace(context, "__exit__", self._switch_gradients)
        self._replace(torch.utils, "swap_tensors", self._swap)
        if _FRAMES in inspect.signature(torch.jit.script).parameters:
            self._replace(torch.jit, "script", self._script)
        if torch.distributed.is_available():
            for name in _COLLECTIVES:
                self._replace(torch.distributed, name, self._communicate)
            self._replace(torch.distributed.Work, "wait", self._communicate)
            self._replace(torch.nn.parallel.DistributedDataParallel, "__init__", self._distribute)
        if "replay" in vars(torch.cuda.CUDAGraph):
            self._replace(torch.cuda.CUDAGraph, "capture_begin", functools.partial(self._capture, True))
            self._replace(torch.cuda.CUDAGraph, "capture_end", functools.partial(self._capture, False))
            self._replace(torch.cuda.CUDAGraph, "replay", self._replay)
        self._observed: set[tuple[str, str]] = set()
        self._observes_stages = False
        self.observe_checkpoints()

    def observe_checkpoints(self) -> None:
        """Observe the functions that write and read checkpoints, of all modules that are imported by now.

        Also the making of pipeline stages.
        """
        base = getattr(sys.modules.get("torch.distributed.pipelining.stage"), "_PipelineStageBase", None)
        if base is not None and not self._observes_stages:
            self._observes_stages = True
            self._replace(base, "__init__", self._make_stage)
        for name, functions in _PHASES.items():
            module = sys.modules.get(name)
            for function, phase in functions.items() if module is not None else ():
                owner, _, attribute = function.rpartition(".")
                held_by = getattr(module, owner, None) if owner else module
                if (name, function) not in self._observed and hasattr(held_by, attribute):  # else it comes later
                    self._observed.add((name, function))
                    self._replace(held_by, attribute, functools.partial(self._store, phase))

    def direct(self, observer: Any) -> None:
        """Report events to a loop, or to a replacement of one."""
        self.loop = self.calls.listener = observer

    def on_gpu(self) -> None:
        """Time copies to the GPU, now that there is one."""
        if not self._on_gpu:
            self._on_gpu = True
            self._replace(torch.Tensor, "to", functools.partial(self._copy, goes_to_gpu))
            self._replace(torch.Tensor, "cuda", functools.partial(self._copy, lambda *_: True))

    def undo(self) -> None:
        """Put the originals back, except those that another library has replaced since."""
        self.calls.undo()
        for handle in self._handles:
            handle.remove()
        for owner, name, replacement, original in reversed(self._replaced):
            if owner.__dict__.get(name) is replacement:
                if original is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)
        self._replaced.clear()

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name, None)
        if original is None:  # another version of PyTorch
            return
        replacement = make(original)
        if not hasattr(replacement, "__wrapped__"):
            functools.update_wrapper(replacement, original)
        for place in (owner, sys.modules.get(getattr(original, "__module__", None) or "")):
            # A function is pickled by its name in the module that defines it, where pickle must find the same one.
            if place is owner or getattr(place, name, None) is original:
                self._replaced.append((place, name, replacement, place.__dict__.get(name)))
                setattr(place, name, replacement)

    def _iter(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        find = self._find

        def observed(loader: Any) -> Any:
            loop = find("loader")
            return original(loader) if loop is None else loop.begin_pass(loader, original)

        return observed

    def _next(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        find, before = self._find, self.before

        def observed(iterator: Any) -> Any:
            loop = self.loop
            if loop is not None and not loop.run.silent:
                return loop.next_batch(iterator, original)
            loop = find("loader")
            if loop is None and threading.current_thread() is threading.main_thread():
                return original(iterator)
            return (loop or before).next_batch(iterator, original)

        return observed

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        find = self._find

        def observed(*arguments: Any, **options: Any) -> Any:
            loop = self.loop
            if loop is None or loop.run.silent:
                loop = None if is_compiling() else find("backward")
            if loop is None:
                return original(*arguments, **options)
            return loop.backward(original, arguments, options)

        return observed

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def observed(*arguments: Any, **options: Any) -> Any:
            if is_compiling():
                return original(*arguments, **options)
            arguments, options = with_readable_inputs(arguments, options)
            self.computed_gradients = True
            begins = not self.has_optimizers and computes_update(arguments, options)
            if (loop := self._find("backward" if begins else "")) is None:
                return original(*arguments, **options)
            return loop.gradients_of(original, arguments, options)

        return observed

    def _train(self, original: Callable[..., Any]) -> Callable[..., Any]:
        find, before, calls = self._find, self.before, self.calls

        def observed(module: Any, mode: bool = True) -> Any:
            if calls.ignored or is_compiling():
                return original(module, mode)
            calls.ignored = True  # it is called again for each inner module
            try:
                return original(module, mode)
            finally:
                calls.ignored = False
                (find() or before).mode_switched(mode)

        return observed

    def _make_optimizer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def observed(optimizer: Any, *arguments: Any, **options: Any) -> Any:
            result = original(optimizer, *arguments, **options)
            self.has_optimizers = True
            if self._find() is None:
                self.before.prepared()
            return result

        return observed

    def _switch_gradients(self, original: Callable[..., Any]) -> Callable[..., Any]:
        find, before = self._find, self.before

        def observed(*arguments: Any) -> Any:
            result = original(*arguments)
            if not is_compiling():
                (find() or before).gradients_switched()
            return result

        return observed

    def _swap(self, original: Callable[..., None]) -> Callable[..., None]:
        def observed(*arguments: Any, **options: Any) -> None:
            (self._find() or self.before).release_tensors()  # tensors with weak references can't be swapped
            original(*arguments, **options)

        return observed

    def _compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def observed(*arguments: Any, **options: Any) -> Any:
            compiled = original(*arguments, **options)
            self.calls.pass_compiler()  # which was imported by now
            return compiled

        return observed

    def _script(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def observed(*arguments: Any, **options: Any) -> Any:
            if len(arguments) < 3:  # else it is among them
                options[_FRAMES] = options.get(_FRAMES, 0) + 1
            return original(*arguments, **options)

        return observed

    def _scaled_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def observed(scaler: Any, *arguments: Any, **options: Any) -> Any:
            loop = self._find("optimizer")
            if loop is None:
                return original(scaler, *arguments, **options)
            return loop.scaled_step(scaler, original, arguments, options)

        return observed

    def _communicate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def observed(*arguments: Any, **options: Any) -> Any:
            if is_compiling() or (loop := self._find()) is None:
                return original(*arguments, **options)
            return loop.communicated(original, arguments, options)

        return observed

    def _distribute(self, original: Callable[..., None]) -> Callable[..., None]:
        def observed(model: Any, *arguments: Any, **options: Any) -> None:
            original(model, *arguments, **options)
            self.reduced.add(model)

        return observed

    def _make_stage(self, original: Callable[..., None]) -> Callable[..., None]:
        def observed(stage: Any, *arguments: Any, **options: Any) -> None:
            original(stage, *arguments, **options)
            pipeline.note(stage)

        return observed

    def _store(self, phase: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def observed(*arguments: Any, **options: Any) -> Any:
            thread = threading.get_ident()
            is_outermost = thread not in self._storing
            self._storing.add(thread)
            try:
                return (self._find() or self.before).stored(phase, original, arguments, options)
            finally:
                if is_outermost:
                    self._storing.discard(thread)

        return observed

    def _capture(self, begins: bool, original: Callable[..., Any]) -> Callable[..., Any]:
        def observed(graph: Any, *arguments: Any, **options: Any) -> Any:
            if (loop := self._find()) is not None:
                if begins:
                    loop.begin_capture(graph)
                else:
                    loop.end_capture()
            return original(graph, *arguments, **options)

        return observed

    def _replay(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def observed(graph: Any, *arguments: Any, **options: Any) -> Any:
            if (loop := self._find()) is None:
                return original(graph, *arguments, **options)
            return loop.replayed(graph, original, arguments, options)

        return observed

    def _copy(self, is_to_gpu: Callable[..., bool], original: Callable[..., Any]) -> Callable[..., Any]:
        find = self._find

        def observed(tensor: Any, *arguments: Any, **options: Any) -> Any:
            if is_compiling() or (loop := find()) is None or not is_to_gpu(arguments, options):
                return original(tensor, *arguments, **options)
            return loop.copied(tensor, original, arguments, options)

        return observed

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        if is_traced():
            return
        # For a checkpoint, optimizers make their state by a step that changes nothing.
        if self._storing and threading.get_ident() in self._storing:
            return
        loop = self.loop
        if (loop is not None and not loop.run.silent) or (loop := self._find("optimizer")) is not None:
            loop.begin_optimizer(optimizer)

    def _optimizer_ended(self, optimizer: Any, *_: Any) -> None:
        loop = self.loop
        if loop is not None and not is_traced():
            loop.end_optimizer(optimizer)


def goes_to_gpu(arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Return whether the arguments of `Tensor.to` name a GPU."""
    target = arguments[0] if arguments else options.get("device", options.get("other"))
    if isinstance(target, torch.Tensor):
        return bool(target.is_cuda)
    if isinstance(target, torch.device):
        return bool(target.type == "cuda")
    return isinstance(target, int) or (isinstance(target, str) and target.startswith("cuda"))
