"""A real S3 server on loopback: SeaweedFS as a separate process, with its files in a temporary folder."""

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pair import errors
from pair.blobs.s3 import ObjectStore, ObjectStoreOptions
from support.ports import free_ports

ACCESS_KEY = "test-access"
SECRET_KEY = "test-secret-that-no-message-may-show"
_READY_WITHIN_SECONDS = 60
_ATTEMPTS = 3
_PROGRAM = Path(sys.executable).with_name("weed")
_PORT_NAMES = (
    *("s3.port", "s3.port.grpc", "master.port", "master.port.grpc"),
    *("volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"),
)


@dataclass(frozen=True)
class S3Server:
    options: ObjectStoreOptions
    process: "subprocess.Popen[bytes]"

    def store(self, prefix: str) -> ObjectStore:
        return ObjectStore(f"s3://blobs/{prefix}", self.options)

    def variables(self, prefix: str = "", endpoint_url: str = "") -> dict[str, str]:
        """Return the environment variables to use the bucket. `prefix`: the prefix of the store."""
        store = {"PAIR__ENGINE__STORE": f"s3://blobs/{prefix}"} if prefix else {}
        return store | {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "PAIR__ENGINE__S3_ENDPOINT": endpoint_url or self.options.endpoint_url,
            "PAIR__ENGINE__S3_REGION": self.options.region,
        }


class _NotReadyError(Exception):
    """The server ended, or never answered."""


@contextlib.contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    for attempt in range(_ATTEMPTS):
        data = folder / f"weed-{attempt}"
        data.mkdir()
        ports = free_ports(len(_PORT_NAMES))
        process = _start(data, ports)
        server = S3Server(
            ObjectStoreOptions(
                endpoint_url=f"http://127.0.0.1:{ports[0]}",
                region="us-east-1",
                access_key_id=ACCESS_KEY,
                secret_access_key=SECRET_KEY,
            ),
            process,
        )
        try:
            _wait_until_ready(process, server)
            yield server
        except _NotReadyError:
            # Another process may have taken the port meanwhile.
            if attempt + 1 == _ATTEMPTS:
                raise
        else:
            return
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(data, ignore_errors=True)
            for name, port in zip(_PORT_NAMES, ports, strict=True):
                Path(f"/tmp/seaweedfs-{name.replace('.port', '').replace('.', '-')}-{port}.sock").unlink(
                    missing_ok=True
                )


def _start(data: Path, ports: list[int]) -> "subprocess.Popen[bytes]":
    identity = {
        "name": "test",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = data / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    command = [
        *(str(_PROGRAM), "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"),
        *(f"-{name}={port}" for name, port in zip(_PORT_NAMES, ports, strict=True)),
        *(f"-s3.config={config}", "-master.volumeSizeLimitMB=64", "-master.telemetry=false"),
        # Do not start two more servers, whose ports do not depend on these.
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),
    ]
    with (data / "log").open("wb") as log:
        return subprocess.Popen(
            command,
            env={**os.environ, "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1", "TMPDIR": str(data)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=data,
        )


def _wait_until_ready(process: "subprocess.Popen[bytes]", server: S3Server) -> None:
    """Write until it succeeds.

    The first write makes the bucket, and is refused until all parts of the server are connected.
    """
    store = ObjectStore("s3://blobs", dataclasses.replace(server.options, retries=0))
    ends_at = time.monotonic() + _READY_WITHIN_SECONDS
    while time.monotonic() < ends_at and process.poll() is None:
        try:
            store.put("ready", b"not empty: only content needs a place on disk")
        except errors.StorageError:
            time.sleep(0.05)
        else:
            return
    raise _NotReadyError
