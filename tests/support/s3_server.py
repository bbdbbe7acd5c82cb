"""A real S3 server on loopback: SeaweedFS, as a process of its own with its files in a folder that goes with it."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.ports import free_ports

ACCESS_KEY = "test-access"
SECRET_KEY = "test-secret-that-no-message-may-show"
BUCKET = "blobs"
_READY_WITHIN_SECONDS = 60
_ATTEMPTS = 3
_PROGRAM = Path(sys.executable).with_name("weed")


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    bucket: str = BUCKET
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY


class _NotReadyError(Exception):
    """It ended, or never answered."""


@contextlib.contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    for attempt in range(_ATTEMPTS):
        data = folder / f"weed-{attempt}"
        data.mkdir()
        port, *others = free_ports(8)
        process = _start(data, port, others)
        try:
            try:
                _make_bucket_when_ready(process, data, port)
            except _NotReadyError:
                # Between choosing a port and using it, somebody else may have taken it.
                if attempt + 1 < _ATTEMPTS:
                    continue
                raise
            yield S3Server(endpoint=f"http://127.0.0.1:{port}")
            return
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(data, ignore_errors=True)


def _start(data: Path, port: int, others: list[int]) -> "subprocess.Popen[bytes]":
    identity = {
        "name": "test",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = data / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    names = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"]
    with (data / "log").open("wb") as log:
        return subprocess.Popen(
            [
                *(_PROGRAM, "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                *(f"-{name}={number}" for name, number in zip(names, others, strict=False)),
                *("-filer", "-s3", f"-s3.port={port}", f"-s3.port.grpc={others[6]}", f"-s3.config={config}"),
                *("-master.volumeSizeLimitMB=64", "-master.telemetry=false"),
            ],
            env={**os.environ, "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=data,
        )


def _make_bucket_when_ready(process: "subprocess.Popen[bytes]", data: Path, port: int) -> None:
    import obstore.store  # noqa: F401

    raise NotImplementedError
