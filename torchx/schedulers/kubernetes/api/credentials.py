"""Cluster and credentials from kubeconfig, like kubectl, or from the service account of this pod.

https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

from __future__ import annotations

import functools
import importlib.util
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torchx.errors import BackendError, MissingDependencyError, install_extra
from torchx.schedulers.kubernetes.api.errors import MissingError

_POD_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_CONNECTIONS = 300
"""Maximum number of pooled connections: more than the number of logs followed at a time, each of which uses one."""
_IN_POD = "KUBERNETES_SERVICE_HOST"


class Cluster:
    """The part of ``kubernetes.client.ApiClient`` that is used here: configuration and connections."""

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
        if not configuration.verify_ssl:  # the default context loads all CAs of the machine, which takes 20 ms
            options["ssl_context"] = urllib3.util.create_urllib3_context(cert_reqs=ssl.CERT_NONE)
        self.pool_manager = urllib3.PoolManager(**options)
        if configuration.proxy:
            from requests.utils import should_bypass_proxies

            if not should_bypass_proxies(configuration.host, no_proxy=configuration.no_proxy or ""):
                headers = configuration.proxy_headers
                self.pool_manager = urllib3.ProxyManager(configuration.proxy, proxy_headers=headers, **options)

    def request(self, method: str, url: str) -> Any:
        """Return the response of an identity provider that is asked for a new token."""
        return self.pool_manager.request(method, url)


def official() -> Any:
    """Return the package ``kubernetes.client``; MissingDependencyError if it is not installed."""
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
    """Return the class ``Configuration`` and the module ``config`` of the package ``kubernetes``.

    They are imported without the package's models and calls, and OAuth is imported only when it renews a token. This
    saves 0.25 of 0.3 seconds. Other imports of the package still load all of it. If it is imported already, or another
    thread could be importing it, the whole package is used here, too.
    """
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
    """Return the cluster of a context of kubeconfig (None: the current one), and the context's namespace, which may be
    empty.

    MissingDependencyError if the client is not installed; BackendError without a cluster or credentials.
    """
    configuration = _reader()[0]()
    try:
        namespace = _kubeconfig(configuration, context)
    except BackendError:
        raise
    except Exception as e:  # the client does not catch errors of YAML and files
        if context is not None or _IN_POD not in os.environ:
            raise _unconfigured(e) from None
        namespace = _service_account(configuration)
    if not configuration.verify_ssl:
        import urllib3

        # kubeconfig asks for this; do not warn in every call.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    configuration.connection_pool_maxsize = _CONNECTIONS
    configuration.socket_options = keep_alive()
    return Cluster(configuration), namespace


def keep_alive() -> list[tuple[int, int, int]]:
    """Socket options that detect a dead peer within 50 seconds."""
    wanted = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # not on all systems
    tcp = [(socket.IPPROTO_TCP, getattr(socket, k), v) for k, v in wanted.items() if hasattr(socket, k)]
    return [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *tcp]


def _kubeconfig(configuration: Any, context: str | None) -> str:
    _, config = _reader()
    # The official client reads the variable only once, when it is imported.
    files = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    if not any(os.path.exists(file) for file in files.split(os.pathsep)):
        raise config.ConfigException(f"there is no `{files}`")
    with _errors() as said:
        config.load_kube_config(config_file=files, context=context, client_configuration=configuration)
    if said:  # an exec plugin failed, after which the client continues without credentials
        raise BackendError(
            f"kubeconfig gives no credentials: {said[0]}",
            hint="run the command of its `exec` entry by hand; `kubectl config view --minify` shows it",
        )
    # `list_kube_config_contexts` needs a current context, even if another one is used
    merged = config.kube_config.KubeConfigMerger(files).config
    chosen = config.kube_config.KubeConfigLoader(config_dict=merged, active_context=context).current_context
    return str((chosen.get("context") or {}).get("namespace") or "")


@contextmanager
def _errors() -> Iterator[list[str]]:
    """Collect messages logged to the root logger, by which the client reports a failed exec plugin."""
    import logging

    said: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        said.append(record.getMessage().strip())
        return False

    root, silent = logging.getLogger(), logging.NullHandler()
    root.addFilter(collect)
    root.addHandler(silent)  # without a handler, `logging` would configure itself
    try:
        yield said
    finally:
        root.removeHandler(silent)
        root.removeFilter(collect)


def _service_account(configuration: Any) -> str:
    """Use the service account of this pod. Returns the pod's namespace."""
    _, config = _reader()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException as e:
        raise _unconfigured(e) from None
    try:
        with open(_POD_NAMESPACE, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def _unconfigured(error: Exception) -> MissingError:
    why = next(iter(str(error).splitlines()), type(error).__name__)
    return MissingError(
        f"no Kubernetes cluster is configured: {why}",
        hint="`kubectl config get-contexts` lists them; use `-cfg context=NAME`, or set KUBECONFIG",
    )
