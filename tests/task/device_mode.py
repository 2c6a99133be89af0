"""A device that is not there: tensors that say they are on ``meta``, compute on the CPU, and refuse to meet others.

Inside ``pretend()`` everything that is made on or moved to ``meta`` is such a tensor. An operation on one of them and a
tensor of the CPU raises, as CUDA does; a number without dimensions and an index may be on the CPU, as CUDA allows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

META = torch.device("meta")
INDEXED = ("aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default", "aten._index_put_impl_.default")
MOVES = ("aten._to_copy.default", "aten.copy_.default")


class There(Tensor):
    inside: Tensor

    @staticmethod
    def __new__(cls, inside: Tensor) -> "There":
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inside.shape, inside.stride(), inside.storage_offset(), dtype=inside.dtype, device=META
        )
        made.inside = inside
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Strayed(RuntimeError):
    """A tensor of the CPU met one of the device."""


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    there = any(isinstance(leaf, There) for leaf in leaves)
    strays = [leaf for leaf in leaves if not isinstance(leaf, There) and leaf.ndim > 0]
    if there and strays and str(func) not in (*INDEXED, *MOVES):
        raise Strayed(f"{func}: a tensor of the CPU of shape {tuple(strays[0].shape)} meets one of the device")
    wanted = kwargs.get("device")
    to = there if wanted is None else torch.device(wanted).type == "meta"
    plain = {k: torch.device("cpu") if k == "device" and v is not None else v for k, v in kwargs.items()}
    found = func(*tree_map(_inside, args), **tree_map(_inside, plain))
    if str(func).split(".")[1].endswith("_") and isinstance(args[0], Tensor):
        return args[0]  # in place: the very tensor that was changed
    return tree_map(lambda leaf: There(leaf) if to and isinstance(leaf, Tensor) else leaf, found)


def _inside(leaf: Any) -> Any:
    return leaf.inside if isinstance(leaf, There) else leaf


class Pretending(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


ITEMS = (Tensor.__getitem__, Tensor.__setitem__)
PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)


class Tensors(TorchFunctionMode):
    """``torch.tensor`` makes its tensor beneath all dispatch: it is made on the CPU and moved. The product of a vector
    and a matrix changes the shape of a tensor in place, which a wrapper cannot follow. ``tolist`` reads from every
    device, but not from wrappers. A list as an index becomes a tensor beneath all dispatch, too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in PRODUCTS and (args[0].ndim, args[1].ndim) == (1, 2):
            return func(args[0][None], args[1])[0]
        if func in ITEMS and isinstance(args[0], There):
            return func(
                args[0], tree_map_only(list, torch.tensor, args[1], is_leaf=lambda x: isinstance(x, list)), *args[2:]
            )
        if func is Tensor.tolist and isinstance(args[0], There):
            return args[0].to("cpu").tolist()
        if func is not torch.tensor or torch.device(kwargs.get("device") or "cpu").type != "meta":
            return func(*args, **kwargs)
        return func(*args, **{**kwargs, "device": "cpu"}).to(META)


@contextmanager
def pretend() -> Iterator[None]:
    with Pretending(), Tensors():
        yield
