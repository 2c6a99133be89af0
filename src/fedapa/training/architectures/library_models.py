"""Models of other libraries by name: ``torchvision:NAME``, ``timm:NAME``, ``hf:NAME``. None of them is a dependency."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from fedapa.errors import InputError

PACKAGES = {"torchvision": "torchvision", "timm": "timm", "hf": "transformers"}  # by prefix


def is_from_library(name: str) -> bool:
    return name.partition(":")[0] in PACKAGES and ":" in name


def maker(name: str) -> Callable[..., nn.Module]:
    """``(shape, classes, pretrained=False) -> nn.Module``, whose last layer has the outputs that are needed."""
    prefix, _, wanted = name.partition(":")
    library = _imported(PACKAGES[prefix], name)
    make = {"torchvision": _torchvision, "timm": _timm, "hf": _hugging_face}[prefix]

    def made(shape: tuple[int, ...], classes: int, pretrained: bool = False, **settings: Any) -> nn.Module:
        if settings.get("trust_remote_code"):
            raise InputError(f"model {name!r}: trust_remote_code is not allowed", "no code of a model's is run")
        try:
            return make(library, wanted, shape, classes, pretrained, **settings)
        except InputError:
            raise
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            hint = f"does {PACKAGES[prefix]} have it, and are its weights there? They are fetched on first use"
            raise InputError(f"model {name!r} cannot be made: {said[0]}", hint) from error

    return made


def head_of(module: nn.Module) -> str:
    """The name of the last linear layer."""
    names: list[str] = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not names:
        raise InputError("the model has no linear layer", "use a classification model, or name its model.head")
    return names[-1]


def _imported(package: str, name: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise InputError(f"model {name!r} needs the package {package} ({error})", f"pip install {package}") from None
    except Exception as error:  # a build for another torch fails in many ways
        hint = f"install the {package} that was built for this torch"
        raise InputError(f"model {name!r}: {package} cannot be imported: {error}", hint) from error


def _torchvision(
    library: Any, name: str, shape: tuple[int, ...], classes: int, pretrained: bool, **settings: Any
) -> nn.Module:
    """Its last linear layer is replaced: published weights have the classes of ImageNet."""
    module: nn.Module = library.models.get_model(name, weights="DEFAULT" if pretrained else None, **settings)
    path = head_of(module)
    last = module.get_submodule(path)
    assert isinstance(last, nn.Linear)
    module.set_submodule(path, nn.Linear(last.in_features, classes))
    return module


def _timm(
    library: Any, name: str, shape: tuple[int, ...], classes: int, pretrained: bool, **settings: Any
) -> nn.Module:
    found: nn.Module = library.create_model(
        name, pretrained=pretrained, num_classes=classes, in_chans=shape[0], **settings
    )
    return found


class Logits(nn.Module):
    """A Hugging Face model that takes one tensor and returns logits; token id 0 is padding."""

    def __init__(self, inner: nn.Module, text: bool) -> None:
        super().__init__()
        self.inner, self.text = inner, text

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(x.long(), attention_mask=(x != 0).long()) if self.text else self.inner(x)
        logits: Tensor = found.logits
        return logits


def _hugging_face(
    library: Any, name: str, shape: tuple[int, ...], classes: int, pretrained: bool, **settings: Any
) -> nn.Module:
    """A sequence classifier for token ids [steps], an image classifier for images. No code of a model's is run."""
    text = len(shape) == 1
    kind = library.AutoModelForSequenceClassification if text else library.AutoModelForImageClassification
    if pretrained:
        inner = kind.from_pretrained(name, num_labels=classes, ignore_mismatched_sizes=True, **settings)
    else:
        inner = kind.from_config(library.AutoConfig.from_pretrained(name, num_labels=classes, **settings))
    return Logits(inner, text)
