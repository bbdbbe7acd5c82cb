"""The real minisign program: makes keys and signatures, and verifies those of pair."""

import resource
import subprocess
from dataclasses import dataclass
from pathlib import Path

PASSWORD = "seven grey stones"
"""The password of the key `encrypted`."""
_LITTLE_MEMORY_BYTES = 60_000_000
"""With little memory, minisign encrypts a key quickly instead of using a gigabyte."""


@dataclass(frozen=True)
class Keys:
    secret: Path
    public: Path

    @property
    def line(self) -> str:
        return self.public.read_text().splitlines()[1]

    @property
    def id(self) -> str:
        return self.public.read_text().splitlines()[0].rpartition(" ")[2]

    def sign(self, path: Path, *options: str, comment: str = "signed by hand") -> Path:
        """Write `<path>.minisig`. The option `-l` makes a signature in the old format."""
        _minisign("-S", *options, "-s", str(self.secret), "-m", str(path), "-t", comment)
        return path.with_name(path.name + ".minisig")

    def verified_comment(self, path: Path) -> str:
        """Return the comment that minisign prints for a valid signature."""
        return _minisign("-V", "-p", str(self.public), "-m", str(path)).stdout

    def accepts(self, path: Path) -> bool:
        return _minisign("-V", "-p", str(self.public), "-m", str(path), check=False).returncode == 0


def make_keys(folder: Path, name: str = "minisign", password: str = "") -> Keys:
    keys = Keys(folder / f"{name}.key", folder / f"{name}.pub")
    options = [] if password else ["-W"]
    _minisign("-G", "-f", *options, "-s", str(keys.secret), "-p", str(keys.public), answers=f"{password}\n" * 2)
    return keys


def _minisign(*arguments: str, answers: str = "", check: bool = True) -> "subprocess.CompletedProcess[str]":
    def use_little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (_LITTLE_MEMORY_BYTES, _LITTLE_MEMORY_BYTES))

    return subprocess.run(
        ["minisign", *arguments],
        input=answers,
        check=check,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=use_little_memory,
    )
