"""Every method by name, with what a listing or a citation needs to know; importing this costs no torch."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fedapa.errors import InputError, did_you_mean
from fedapa.methods import recipes
from fedapa.plugins import installed, is_own, load_object

if TYPE_CHECKING:
    from fedapa.methods.method import Method


class Entry(NamedTuple):
    """One method: where its class lives, what its paper is, what travels and what stays."""

    title: str
    where: str  # module:Class
    year: int
    stays: str
    down: str
    up: str
    paper: str  # key into papers.PAPERS; empty for plain local training
    kib: float  # per client and round: LeNet-5, CIFAR-10, 20 clients (a test counts it again)
    preset: Mapping[str, Any] = {}  # hyper-parameters that make this name a variant of its class


METHODS: dict[str, Entry] = {
    "local": Entry("Local", "local_only:LocalOnly", 2016, "everything", "–", "–", "", 0),
    "fedavg": Entry("FedAvg", "fedavg:FedAvg", 2017, "–", "ω", "ω, n", "mcmahan2017", 484.4),
    "fedavg-ft": Entry(
        "FedAvg-FT", "fedavg:FedAvg", 2017, "fine-tuned model", "ω", "ω, n", "mcmahan2017", 484.4, {"fine_tune": True}
    ),
    "fedprox": Entry("FedProx", "fedprox:FedProx", 2020, "–", "ω", "ω, n", "li2020", 484.4),
    "fedper": Entry("FedPer", "fedper:FedPer", 2019, "head", "θ", "θ, n", "arivazhagan2019", 477.8),
    "fedrep": Entry("FedRep", "fedrep:FedRep", 2021, "head", "θ", "θ, n", "collins2021", 477.8),
    "ditto": Entry("Ditto", "ditto:Ditto", 2021, "personal model", "ω", "ω, n", "li2021ditto", 484.4),
    "fedphp": Entry("FedPHP", "fedphp:FedPHP", 2021, "inherited private model", "ω", "ω, n", "li2021fedphp", 484.4),
    "fedamp": Entry("FedAMP", "fedamp:FedAMP", 2021, "–", "own mixture of ω", "ω", "huang2021", 484.4),
    "fedamp-heur": Entry(
        "HeurFedAMP",
        "fedamp:FedAMP",
        2021,
        "–",
        "own mixture of ω",
        "ω",
        "huang2021",
        484.4,
        {"attention": "heuristic"},
    ),
    "apple": Entry(
        "APPLE", "apple:APPLE", 2022, "relationship vector", "all other cores", "own core", "luo2022", 4844.2
    ),
    "fedala": Entry("FedALA", "fedala:FedALA", 2023, "mixing weights", "ω", "ω, n", "zhang2023fedala", 484.4),
    "pfedhn": Entry("pFedHN", "pfedhn:PFedHN", 2021, "–", "generated ω", "ω", "shamsian2021", 484.4),
    "pfedhn-pc": Entry(
        "pFedHN-PC", "pfedhn:PFedHN", 2021, "head", "generated θ", "θ", "shamsian2021", 477.8, {"private_head": True}
    ),
    "pfedla": Entry("pFedLA", "pfedla:PFedLA", 2022, "–", "layer-wise mixture of ω", "ω", "ma2022", 484.4),
    "pfedla-heur": Entry(
        "HeurpFedLA", "pfedla:PFedLA", 2022, "–", "layer-wise mixture of ω", "ω", "ma2022", 484.4, {"private_layers": 1}
    ),
    "fedpac": Entry(
        "FedPAC", "fedpac:FedPAC", 2023, "–", "θ, own φ, prototypes", "ω, prototypes, V, h", "xu2023", 494.3
    ),
    "dbe": Entry(
        "DBE", "dbe:DBE", 2023, "bias of the features", "ω (+ mean)", "ω, n (+ mean once)", "zhang2023dbe", 484.4
    ),
    "fedproto": Entry("FedProto", "fedproto:FedProto", 2022, "whole model", "prototypes", "class sums", "tan2022", 6.6),
    "fedgh": Entry("FedGH", "fedgh:FedGH", 2023, "extractor", "head", "class means", "yi2023", 6.6),
    "pfedme": Entry("pFedMe", "pfedme:PFedMe", 2020, "personal model", "ω", "ω, n", "dinh2020", 484.4),
    "perfedavg": Entry("Per-FedAvg", "perfedavg:PerFedAvg", 2020, "adapted model", "ω", "ω, n", "fallah2020", 484.4),
    "apfl": Entry("APFL", "apfl:APFL", 2020, "private model, its share", "ω", "ω, n", "deng2020", 484.4),
    "scaffold": Entry("SCAFFOLD", "scaffold:Scaffold", 2020, "control variate", "ω, c", "ω", "karimireddy2020", 726.6),
    "fedrod": Entry("FedRoD", "fedrod:FedRoD", 2022, "second head", "ω", "ω, n", "chen2022", 484.4),
    "lg-fedavg": Entry("LG-FedAvg", "lg_fedavg:LGFedAvg", 2020, "extractor", "φ", "φ, n", "liang2020", 6.6),
    "knnper": Entry("kNN-Per", "knnper:KNNPer", 2022, "stored features", "ω", "ω, n", "marfoq2022", 484.4),
    "fedbabu": Entry("FedBABU", "fedbabu:FedBABU", 2022, "tuned model", "θ", "θ, n", "oh2022", 477.8),
    "fedbn": Entry("FedBN", "fedbn:FedBN", 2021, "BatchNorm", "ω", "ω, n", "li2021fedbn", 484.4),
    "moon": Entry("MOON", "moon:MOON", 2021, "last model", "ω", "ω, n", "li2021moon", 484.4),
    "fedapa": Entry("FedAPA", "fedapa:FedAPA", 2025, "head", "own mixture of θ", "θ", "sun2025", 477.8),
    "fedapa-reference": Entry(
        "FedAPA (released code)",
        "fedapa:FedAPA",
        2025,
        "head",
        "own mixture of θ",
        "θ",
        "sun2025",
        477.8,
        {"mu": 1.0, "weight_momentum": 0.9, "buffer": "shared", "project_at": "send", "order": "sequential"},
    ),
    "fedapa-exact": Entry(
        "FedAPA-exact", "fedapa_exact:FedAPAExact", 2026, "head", "own mixture of θ", "θ", "sun2025", 477.8
    ),
    "fedapa-scored": Entry(
        "FedAPA-scored", "fedapa_scored:FedAPAScored", 2026, "head", "two mixtures of θ", "θ, scores", "sun2025", 716.7
    ),
    "pfedgraph": Entry("pFedGraph", "pfedgraph:PFedGraph", 2023, "–", "own mixture of ω", "ω, n", "ye2023", 484.4),
    "cfl": Entry("CFL", "cfl:CFL", 2021, "–", "ω of the cluster", "ω", "sattler2021", 484.4),
    "ifca": Entry("IFCA", "ifca:IFCA", 2020, "–", "ω of every cluster", "ω, choice, n", "ghosh2020", 726.6),
    "fedfomo": Entry(
        "FedFomo", "fedfomo:FedFomo", 2021, "last start", "ω of five others", "ω, scores", "zhang2021fomo", 1453.3
    ),
    "fedem": Entry("FedEM", "fedem:FedEM", 2021, "own mixture π", "three ω", "three ω, n", "marfoq2021", 1453.3),
}


# METHOD+WRAPPER names a method inside a wrapper, the first wrapper innermost: what each does is in its module.
class Wrapper(NamedTuple):
    where: str  # module:Class
    what: str


WRAPPERS = {
    "quantised": Wrapper("wrappers:Quantised", "uploads rounded to a few bits"),
    "top": Wrapper("wrappers:Top", "only the largest changes are uploaded, with error feedback"),
    "noised": Wrapper("wrappers:Noised", "uploads clipped and noised, with an (epsilon, delta) account"),
    "ema": Wrapper("wrappers:Ema", "the model in use is the running mean of the client's own models"),
    "bounded": Wrapper("robust:Bounded", "updates shortened to the median length of the round"),
    "krum": Wrapper("robust:Krum", "the uploads that are farthest from the others are left out of a round"),
    "trimmed": Wrapper("robust:Trimmed", "what is common is the coordinate-wise trimmed mean of uploads"),
    "median": Wrapper("robust:Median", "what is common is the coordinate-wise median of uploads"),
}


AS_CODED = "what its code says"  # of the user's own methods
RESERVED = ("base", "code", "training")  # keys of [method.NAME] that are no hyper-parameters


class Name(NamedTuple):
    """METHOD[@RECIPE][+WRAPPER...], taken apart."""

    method: str
    recipe: str
    wrappers: tuple[str, ...]


def taken_apart(name: str) -> Name:
    place, colon, rest = name.rpartition(":")  # the path of a file may hold any sign
    base, *wrappers = rest.split("+")
    method, _, named = base.partition("@")
    return Name(f"{place}{colon}{method}", named or recipes.COMMON, tuple(wrappers))


def own_code(name: str) -> str | None:
    """Where a method that is not shipped comes from, file.py:Class or package.module:Class; None for all others."""
    method = taken_apart(name).method
    if is_own(method) or method in METHODS:
        return method if is_own(method) else None
    return installed("methods").get(method)


def is_known(name: str) -> bool:
    """Is this the name of a method, with or without a recipe and wrappers?"""
    try:
        entry(name)
    except InputError:
        return False
    return True


def entry(name: str) -> Entry:
    """What is known about a method of this name."""
    method, named, wrappers = taken_apart(name)
    if unknown := [wrapper for wrapper in wrappers if wrapper not in WRAPPERS]:
        raise InputError(f"unknown wrapper {unknown[0]!r}", f"choose one of {', '.join(WRAPPERS)}")
    if named not in (recipes.COMMON, recipes.AUTHORS):
        raise InputError(f"unknown recipe {named!r}", f"choose one of {recipes.COMMON}, {recipes.AUTHORS}")
    if (own := own_code(name)) is not None:
        if named != recipes.COMMON:
            raise InputError(f"{method} has no recipe {named!r}", "shipped methods have: `fedapa ls recipes`")
        return Entry(own.rpartition(":")[2], own, 0, AS_CODED, AS_CODED, AS_CODED, "", 0.0)
    if method not in METHODS:
        hint = did_you_mean(method, METHODS, f"choose one of {', '.join(METHODS)}")
        raise InputError(f"unknown method {method!r}", hint)
    return METHODS[method]


def recipe_training(name: str) -> Mapping[str, Any]:
    """The training settings that the name's recipe puts in place of the config's."""
    method, named, _ = taken_apart(name)
    return recipes.recipe(method, named).training


def method_class(name: str) -> type[Method]:
    """The class behind a name."""
    if (own := own_code(name)) is not None:
        entry(name)  # its wrappers are known
        return _own_class(own)
    module, _, attribute = entry(name).where.partition(":")
    found: type[Method] = getattr(importlib.import_module(f"fedapa.methods.{module}"), attribute)
    return found


def _own_class(where: str) -> type[Method]:
    from fedapa.methods.method import Method

    found = load_object(where, "method")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f"method {where!r} is not a subclass of Method", "derive it from fedapa.Method")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise InputError(f"method {where!r} lacks {missing}", "a method is six functions: docs/add-a-method.md")
    if taken := [key for key in RESERVED if key in found.__dataclass_fields__]:
        raise InputError(f"method {where!r} has a hyper-parameter {taken[0]!r}", "that key of a config means another")
    return found


def make(name: str, **settings: Any) -> Method:
    """A method by name with hyper-parameters; unknown ones are refused with the closest legal name."""
    cls, (name, named, wrappers) = method_class(name), taken_apart(name)
    legal = list(cls.__dataclass_fields__)
    around = [_wrapper_class(wrapper) for wrapper in wrappers]
    outer = {key: value for key, value in settings.items() if any(key in _own(w) for w in around) and key not in legal}
    settings = {key: value for key, value in settings.items() if key not in outer}
    for key in settings:
        if key in cls.renamed:
            raise InputError(f"{name} has no hyper-parameter {key!r} any more", f"renamed to {cls.renamed[key]}")
        if key not in legal:
            hint = did_you_mean(key, legal, f"it has: {', '.join(legal) or 'none'}")
            raise InputError(f"{name} has no hyper-parameter {key!r}", hint)
    try:
        method: Method = cls(**{**entry(name).preset, **recipes.recipe(name, named).settings, **settings})
    except TypeError as error:
        raise InputError(f"{name} cannot be made: {error}", "give every hyper-parameter a default") from error
    for wrapper in around:
        method = wrapper(method, **{key: value for key, value in outer.items() if key in _own(wrapper)})
    return method


def wrapper_name(method: Method) -> str | None:
    """The WRAPPER of METHOD+WRAPPER that this is; None where it has no name."""
    return next((name for name in WRAPPERS if _wrapper_class(name) is type(method)), None)


def _wrapper_class(name: str) -> Any:
    module, _, attribute = WRAPPERS[name].where.partition(":")
    return getattr(importlib.import_module(f"fedapa.methods.{module}"), attribute)


def _own(wrapper: Any) -> list[str]:
    return [name for name in wrapper.__dataclass_fields__ if name != "inner"]
