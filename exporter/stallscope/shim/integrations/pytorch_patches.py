"""Where PyTorch is looked into: a few of its functions, replaced by ones that tell the loop and do the same."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stallscope.shim.integrations.pytorch_loop import Loop, Models

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
_FRAMES = "_frames_up"
"""What `torch.jit.script` is told of how far above it the names lie that the scripted code uses."""


class FindsLoop(Protocol):
    """Finds the loop that is watched."""

    def __call__(self, *, begins: bool = False) -> Loop | None:
        """The loop; None where none is watched. With `begins`, what happens shows that one has begun."""


class Patches:
    """All replaced functions, and the way back.

    Each does what it did, whatever becomes of the telling, and nothing else while no loop is watched. Types, signatures
    and results stay; `torch.compile` sees through them.
    """

    def __init__(self, find: FindsLoop) -> None:
        """Replace them.

        Args:
            find: asked at each call.

        Raises:
            RuntimeError: this PyTorch is too old to be looked into safely.
        """
        if not hasattr(torch.compiler, "is_compiling"):
            raise RuntimeError(
                f"PyTorch {torch.__version__} can't be watched; 2.3 or newer can, or track the loader with"
                " stallscope.track"
            )
        self._find = find
        self.models = Models()
        """Models that were seen."""
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._handles = [
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ended),
        ]
        self._on_gpu = False
        self._replace(DataLoader, "__iter__", self._iter)
        self._replace(_BaseDataLoaderIter, "__next__", self._next)
        self._replace(torch.autograd, "backward", self._backward)
        self._replace(torch.nn.Module, "named_parameters", self._named_parameters)
        self._replace(torch.nn.Module, "compile", self._compile_in_place)
        self._replace(torch, "compile", self._compile)
        self._replace(torch.amp.GradScaler, "step", self._scaled_step)
        if _FRAMES in inspect.signature(torch.jit.script).parameters:
            self._replace(torch.jit, "script", self._script)
        if torch.distributed.is_available():
            for name in _COLLECTIVES:
                self._replace(torch.distributed.distributed_c10d, name, self._communicate)
                self._replace(torch.distributed, name, self._communicate)
            self._replace(torch.distributed.Work, "wait", self._communicate)
            self._replace(torch.nn.parallel.DistributedDataParallel, "__init__", self._distribute)

    def on_gpu(self) -> None:
        """Time copies to the GPU, now that there is one."""
        if not self._on_gpu:
            self._on_gpu = True
            self._replace(torch.Tensor, "to", self._move)
            self._replace(torch.Tensor, "cuda", self._copy)

    def undo(self) -> None:
        """Put the originals back, but for what somebody else has replaced since."""
        for handle in self._handles:
            handle.remove()
        for owner, name, told, original in reversed(self._replaced):
            if owner.__dict__.get(name) is told:
                if original is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)
        self._replaced.clear()

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
        original = getattr(owner, name, None)
        if original is None:  # another version of PyTorch
            return None
        told = make(original)
        if not hasattr(told, "__wrapped__"):
            functools.update_wrapper(told, original)
        self._replaced.append((owner, name, told, owner.__dict__.get(name)))
        setattr(owner, name, told)
        return told

    def _iter(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        find = self._find

        def told(loader: Any) -> Any:
            loop = find(begins=True)
            return original(loader) if loop is None else loop.begin_pass(loader, original)

        return told

    def _next(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        find = self._find

        def told(iterator: Any) -> Any:
            loop = find(begins=True)
            return original(iterator) if loop is None else loop.next_batch(iterator, original)

        return told

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        find = self._find

        def told(*arguments: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling() or (loop := find(begins=True)) is None:
                return original(*arguments, **options)
            return loop.backward(original, arguments, options)

        return told

    def _named_parameters(self, original: Callable[..., Any]) -> Callable[..., Any]:
        asked = self.models.asked

        def told(model: Any, *arguments: Any, **options: Any) -> Any:
            if not torch.compiler.is_compiling():
                asked.add(model)
            return original(model, *arguments, **options)

        return told

    def _compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        find, asked = self._find, self.models.asked

        def told(*arguments: Any, **options: Any) -> Any:
            compiled = original(*arguments, **options)
            if arguments and isinstance(arguments[0], torch.nn.Module):
                if arguments[0] in asked:
                    asked.add(compiled)
                if (loop := find()) is not None:
                    loop.compiled(compiled, arguments[0])
            return compiled

        return told

    def _compile_in_place(self, original: Callable[..., Any]) -> Callable[..., Any]:
        find = self._find

        def told(model: Any, *arguments: Any, **options: Any) -> Any:
            original(model, *arguments, **options)
            if (loop := find()) is not None:
                loop.compiled(model, model)

        return told

    def _script(self, original: Callable[..., Any]) -> Callable[..., Any]:
        find = self._find

        def told(scripted: Any, *arguments: Any, **options: Any) -> Any:
            if len(arguments) < 2:  # else it is among them
                options[_FRAMES] = options.get(_FRAMES, 0) + 1
            loop = find() if isinstance(scripted, torch.nn.Module) else None
            if loop is None:
                return original(scripted, *arguments, **options)
            with loop.unhooked():  # it would compile the hooks as well
                return original(scripted, *arguments, **options)

        return told

    def _scaled_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        find = self._find

        def told(scaler: Any, *arguments: Any, **options: Any) -> Any:
            loop = find(begins=True)
            if loop is None:
                return original(scaler, *arguments, **options)
            return loop.scaled_step(scaler, original, arguments, options)

        return told

    def _communicate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        find = self._find

        def told(*arguments: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling() or (loop := find()) is None:
                return original(*arguments, **options)
            return loop.communicated(original, arguments, options)

        return told

    def _distribute(self, original: Callable[..., None]) -> Callable[..., None]:
        reduced = self.models.reduced

        def told(model: Any, *arguments: Any, **options: Any) -> None:
            original(model, *arguments, **options)
            reduced.add(model)

        return told

    def _move(self, original: Callable[..., Any]) -> Callable[..., Any]:
        find = self._find

        def told(tensor: Any, *arguments: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling() or (loop := find()) is None or not goes_to_gpu(arguments, options):
                return original(tensor, *arguments, **options)
            return loop.copied(tensor, original, arguments, options)

        return told

    def _copy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        find = self._find

        def told(tensor: Any, *arguments: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling() or (loop := find()) is None:
                return original(tensor, *arguments, **options)
            return loop.copied(tensor, original, arguments, options)

        return told

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        if not torch.compiler.is_compiling() and (loop := self._find(begins=True)) is not None:
            loop.begin_optimizer(optimizer)

    def _optimizer_ended(self, optimizer: Any, *_: Any) -> None:
        if not torch.compiler.is_compiling() and (loop := self._find()) is not None:
            loop.end_optimizer(optimizer)


def goes_to_gpu(arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether the arguments of `Tensor.to` name a GPU."""
    target = arguments[0] if arguments else options.get("device", options.get("other"))
    if isinstance(target, torch.Tensor):
        return bool(target.is_cuda)
    if isinstance(target, torch.device):
        return bool(target.type == "cuda")
    return isinstance(target, int) or (isinstance(target, str) and target.startswith("cuda"))
