"""Are our methods those of the released FedAPA code and of PFLlib? Both are driven in lockstep with ours, in float64.

python tests/parity/parity_table.py --authors DIR --pfllib DIR [--page docs/parity.md] [--only FedAvg,Ditto]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import lockstep
import pfllib
import released
import torch
from lockstep import BATCH
from verdict import EQUAL, Row

AUTHORS, PFLLIB = "https://github.com/Yuxia-Sun/FedAPA", "https://github.com/TsingZ0/PFLlib"
INTRO = """# Parity with the released FedAPA code and with PFLlib

Whether our methods compute what the authors' own code and PFLlib compute, step by step from the same start, and where
and why they differ.

**{verdict}**

Made by `make parity AUTHORS=dir PFLLIB=dir`, which drives both codes in lockstep with ours: float64, the same start,
the same batches, everything else by their own lines. What is left is the rules. Distances are relative, |theirs - ours|
/ |ours|, the largest over clients (and, for the released code, over rounds). Below {limit:g} counts as equal; two codes
that add the same numbers in another order are some 1e-16 apart. Differences that are known have to be there, and any
other one makes the command fail.

- Released FedAPA code: [{authors}]({authors}), commit {authors_commit}.
- PFLlib: [{pfllib}]({pfllib}), commit {pfllib_commit}.
- fedapa: commit {own_commit}; Python {python}, torch {torch}.
- Data: scikit-learn's handwritten digits as colour images of 32 x 32, {clients} clients with {samples} train samples,
  batches of {batch}, LeNet-5. All clients take part in every round with PFLlib, at least 60 % with the released code.
- Settings: both columns name what is not the default. Where the defaults are of different kinds, ours follow PFLlib:
  FedALA learns its mixing from all samples in order; FedProto predicts by global prototypes, which PFLlib does not have
  in its first round; FedPHP scores the local model, and PFLlib's mu is scaled, since it counts rounds from 0; PFLlib
  plays DBE's initialisation before its first round, ours is a round.
- Rates and lengths are chosen so that rounding stays small: PFLlib 4 rounds at 0.05, with momentum at 0.005; the
  released code 5 rounds at its own 0.01. Training amplifies rounding: at 0.05 with momentum, FedAvg's client models
  were 1.2e-12 apart (not "equal" by the limit above), and ten rounds of the released code left theta 2.7e-13 apart.
- FedBABU is compared without fine-tuning, which PFLlib does once at the end. Per-FedAvg and APFL score other models
  than PFLlib's, so that accuracies are not compared. PFLlib's Per-FedAvg trains twice a round, hence half the epochs.
  FedRoD gets whole batches, because PFLlib counts classes without the last one. pFedMe's second
  row takes the weight decay out of PFLlib's inner optimizer.
- Momentum: our clients keep it from round to round (`keep_momentum`). PFLlib trains without; for the rows with
  momentum, `torch.optim.SGD` gets it as a default, and PFLlib's optimizers live as long as its clients.
"""


def main(words: Sequence[str] | None = None) -> int:
    asked = parse(words)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    warnings.simplefilter("ignore")  # theirs
    rows = list[Row]()

    def write(row: Row) -> None:
        rows.append(row)
        print(line(row), file=sys.__stdout__, flush=True)

    print(HEAD)
    with lockstep.float64():
        data = lockstep.make_data()
        if asked.authors and not asked.only:
            write(released.compare(asked.authors, data))
        if asked.pfllib:
            pfllib.compare(asked.pfllib, data, asked.only, write)
    if asked.page:
        sizes = f"{min(data.sizes):d} to {max(data.sizes):d}"
        asked.page.write_text(page(rows, asked.authors, asked.pfllib, sizes), encoding="utf-8")
    return summarise(rows)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--authors", default="", help=f"a checkout of {AUTHORS}")
    parser.add_argument("--pfllib", default="", help=f"a checkout of {PFLLIB}")
    parser.add_argument("--page", type=Path, help="write the table there; needs both checkouts and all methods")
    parser.add_argument("--only", default="", help="these algorithms of PFLlib, separated by commas")
    asked = parser.parse_args(words)
    asked.authors = find(parser, "--authors", asked.authors, ("FedAPA", "."), "src/FedAPA/server_FedAPA.py")
    asked.pfllib = find(parser, "--pfllib", asked.pfllib, ("system", "."), "flcore/servers/serverbase.py")
    asked.only = {name for name in asked.only.split(",") if name}
    if unknown := asked.only - {case.algorithm for case in pfllib.CASES}:
        parser.error(f"PFLlib's {min(unknown)} is not compared\nhint: choose among {names()}")
    if not asked.authors and not asked.pfllib:
        parser.error(f"there is no code to compare with\nhint: git clone {AUTHORS} or {PFLLIB}, then name its folder")
    if asked.page and (asked.only or not (asked.authors and asked.pfllib)):
        parser.error("--page needs both checkouts and all methods\nhint: leave it out to see a part")
    return asked


def names() -> str:
    return ", ".join(dict.fromkeys(case.algorithm for case in pfllib.CASES))


def find(parser: argparse.ArgumentParser, option: str, given: str, inside: Sequence[str], mark: str) -> Path | None:
    """The folder of a checkout that its main.py runs in; None if no checkout is given."""
    if not given:
        return None
    places = [Path(given).expanduser().resolve() / part for part in inside]
    found = next((place for place in places if (place / mark).is_file() and (place / "main.py").is_file()), None)
    if found is None:
        parser.error(f"{option} {given} has no {mark}\nhint: give the folder that git clone made")
    return found


# ------------------------------------------------------------------------------------------------------- the table

HEAD = "| theirs | ours | rounds | clients | momentum | relative distance | accuracies | verdict |\n" + "|---" * 8 + "|"


def line(row: Row) -> str:
    distances = ", ".join(f"{part} {distance:.1e}" for part, distance in row.distances.items()) or "–"
    accuracies = {True: "equal", False: "differ", None: "not compared"}[row.same_accuracies]
    cells = (row.theirs, row.ours, row.rounds, row.clients, f"{row.momentum:g}", distances, accuracies, row.verdict)
    return "| " + " | ".join(map(str, cells)) + " |"


def page(rows: Sequence[Row], authors: Path, pfllib_folder: Path, samples: str) -> str:
    facts = {
        "authors_commit": lockstep.commit_of(authors),
        "pfllib_commit": lockstep.commit_of(pfllib_folder),
        "own_commit": lockstep.commit_of(Path(__file__).parent),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "clients": rows[0].clients,
        "samples": samples,
        "verdict": verdict(rows),
    }
    intro = INTRO.format(limit=EQUAL, authors=AUTHORS, pfllib=PFLLIB, batch=BATCH, **facts)
    folded = '<details markdown="1">\n<summary>Every comparison</summary>\n'
    return "\n".join([intro, folded, HEAD, *map(line, rows), "", "</details>\n"])


def verdict(rows: Sequence[Row]) -> str:
    equal = sum(row.verdict.startswith("equal") for row in rows)
    expected = sum(row.verdict.startswith("differs as expected") for row in rows)
    return f"{len(rows)} comparisons: {equal} equal, {expected} differ as expected, {len(rows) - equal - expected} not."


def summarise(rows: Sequence[Row]) -> int:
    print(verdict(rows))
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
