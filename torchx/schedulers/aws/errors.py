"""Translates errors of AWS calls to ours, with one line of text and a hint.

https://docs.aws.amazon.com/batch/latest/APIReference/CommonErrors.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torchx.errors import BackendError, ConfigError, NotFoundError, TorchXError, TransientError

# AWS's error codes, of which services have their own variants.
_THROTTLED = re.compile(
    r"(Request)?Throttl(ing|ed)(Exception)?|TooManyRequestsException|SlowDown|PriorRequestNotComplete"
    r"|(RequestLimit|BandwidthLimit)Exceeded"
)
_BAD_KEYS = re.compile(
    r"UnrecognizedClientException|InvalidClientTokenId|InvalidSignatureException|SignatureDoesNotMatch|AuthFailure"
    r"|IncompleteSignature|MissingAuthenticationToken|InvalidAccessKeyId"
)
_EXPIRED = re.compile(r"ExpiredToken(Exception)?|RequestExpired|TokenRefreshRequired")
_QUOTA = re.compile(r"(Resource)?LimitExceeded(Exception)?|ServiceQuotaExceededException|RepositoryAlreadyFull")
DENIED = frozenset(["AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError"])
_LOG_IN = "check with `aws sts get-caller-identity`; log in again (`aws sso login`), or correct AWS_PROFILE"
# By name, as some of these botocore exceptions exist only in some versions.
_NOT_LOGGED_IN = re.compile(
    r"(Unauthorized)?SSO(Token)?(Load)?Error|(Token|Credential)RetrievalError|LoginRefreshRequired|LoginTokenLoadError"
    r"|RefreshWithMFAUnsupportedError"
)
# Errors after which the request cannot have been sent.
_NEVER_SENT = frozenset(["EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "SSLError"])


class AwsError(BackendError):
    """AWS refused a request, with this error code."""

    def __init__(self, message: str, *, code: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class ThrottledError(TransientError):
    """AWS throttled the request, and did not execute it."""


class LostAnswerError(TransientError):
    """There was no answer, so it is not known whether the request was executed."""


@contextmanager
def aws_errors(doing: str) -> Iterator[None]:
    """Translate errors of botocore that are raised in its block; see :func:`translate`."""
    try:
        yield
    except Exception as e:
        error = translate(e, doing)
        if error is None:
            raise
        raise error from None


def translate(error: Exception, doing: str) -> TorchXError | None:
    """Our error for one of botocore's, else None. ``doing`` is what failed: ``job `x` could not be submitted``."""
    import botocore.exceptions as known

    if isinstance(error, known.ClientError):
        return _refused(error, doing)
    name = type(error).__name__
    if isinstance(error, (known.NoCredentialsError, known.PartialCredentialsError)):
        return BackendError(
            f"{doing}: there are no AWS credentials",
            hint="`aws configure`, or `aws sso login`, or set AWS_PROFILE or AWS_ACCESS_KEY_ID",
        )
    if _NOT_LOGGED_IN.fullmatch(name):
        return BackendError(f"{doing}: the AWS login is not valid: {_line(error)}", hint=_LOG_IN)
    if isinstance(error, known.NoRegionError):
        return ConfigError(f"{doing}: no AWS region is set", hint="set AWS_REGION, or `region` of your AWS profile")
    if isinstance(error, known.ProfileNotFound):
        return ConfigError(f"{doing}: {_line(error)}", hint="`aws configure list-profiles` lists them")
    if isinstance(error, known.ParamValidationError):
        return ConfigError(f"{doing}: AWS rejected the request: {' '.join(str(error).split())}")
    if isinstance(error, (known.HTTPClientError, known.ConnectionError)):
        lost = BackendError if name == "ProxyConnectionError" else TransientError
        kind = lost if name in _NEVER_SENT else LostAnswerError
        return kind(f"{doing}: AWS does not answer: {_line(error)}", hint="is the network up, and the region right?")
    if isinstance(error, known.BotoCoreError):
        return BackendError(f"{doing}: {_line(error)}")
    if _is_of_parser(error):
        return LostAnswerError(
            f"{doing}: the answer is not valid: {type(error).__name__}: {_line(error)}",
            hint="is there a proxy in between, or another server at the endpoint?",
        )
    return None


def _is_of_parser(error: BaseException) -> bool:
    """Whether the error was raised in botocore's parsers, which do not wrap errors about invalid answers."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == "botocore.parsers":
            return True
        trace = trace.tb_next
    return False


def _refused(error: Any, doing: str) -> TorchXError:
    answer = error.response.get("Error") or {}
    code, message = str(answer.get("Code") or ""), " ".join(str(answer.get("Message") or "").split())
    if message.startswith("<"):
        message = ""  # an HTML page of a proxy
    status = int((error.response.get("ResponseMetadata") or {}).get("HTTPStatusCode") or 0)
    if _THROTTLED.fullmatch(code):
        return ThrottledError(f"{doing}: AWS is receiving too many requests ({code})", hint="try again in a minute")
    expired, bad_keys = _EXPIRED.fullmatch(code), _BAD_KEYS.fullmatch(code)
    if code in DENIED or (status == 403 and not expired and not bad_keys):
        return _denied(error, code, message, doing)
    if expired:
        return AwsError(f"{doing}: the AWS credentials have expired", code=code, hint=_LOG_IN)
    if bad_keys:
        return AwsError(f"{doing}: AWS does not accept the credentials ({code})", code=code, hint=_LOG_IN)
    if _QUOTA.fullmatch(code):
        return AwsError(
            f"{doing}: a quota of the AWS account is used up: {message}",
            code=code,
            hint="wait until jobs have ended, or request more in the Service Quotas console",
        )
    if status >= 500 or code in ("ServerException", "InternalFailure", "ServiceUnavailable", "InternalServerError"):
        return LostAnswerError(
            f"{doing}: AWS failed ({code}){f': {message}' if message else ''}", hint="try again; health.aws.amazon.com"
        )
    return AwsError(f"{doing}: {message or code}", code=code)


def _denied(error: Any, code: str, message: str, doing: str) -> AwsError:
    """Report the user and the denied action, which may differ from the called one: ``iam:PassRole``, for example."""
    action = re.search(r"not authorized to perform: ([\w-]+:\w+)", message)
    user = re.search(r"User: (\S+)", message)
    named = action[1] if action else str(getattr(error, "operation_name", ""))
    whom = f" to `{user[1]}`" if user else ""
    return AwsError(f"{doing}: AWS denies `{named}`{whom}", code=code, hint=f"your IAM policy has to allow `{named}`")


def is_missing(error: TorchXError) -> bool:
    """Whether AWS reports that a named resource does not exist.

    >>> is_missing(AwsError("Job queue x does not exist", code="ClientException"))
    True
    """
    if isinstance(error, NotFoundError):
        return True
    if not isinstance(error, AwsError):
        return False
    gone = ("does not exist", "not found", "could not be found", "could not find")
    return error.code in ("ResourceNotFoundException", "ResourceNotFound") or any(w in str(error).lower() for w in gone)


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
