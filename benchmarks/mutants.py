"""How many small changes of the rules do the tests detect? Mutation testing with mutmut.

    python benchmarks/mutants.py [--only PART] [--sample 150] [--seed 1] [--processes 2]

`[tool.mutmut]` in pyproject.toml names the modules, and the tests that check them. `--sample` limits the mutants of a
module, drawn with the seed. Survivors are printed as diffs; docs/decisions/0023-surviving-mutants.md explains the known
ones. The exit status is 1 if less than 85 % of a module's mutants are detected. All files are in `mutants/`.
"""

import argparse
import json
import random
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import get_mutant_name

LEAST_SHARE = 0.85
NOTICED = frozenset({"killed", "timeout"})
# mutmut needs a private name that pytest no longer has.
_PROGRAM = """
from _pytest.nodes import Node
from mutmut.__main__ import cli
Node._nodeid = property(lambda node: node.nodeid)
cli()
"""
MUTMUT = [sys.executable, "-c", _PROGRAM]


@dataclass(frozen=True, slots=True)
class Judged:
    module: Path
    made: int
    status: dict[str, str]
    """The status of each tried mutant."""

    @property
    def survivors(self) -> list[str]:
        return [name for name, status in self.status.items() if status not in NOTICED]

    @property
    def share(self) -> float:
        return 1 - len(self.survivors) / len(self.status)


def main() -> int:
    arguments = arguments_given()
    modules = [Path(each) for each in modules_to_mutate() if arguments.only in each]
    mutants = {module: names_of(module) for module in modules}
    drawn = {
        module: sorted(random.Random(arguments.seed).sample(names, min(arguments.sample, len(names))))
        for module, names in mutants.items()
    }
    wanted = [name for names in drawn.values() for name in names]
    subprocess.run([*MUTMUT, "run", "--max-children", str(arguments.processes), *wanted], check=True)
    judged = [Judged(module, len(mutants[module]), status_of(module, drawn[module])) for module in modules]
    show(judged)
    return 0 if all(each.share >= LEAST_SHARE for each in judged) else 1


def arguments_given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="modules whose path has this in it")
    parser.add_argument("--sample", type=int, default=150, help="most mutants of a module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def modules_to_mutate() -> list[str]:
    modules: list[str] = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["mutmut"]["only_mutate"]
    return modules


def names_of(module: Path) -> list[str]:
    return [
        get_mutant_name(module, name) for name in mutate_file_contents(str(module), module.read_text()).mutant_names
    ]


def status_of(module: Path, names: list[str]) -> dict[str, str]:
    codes = json.loads((Path("mutants") / f"{module}.meta").read_text())["exit_code_by_key"]
    return {name: status_by_exit_code[codes[name]] for name in names}


def show(judged: list[Judged]) -> None:
    for name in (name for each in judged for name in each.survivors):
        subprocess.run([*MUTMUT, "show", name], check=True)
    print(f"\n{'module':<36}{'mutants':>8}{'tried':>7}{'killed':>8}{'timeout':>9}{'survived':>10}{'share':>8}")
    for each in judged:
        counts = [sum(status == wanted for status in each.status.values()) for wanted in ("killed", "timeout")]
        print(
            f"{each.module.relative_to('src/pair')!s:<36}{each.made:>8}{len(each.status):>7}{counts[0]:>8}{counts[1]:>9}"
            f"{len(each.survivors):>10}{each.share:>8.1%}"
        )


if __name__ == "__main__":
    sys.exit(main())
