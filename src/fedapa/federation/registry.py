"""The coordinator's folder: its authority and certificate, the enrolled sites and their keys, and the settings."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import tomli_w

from fedapa.errors import InputError
from fedapa.federation import audit_log, keys
from fedapa.federation.kit import CA, KEY, SECRET, Kit, check_name, write_kit
from fedapa.federation.messages import read
from fedapa.store.atomic_io import make_folder, write_atomically, write_json
from fedapa.store.file_lock import flock

SETTINGS, SITES = "coordinator.toml", "sites.json"
OLD_NAMES = {"door": "proxy_port"}  # folders made by earlier versions


@dataclass(frozen=True)
class Settings:
    host: str = "127.0.0.1"  # name or address of this machine, as sites see it
    port: int = 9091  # of the SuperLink, on this machine only
    proxy_port: int = 9443  # of the reverse proxy that sites reach; 0: no proxy, all sites are on this machine


@dataclass(frozen=True)
class Enrolled:
    """One site: its name belongs to its key, from enrolment until it is removed."""

    name: str
    key: str  # public, PEM
    share: int
    node: int = 0  # Flower's number for the key; 0: not yet known to the SuperLink
    added: str = ""
    removed: str = ""  # time; empty while the site is a member


class Coordinator:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / SETTINGS
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
            self.settings = _sound(Settings(**{OLD_NAMES.get(key, key): value for key, value in found.items()}))
        except OSError as error:
            hint = "`fedapa coordinator init` makes one; --dir names another"
            raise InputError(f"{folder} is not a coordinator's folder: {path.name}: {error.strerror}", hint) from None
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{path} is damaged: {error}", "restore it from a copy") from None

    @property
    def address(self) -> str:
        """Where this machine reaches the SuperLink."""
        return f"127.0.0.1:{self.settings.port}"

    @property
    def ca(self) -> Path:
        return self.folder / "tls" / CA

    @property
    def certificate(self) -> Path:
        return self.folder / "tls" / "server.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls" / "server.key"

    @property
    def secret(self) -> Path:
        return self.folder / SECRET

    @property
    def database(self) -> Path:
        return self.folder / "superlink.db"

    def sites(self) -> list[Enrolled]:
        """All sites that were ever enrolled, removed ones included."""
        path = self.folder / SITES
        if not path.is_file():
            return []
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return [read(Enrolled, row) for row in found]
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise InputError(
                f"{path} is damaged: {error}", "restore it from a copy: it says who may take part"
            ) from None

    def members(self) -> list[Enrolled]:
        return [site for site in self.sites() if not site.removed]

    def stamp(self) -> tuple[int, int, int] | None:
        """Changes whenever the registry does: it is replaced as a whole."""
        try:
            found = (self.folder / SITES).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def enrol(self, name: str, kit: Path, public: Path | None = None, share: int | None = None) -> Enrolled:
        """Enrol a new site and write its kit. With a site's own public key, its private key never leaves the site."""
        check_name(name)
        with self._changing() as sites:
            if any(site.name == name for site in sites):
                raise InputError(f"the name {name} is taken", "names are never reused; choose another")
            if kit.exists():
                raise InputError(f"{kit} exists", "choose another --kit")
            number = len(sites) if share is None else share
            make_folder(kit)
            kit.chmod(0o700)
            key = keys.make_site_key(kit / KEY) if public is None else keys.read_public(public)
            if any(site.key == key for site in sites):
                shutil.rmtree(kit)
                raise InputError("that key is or was used by another site", "make a new one: `fedapa site key`")
            shutil.copy(self.ca, kit / CA)
            write_kit(kit, Kit(name, self.fleet_address, number))
            made = Enrolled(name, key, number, added=_now())
            sites.append(made)
        audit_log.append(self.folder, "site added", site=name, key=hashlib.sha256(key.encode()).hexdigest())
        return made

    @property
    def fleet_address(self) -> str:
        return f"{self.settings.host}:{self.settings.proxy_port}" if self.settings.proxy_port else self.address

    def remove(self, name: str) -> Enrolled:
        with self._changing() as sites:
            for k, site in enumerate(sites):
                if site.name == name and not site.removed:
                    sites[k] = replace(site, removed=_now())
                    audit_log.append(self.folder, "site removed", site=name)
                    return site
        raise InputError(f"no site is called {name!r}", "`fedapa coordinator status` lists them")

    def note_nodes(self, nodes: dict[str, int]) -> None:
        """Flower's numbers for the sites' keys."""
        with self._changing() as sites:
            sites[:] = [replace(site, node=nodes.get(site.name, site.node)) for site in sites]

    @contextmanager
    def _changing(self) -> Iterator[list[Enrolled]]:
        with open(self.folder / ".sites.lock", "w") as lock:
            flock(lock)
            sites = self.sites()
            before = list(sites)
            try:
                yield sites
            finally:
                if sites != before:
                    write_json(self.folder / SITES, [asdict(site) for site in sites])


def _sound(settings: Settings) -> Settings:
    ports = settings.port, settings.proxy_port
    if not all(type(port) is int and 0 <= port < 2**16 for port in ports):
        raise ValueError(f"ports {ports!r}")
    if type(settings.host) is not str or not settings.host.isprintable():
        raise ValueError(f"host {settings.host!r}")
    return settings


def create(folder: Path, settings: Settings, names: list[str], ca: Path | None, ca_key: Path | None) -> Coordinator:
    """A new coordinator: authority (or yours), certificate, registry, secret and the proxy's configuration."""
    if (folder / SETTINGS).exists():
        raise InputError(f"{folder} is already a coordinator's folder", "choose another --dir")
    if (ca is None) != (ca_key is None):
        raise InputError("an authority needs a certificate and its key", "give both --ca-cert and --ca-key, or neither")
    make_folder(folder / "tls")
    folder.chmod(0o700)
    own, own_key = folder / "tls" / CA, folder / "tls" / "ca.key"
    if ca is None or ca_key is None:
        keys.make_authority(own, own_key, settings.host)
        ca_key = own_key
    else:
        shutil.copy(ca, own)
    hosts = list(dict.fromkeys([settings.host, *names, "localhost", "127.0.0.1"]))
    keys.make_server(folder / "tls" / "server.crt", folder / "tls" / "server.key", own, ca_key, hosts)
    keys.write_secret(folder / SECRET, secrets.token_bytes(32))
    write_atomically(folder / SETTINGS, tomli_w.dumps(asdict(settings)).encode())
    audit_log.append(folder, "coordinator made", host=settings.host)
    return Coordinator(folder)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
