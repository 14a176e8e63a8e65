"""The errors of both services, and the gRPC status code of each.

Factored out so that every layer can raise and catch them without import loops. What a peer did wrong and what we did
wrong are different classes: `PeerError` for the first, its siblings for the second.
"""

from __future__ import annotations

from typing import ClassVar

import grpc


class TandemError(Exception):
    """Base of all our errors. `metadata` travels to the peer as `google.rpc.ErrorInfo.metadata`."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = {name: str(value) for name, value in metadata.items()}


class ConfigError(TandemError):
    """The configuration cannot work; names the key, the value and what is allowed. Exit code 2."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "CONFIG"


class PeerError(TandemError):
    """The other side is at fault."""


class PeerUnavailable(PeerError):
    """The peer cannot be reached, or fell silent, for longer than `peer_timeout`."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "PEER_UNAVAILABLE"


class PeerFailed(PeerError):
    """The peer reported an error of its own that ends the run; the message carries its cause."""

    code = grpc.StatusCode.ABORTED
    reason = "PEER_FAILED"


class Unauthenticated(PeerError):
    """The caller did not prove who he is: no certificate or token of a role, or one that is not known here."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"


class PermissionDenied(PeerError):
    """The caller is known, and what he asks is not for his role."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class ProtocolViolation(PeerError):
    """A message out of order, or with contents that the contract forbids."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "PROTOCOL_VIOLATION"


class MalformedData(PeerError):
    """Bytes that do not decode to what they claim to be: lengths that lie, overlaps, unknown dtypes."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "MALFORMED_DATA"


class CorruptData(PeerError):
    """A checksum does not match. Nothing was applied; it may be sent again."""

    code = grpc.StatusCode.DATA_LOSS
    reason = "CORRUPT_DATA"


class LimitExceeded(PeerError):
    """Over a configured limit, refused before memory was taken for it; names the limit."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "LIMIT_EXCEEDED"


class StaleEpoch(PeerError):
    """A message of an earlier run epoch: its sender was replaced."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "STALE_EPOCH"


class StaleVersion(PeerError):
    """A lower policy version than the one that is applied, in the same run epoch."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "STALE_VERSION"


class ManifestMismatch(PeerError):
    """Weights of another layout, or whose hash is not the promised one; shows both fingerprints."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "MANIFEST_MISMATCH"


class DeltaUnusable(PeerError):
    """A delta whose base is not here, or that does not make the promised version of it: the full version is needed."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "DELTA_UNUSABLE"


class RunMismatch(PeerError):
    """The peer belongs to another run, or has another tokenizer or wire revision."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "RUN_MISMATCH"


class NonFiniteWeights(PeerError):
    """Weights with NaN or infinity; never applied."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "NON_FINITE_WEIGHTS"


class UnsafePath(PeerError):
    """A path that leaves its root, or is no plain file or folder."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "UNSAFE_PATH"


class CheckpointInvalid(TandemError):
    """A checkpoint folder that is incomplete or does not match its manifest."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "CHECKPOINT_INVALID"


class StorageFailed(TandemError):
    """A disk that is full, read-only or broken; what was there before is still good."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "STORAGE_FAILED"


class TrainingDiverged(TandemError):
    """Non-finite losses or gradients more often in a row than is allowed."""

    reason = "TRAINING_DIVERGED"


class WaitTimedOut(TandemError):
    """A wait reached its deadline; the message says for what and how long."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "WAIT_TIMED_OUT"


class WorkflowFailed(TandemError):
    """A workflow or reward raised, hung or returned garbage, more often than retries allow."""

    reason = "WORKFLOW_FAILED"


class ShuttingDown(TandemError):
    """The service ends and takes nothing new."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "SHUTTING_DOWN"
