"""Client of a container registry: manifests and blobs over its HTTP API.

See https://github.com/opencontainers/distribution-spec/blob/main/spec.md.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import quote, urlencode

from torchx.errors import BackendError, NotFoundError, ParseError, TorchXError
from torchx.util.records import dataclass
from torchx.workspace.images.names import DIGEST, DOCKER_HUB, ImageName
from torchx.workspace.images.registry_auth import Challenge, Credentials, find_credentials, token_request
from torchx.workspace.images.registry_http import (
    Again,
    Answer,
    Body,
    Http,
    absolute,
    chunks,
    explain,
    host_of,
    is_loopback,
    origin_of,
    persist,
)

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_ACCEPT = ", ".join((OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST))

PULL = "pull"
PUSH = "pull,push"


@dataclass(frozen=True)
class Manifest:
    """A manifest or an index, as the registry has it."""

    media_type: str
    digest: str
    content: bytes


@dataclass(frozen=True)
class Blob:
    """Content for a repository: its digest, size in bytes, and a function that yields its bytes from the start."""

    digest: str
    size: int
    chunks: Callable[[], Iterator[bytes]]


class Registry:
    """One registry, by host and port as in the name of an image. Thread-safe.

    Without ``credentials``, the login is that of the user's login files. All methods raise ``BackendError`` if the
    registry rejects the request, and ``TransientError`` if several attempts failed or timed out.
    """

    def __init__(
        self,
        host: str,
        *,
        credentials: Credentials | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.host = host
        self._api = "registry-1.docker.io" if host == DOCKER_HUB else host
        self._http = Http(sleep=sleep)
        self._given_credentials = credentials
        self._base = ""
        self._challenge = Challenge("", {})
        self._headers: dict[tuple[str, ...], str] = {}
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close idle connections; the client can still be used, and is still logged in."""
        self._http.close()

    def abort(self) -> None:
        """Aborts requests of other threads; the client cannot be used afterwards."""
        self._http.abort()

    def manifest(self, image: ImageName) -> Manifest:
        """Return the manifest or index under a tag or digest; raise NotFoundError if there is none."""
        path = f"{image.repository}/manifests/{image.reference}"
        answer = self._call("GET", path, _scope(image.repository, PULL), headers={"Accept": _ACCEPT})
        if answer.status == 404:
            raise NotFoundError(
                f"registry `{self.host}` has no image `{image}`",
                hint="push it first, or check its name; an image of the local engine needs `builder=docker`",
            )
        self._expect(answer, (200,), f"pull `{image}`")
        digest = _digest_of(answer.body)
        if image.digest and image.digest.startswith("sha256:") and image.digest != digest:
            raise BackendError(f"registry `{self.host}` returned something other than `{image}`: `{digest}`")
        return Manifest(answer.headers.get("content-type", "").partition(";")[0].strip(), digest, answer.body)

    def manifest_digest(self, image: ImageName, *, action: str = PULL) -> str:
        """Return the digest of the manifest under a tag, or the empty string."""
        path = f"{image.repository}/manifests/{image.reference}"
        answer = self._call("HEAD", path, _scope(image.repository, action), headers={"Accept": _ACCEPT})
        if answer.status == 404:
            return ""
        self._expect(answer, (200,), f"check for `{image}`")
        digest = answer.headers.get("docker-content-digest", "")
        return digest if DIGEST.fullmatch(digest) else self.manifest(image).digest

    def put_manifest(self, image: ImageName, manifest: Manifest) -> None:
        """Publish a manifest under its tag. This is the last step of a push, because it makes the image visible."""
        answer = self._call(
            "PUT",
            f"{image.repository}/manifests/{image.reference}",
            _scope(image.repository, PUSH),
            headers={"Content-Type": manifest.media_type},
            body=manifest.content,
        )
        self._expect(answer, (201, 200, 202), f"push `{image}`")

    def has_blob(self, repository: str, digest: str, *, action: str = PUSH) -> bool:
        answer = self._call("HEAD", f"{repository}/blobs/{digest}", _scope(repository, action))
        if answer.status == 404:
            return False
        self._expect(answer, (200,), f"check `{repository}`")
        return True

    def mount_blob(self, repository: str, digest: str, *, source: str) -> bool:
        """Mounts a blob from another repository; returns whether the registry did."""
        query = urlencode({"mount": digest, "from": source})
        scopes = (*_scope(repository, PUSH), *_scope(source, PULL))
        answer = self._call("POST", f"{repository}/blobs/uploads/?{query}", scopes, body=b"")
        if answer.status == 202:  # the registry started an upload instead
            self._abandon(answer, scopes)
            return False
        self._expect(answer, (201, 202), f"push to `{repository}`")
        return True

    def upload_blob(self, repository: str, blob: Blob) -> None:
        """Upload a blob. Retries from the start, unless the blob has arrived despite the failure."""
        tried = False

        def attempt() -> None:
            nonlocal tried
            if tried and self.has_blob(repository, blob.digest):
                return
            tried = True
            self._upload(repository, blob)

        persist(f"registry `{self.host}` did not accept a layer of `{repository}`", attempt, sleep=self._http.sleep)

    def read_blob(self, repository: str, digest: str) -> Iterator[bytes]:
        """Yield a blob for a copy to another registry; raise :class:`Again` if the connection broke."""
        path = f"{repository}/blobs/{digest}"
        scopes = _scope(repository, PULL)
        self.has_blob(repository, digest, action=PULL)  # get the token first: a stream cannot be retried
        headers = self._authorization(scopes)
        response, _ = self._http.open("GET", self._url(path), headers=headers)
        with response:
            if response.status != 200:
                raise Again(f"it answered {response.status} for `{digest}`")
            yield from chunks(response)

    def blob(self, repository: str, digest: str) -> bytes:
        """Return a small blob, after checking its digest; raise NotFoundError if the repository lacks it."""
        answer = self._call("GET", f"{repository}/blobs/{digest}", _scope(repository, PULL))
        if answer.status == 404:
            raise NotFoundError(f"`{self.host}/{repository}` has no blob `{digest}`")
        self._expect(answer, (200,), f"pull from `{repository}`")
        if digest.startswith("sha256:") and _digest_of(answer.body) != digest:
            raise BackendError(f"registry `{self.host}` returned something other than `{digest}` of `{repository}`")
        return answer.body

    def _upload(self, repository: str, blob: Blob) -> None:
        scopes = _scope(repository, PUSH)
        begun = self._attempt("POST", f"{repository}/blobs/uploads/", scopes, body=b"")
        self._expect(begun, (202,), f"push to `{repository}`")
        target = self._location(begun)
        target += ("&" if "?" in target else "?") + "digest=" + quote(blob.digest, safe="")
        answer = self._attempt(
            "PUT",
            target,
            scopes,
            headers={"Content-Type": "application/octet-stream"},
            body=Body(blob.size, blob.chunks),
        )
        if answer.status == 404:
            raise Again("it lost the upload")
        self._expect(answer, (201,), f"push to `{repository}`")

    def _abandon(self, begun: Answer, scopes: tuple[str, ...]) -> None:
        """Cancel an upload, which the registry would otherwise keep for about a week."""
        try:
            self._attempt("DELETE", self._location(begun), scopes)
        except (Again, TorchXError):
            return

    def _location(self, begun: Answer) -> str:
        target = begun.headers.get("location", "")
        if not target:
            raise ParseError(f"registry `{self.host}` returned no upload location", text=str(begun.headers))
        return absolute(begun.url, target)

    def _call(
        self,
        method: str,
        path: str,
        scopes: tuple[str, ...],
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        return persist(
            f"registry `{self.host}` could not be used",
            lambda: self._attempt(method, path, scopes, headers=headers, body=body),
            sleep=self._http.sleep,
        )

    def _attempt(
        self,
        method: str,
        target: str,
        scopes: tuple[str, ...],
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Body | None = None,
    ) -> Answer:
        """Make one attempt, and logs in if required. ``target`` is a path below ``/v2/`` or a whole URL."""
        url = self._url(target)
        own = host_of(url) == host_of(self._url(""))  # an upload may lead to another host, which must not get our login
        used = self._authorization(scopes) if own else {}
        answer = self._http.request(method, url, headers={**(headers or {}), **used}, body=body)
        # After a redirect another host may ask for a login; it must not get ours.
        if answer.status == 401 and own and origin_of(answer.url) == origin_of(url):
            self._log_in(Challenge.parse(answer.headers.get("www-authenticate", "")), scopes, refused=used)
            answer = self._http.request(
                method, url, headers={**(headers or {}), **self._authorization(scopes)}, body=body
            )
        return answer

    def _url(self, target: str) -> str:
        if "://" in target:
            return target
        if not self._base:
            plain = is_loopback(self._api) and not self._http.speaks_tls(self._api)
            self._base = f"{'http' if plain else 'https'}://{self._api}/v2/"
        return self._base + target

    @property
    def _credentials(self) -> Credentials:
        if self._given_credentials is None:
            self._given_credentials = find_credentials(self.host)
        return self._given_credentials

    def _authorization(self, scopes: tuple[str, ...]) -> dict[str, str]:
        with self._lock:
            if scopes not in self._headers and self._challenge.scheme:
                self._log_in(self._challenge, scopes, refused={})
            header = self._headers.get(scopes, "")
        return {"Authorization": header} if header else {}

    def _log_in(self, challenge: Challenge, scopes: tuple[str, ...], *, refused: Mapping[str, str]) -> None:
        with self._lock:
            header = self._headers.get(scopes, "")
            if header and header != refused.get("Authorization"):
                return  # another thread was faster
            if challenge.scheme == "bearer":
                self._headers[scopes] = f"Bearer {self._token(challenge, scopes)}"
            elif challenge.scheme == "basic" and self._credentials.username and not refused:
                self._headers[scopes] = self._credentials.basic()
            else:
                return  # the caller reports the 401
            self._challenge = challenge

    def _token(self, challenge: Challenge, scopes: tuple[str, ...]) -> str:
        realm = challenge.parameters.get("realm", "")
        scheme, host = origin_of(realm)
        if scheme != "https" and self._credentials and not is_loopback(host):
            raise BackendError(f"registry `{self.host}` wants the password sent to `{realm}`, where others can read it")
        method, url, headers, body = token_request(challenge, scopes, self._credentials)
        answer = persist(
            f"`{host_of(url)}`, which logs in to registry `{self.host}`, could not be used",
            lambda: self._http.request(method, url, headers=headers, body=body),
            sleep=self._http.sleep,
        )
        self._expect(answer, (200,), "log in for " + " and ".join(f"`{scope}`" for scope in scopes))
        try:
            given = json.loads(answer.body)
            return str(given.get("token") or given["access_token"])
        except (ValueError, LookupError, AttributeError, RecursionError) as e:
            raise ParseError(
                f"`{host_of(url)}` returned no token for registry `{self.host}`", text="(not shown)"
            ) from e

    def _expect(self, answer: Answer, statuses: tuple[int, ...], action: str) -> None:
        if answer.status in statuses:
            return
        detail = explain(answer.body)
        because = f": {detail}" if detail else ""
        if answer.status in (401, 403):
            who = self._credentials.username
            raise BackendError(
                f"registry `{self.host}` refuses to {action} ({answer.status}){because}",
                hint=(f"`{who}` may not do this; log in as somebody who may" if who else "log in")
                + f": `docker login {self.host}`",
            )
        hint = "does the repository exist? some registries want it created first" if answer.status == 404 else ""
        raise BackendError(f"registry `{self.host}` did not {action}: it answered {answer.status}{because}", hint=hint)


def _scope(repository: str, action: str) -> tuple[str, ...]:
    return (f"repository:{repository}:{action}",)


def _digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()
