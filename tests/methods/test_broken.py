"""The suite tests itself: for every law a copy of the example method that breaks it, and is caught."""

from pathlib import Path

import pytest

from fedapa.errors import InputError
from fedapa.verify import LAWS, load_method
from fedapa.verify.case import Broken, Case

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"
ABSORB = 'return {"omega": server["omega"] + self.step * (mean - server["omega"])}'
SEND = 'return {"omega": server["omega"]}'
RECEIVE = 'return task.parts(down["omega"])'
UPLOAD = '"omega": task.join(client["theta"], client["phi"])'

# law: (what is replaced, by what, and what the verdict must say)
SABOTAGE = {
    # who trains in a worker thread trains something else
    "engines-agree": (
        UPLOAD,
        '"omega": task.join(client["theta"], client["phi"]) * (1 + 0.1 * __import__("threading").active_count())',
        "one worker and three workers differ in",
    ),
    # a client remembers something outside its state
    "resume-is-exact": (
        "client = local.sgd(fa.proximal, client, given=pull, replaced=True)",
        "client = local.sgd(fa.proximal, client, given=pull, replaced=True)\n"
        "        seen = HalfWay.__dict__['__annotations__'].setdefault('seen', [])\n"
        "        seen.append(1)\n"
        "        client = {k: v + 1e-3 * len(seen) for k, v in client.items()}",
        "an uninterrupted run and one resumed after round",
    ),
    "functions-are-pure": (
        ABSORB,
        'server["omega"].add_(self.step * (mean - server["omega"]))\n        return server',
        "absorb changes one of its arguments",
    ),
    "order-is-irrelevant": (
        "mean = weighted_mean(",
        'mean = ups[-1]["omega"] + 0 * weighted_mean(',
        "for two orders of the same uploads",
    ),
    # the pull has no gradient, as in a public FedAMP
    "trainables-move": ('"rho": torch.tensor(self.rho)', '"rho": torch.tensor(0 * self.rho)', "train the same models"),
    # the sign of a printed update rule
    "server-step-descends": (
        "+ self.step * (mean",
        "- self.step * (mean",
        "a small step takes the surrogate from",
    ),
    # the client keeps its own model, as in a public pFedLA
    "sent-arrives": (RECEIVE, "return client", "omega of what was sent moved, zeroed or negated moves the client by 0"),
    "limits-are-met": (
        'torch.cat([up["n"] for up in ups])',
        'torch.cat([up["n"] for up in ups]) ** 2',
        "its limit should equal fedavg",
    ),
    "bytes-are-true": (
        SEND,
        'return {"omega": server["omega"], "pad": torch.zeros(1 + int(1e6 * server["omega"].abs().sum()) % 7)}',
        "bytes down and up",
    ),
    # numbers disguised as integers, where NaN cannot be seen
    "bad-uploads-refused": (
        UPLOAD,
        '"omega": task.join(client["theta"], client["phi"]).mul(1e6).long()',
        "",
    ),
}


def broken_copy(law: str, folder: Path) -> Path:
    old, new, _ = SABOTAGE[law]
    text = EXAMPLE.read_text(encoding="utf-8")
    assert text.count(old) >= 1, f"the example no longer holds {old!r}"
    if law == "bad-uploads-refused":
        text = text.replace('up["omega"] for up in ups', 'up["omega"] / 1e6 for up in ups')
    path = folder / f"{law.replace('-', '_')}.py"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_every_law_has_its_sabotage() -> None:
    assert SABOTAGE.keys() == LAWS.keys()


@pytest.mark.parametrize("law", SABOTAGE)
def test_broken_copy_is_caught(law: str, tmp_path: Path) -> None:
    (method,) = load_method(broken_copy(law, tmp_path)).values()
    with pytest.raises((Broken, RuntimeError)) as verdict:
        LAWS[law](Case(method))
    said = str(verdict.value)
    assert SABOTAGE[law][2] in said
    assert any(character.isdigit() for character in said), f"no number in: {said}"


def test_a_client_that_starts_beside_what_was_sent_is_caught(tmp_path: Path) -> None:
    path = tmp_path / "beside.py"
    path.write_text(EXAMPLE.read_text(encoding="utf-8").replace(RECEIVE, 'return task.parts(0.99 * down["omega"])'))
    (method,) = load_method(path).values()
    with pytest.raises(Broken, match="no training of the client starts from omega as it was sent"):
        LAWS["sent-arrives"](Case(method))


def test_a_method_that_shows_other_than_it_predicts_from_is_caught(tmp_path: Path) -> None:
    """Its clients would keep the scores of a model that changed."""
    path, shown = tmp_path / "hides.py", 'return {**client, "theta": 0 * client["theta"]}'
    text = EXAMPLE.read_text(encoding="utf-8")
    path.write_text(text.replace("    def init(", f"    def shown(self, client):\n        {shown}\n\n    def init(", 1))
    (method,) = load_method(path).values()
    with pytest.raises(Broken, match="predict answers otherwise from what `shown` leaves"):
        LAWS["functions-are-pure"](Case(method))


@pytest.mark.parametrize("law", LAWS)
def test_the_example_itself_passes(law: str) -> None:
    (method,) = load_method(EXAMPLE).values()
    LAWS[law](Case(method))


@pytest.mark.parametrize("member", ["regularisers = ('rho',)", "def limits(self): return {}"])
def test_a_claim_beside_claims_is_refused(member: str, tmp_path: Path) -> None:
    """Nothing reads it there: its law would hold without having been checked."""
    path = tmp_path / "beside_claims.py"
    text = EXAMPLE.read_text(encoding="utf-8")
    path.write_text(text.replace("    def init(", f"    {member}\n\n    def init(", 1), encoding="utf-8")
    with pytest.raises(InputError, match=r"HalfWay\.(regularisers|limits) is read by no law"):
        load_method(path)


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ("{}", r"n adds up to the samples of every client \[40.0, 23.0, 31.0\] and has no role"),
        ('{"n": fa.Role.SAMPLES, "m": fa.Role.SUMS}', "roles speak of m, which none of 2 tensors is called"),
    ],
)
def test_a_forgotten_and_a_misspelt_role_are_caught(roles: str, said: str, tmp_path: Path) -> None:
    """Without its role a forged number of samples would pass."""
    path, text = tmp_path / "roles.py", EXAMPLE.read_text(encoding="utf-8")
    path.write_text(text.replace('{"n": fa.Role.SAMPLES}', roles), encoding="utf-8")
    (method,) = load_method(path).values()
    with pytest.raises(Broken, match=said):
        LAWS["bad-uploads-refused"](Case(method))
