"""Which cluster, and who we are there: kubeconfig as kubectl reads it, or the service account of the pod we run in.

https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torchx.errors import BackendError, MissingDependencyError, install_extra

_POD_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_CONNECTIONS = 300
"""More than the logs that are followed at a time: each holds a connection, and all are kept for the next call."""
_IN_POD = "KUBERNETES_SERVICE_HOST"


class Cluster:
    """What is used of a ``kubernetes.client.ApiClient``: how the cluster is reached, and the connections."""

    def __init__(self, configuration: Any) -> None:
        import ssl

        import urllib3

        self.configuration = configuration
        self.rest_client = self
        given = {
            "maxsize": configuration.connection_pool_maxsize,
            "cert_reqs": "CERT_REQUIRED" if configuration.verify_ssl else "CERT_NONE",
            "ca_certs": configuration.ssl_ca_cert,
            "cert_file": configuration.cert_file,
            "key_file": configuration.key_file,
            "server_hostname": getattr(configuration, "tls_server_name", None),  # since 26
            "socket_options": configuration.socket_options,
        }
        options = {name: value for name, value in given.items() if value is not None}
        if not configuration.verify_ssl:  # urllib3's own would read all authorities of the machine, which takes 20 ms
            options["ssl_context"] = urllib3.util.create_urllib3_context(cert_reqs=ssl.CERT_NONE)
        self.pool_manager = urllib3.PoolManager(**options)
        if configuration.proxy:
            from requests.utils import should_bypass_proxies

            if not should_bypass_proxies(configuration.host, no_proxy=configuration.no_proxy or ""):
                headers = configuration.proxy_headers
                self.pool_manager = urllib3.ProxyManager(configuration.proxy, proxy_headers=headers, **options)

    def request(self, method: str, url: str) -> Any:
        """The answer of a provider of identities, which is asked for a new token."""
        return self.pool_manager.request(method, url)


def official() -> Any:
    """The package ``kubernetes.client``.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import kubernetes.client
    except ImportError:
        raise _missing() from None
    return kubernetes.client


def _missing() -> MissingDependencyError:
    return MissingDependencyError(
        "this needs the package `kubernetes`, which is not installed", hint=install_extra("kubernetes")
    )


@functools.cache
def _reader() -> tuple[Any, Any]:
    """What a configuration is made of, and the module that reads kubeconfig, as the package ``kubernetes`` has them.

    They are imported without its models and calls, which are not used here, and without OAuth, which is imported where
    a token is renewed by it: 0.25 of 0.3 seconds. Whoever imports the package elsewhere gets all of it; a program that
    has it already, or in which another thread might import it now, has the whole one.

    Raises:
        MissingDependencyError: it is not installed.
    """
    import threading

    if "kubernetes" in sys.modules or threading.active_count() > 1:
        client = official()
        from kubernetes import config

        return client.Configuration, config
    spec = importlib.util.find_spec("kubernetes")
    if spec is None or spec.submodule_search_locations is None:
        raise _missing()
    oauth = {"oauthlib", "oauthlib.oauth2", "requests_oauthlib"}
    oauth = set() if oauth & sys.modules.keys() else oauth
    ours = {name: ModuleType(name) for name in ("kubernetes", "kubernetes.client", *oauth)}
    ours["kubernetes"].__path__ = [*spec.submodule_search_locations]
    ours["kubernetes.client"].__path__ = [os.path.join(folder, "client") for folder in spec.submodule_search_locations]
    ours["kubernetes.client"].ApiClient = Cluster  # type: ignore[attr-defined]  # named by the reader of kubeconfig

    def session(*args: Any, **kwargs: Any) -> Any:
        ours["oauthlib"].oauth2 = importlib.import_module("oauthlib.oauth2")  # type: ignore[attr-defined]  # its errors
        return importlib.import_module("requests_oauthlib").OAuth2Session(*args, **kwargs)

    if oauth:
        ours["requests_oauthlib"].OAuth2Session = session  # type: ignore[attr-defined]
    sys.modules.update(ours)
    try:
        made = importlib.import_module("kubernetes.client.configuration").Configuration
        ours["kubernetes.client"].Configuration = made  # type: ignore[attr-defined]
        return made, importlib.import_module("kubernetes.config")
    finally:
        for name in [name for name in sys.modules if name in ours or name.startswith("kubernetes.")]:
            del sys.modules[name]


def connect(context: str | None) -> tuple[Cluster, str]:
    """The cluster, reached as kubectl would, and the namespace of the context; empty: it names none.

    Raises:
        MissingDependencyError: the client is not installed.
        BackendError: there is no cluster to talk to, or nobody to be there.
    """
    configuration = _reader()[0]()
    try:
        namespace = _kubeconfig(configuration, context)
    except BackendError:
        raise
    except Exception as e:  # the client lets through whatever its parser of YAML, and the files, raise
        if context is not None or _IN_POD not in os.environ:
            raise _unconfigured(_first_line(e)) from None
        namespace = _service_account(configuration)
    if not configuration.verify_ssl:
        import urllib3

        # As kubeconfig has it: not to be told at every call.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    configuration.connection_pool_maxsize = _CONNECTIONS
    configuration.socket_options = keep_alive()
    return Cluster(configuration), namespace


def keep_alive() -> list[tuple[int, int, int]]:
    """Options of a socket by which a peer that is gone without a word is noticed within 50 seconds of silence."""
    import socket

    wanted = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
    tcp = [(socket.IPPROTO_TCP, getattr(socket, k), v) for k, v in wanted.items() if hasattr(socket, k)]  # not on all
    return [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *tcp]


def _kubeconfig(configuration: Any, context: str | None) -> str:
    _, config = _reader()
    # The client looks at the variable once, when it is imported; kubectl, and we, each time.
    files = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    if not any(os.path.exists(file) for file in files.split(os.pathsep)):
        raise config.ConfigException(f"there is no `{files}`")
    with _errors() as said:
        config.load_kube_config(config_file=files, context=context, client_configuration=configuration)
    if said:  # a plugin that failed: the client goes on as nobody
        raise BackendError(
            f"kubeconfig gives no credentials: {said[0]}",
            hint="run the command of its `exec` entry by hand; `kubectl config view --minify` shows it",
        )
    contexts, active = config.list_kube_config_contexts(config_file=files)
    chosen = next((c for c in contexts if c["name"] == context), active)
    return str((chosen.get("context") or {}).get("namespace") or "")


@contextmanager
def _errors() -> Iterator[list[str]]:
    """What is logged as an error meanwhile, which is how the client reports a plugin that failed."""
    import logging

    said: list[str] = []

    class Ear(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            said.append(record.getMessage().strip())
            return False

    root, ear, silent = logging.getLogger(), Ear(), logging.NullHandler()
    root.addFilter(ear)
    root.addHandler(silent)  # without any, logging would set itself up
    try:
        yield said
    finally:
        root.removeHandler(silent)
        root.removeFilter(ear)


def _service_account(configuration: Any) -> str:
    """Sets up the pod's service account. Returns the pod's namespace."""
    _, config = _reader()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException as e:
        raise _unconfigured(_first_line(e)) from None
    try:
        with open(_POD_NAMESPACE, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def _unconfigured(why: str) -> BackendError:
    return BackendError(
        f"no Kubernetes cluster is configured: {why}",
        hint="`kubectl config get-contexts` lists them; use `-cfg context=NAME`, or set KUBECONFIG",
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
