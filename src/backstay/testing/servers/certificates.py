"""Throw-away certificates of an authority, a server and a client, for TLS tests. The `openssl` program creates them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

#: Subject alternative names of the server's certificate.
NAMES = "IP:127.0.0.1,DNS:localhost"


class Certificates:
    """A private certificate authority and its certificates. A context manager that deletes the files on exit."""

    def __init__(self, *, names: str = NAMES) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="backstay-tls-"))
        self.ca = self.folder / "ca.crt"
        self._openssl("req", "-x509", *self._new_key("ca"), "-out", self.ca, "-days", "2", "-subj", "/CN=authority")
        self.server = self._signed("server", names)
        self.client = self._signed("client", "DNS:client")

    @staticmethod
    def available() -> bool:
        return shutil.which("openssl") is not None

    @property
    def query(self) -> str:
        """The URL options of a client that trusts this authority and presents its own certificate."""
        cert, key = self.client
        return urlencode({"ca": self.ca, "cert": cert, "key": key})

    def options(self, *, clients: bool = False) -> tuple[str, ...]:
        """Return the TLS options for a Redis server's command line. `clients`: also require a certificate from
        clients.
        """
        cert, key = map(str, self.server)
        return (
            *("--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", str(self.ca)),
            *("--tls-auth-clients", "yes" if clients else "no"),
        )

    def _signed(self, name: str, names: str) -> tuple[Path, Path]:
        cert, asked, extra = (self.folder / f"{name}.{end}" for end in ("crt", "csr", "ext"))
        extra.write_text(f"subjectAltName={names}\n")
        self._openssl("req", *self._new_key(name), "-out", asked, "-subj", f"/CN={name}")
        authority = ("-CA", self.ca, "-CAkey", self.folder / "ca.key", "-CAcreateserial")
        self._openssl("x509", "-req", "-in", asked, *authority, "-days", "2", "-extfile", extra, "-out", cert)
        return cert, self.folder / f"{name}.key"

    def _new_key(self, name: str) -> tuple[str | Path, ...]:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        return (*curve, "-nodes", "-keyout", self.folder / f"{name}.key")

    @staticmethod
    def _openssl(*args: str | Path) -> None:
        done = subprocess.run(["openssl", *map(str, args)], capture_output=True, text=True, check=False)  # noqa: S607 - found on PATH
        if done.returncode:
            raise RuntimeError(f"openssl {args[0]} failed: {done.stderr[-1000:]}")

    def close(self) -> None:
        """Delete the files. Safe to call twice."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
