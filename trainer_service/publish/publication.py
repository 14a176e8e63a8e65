"""One published version, and the protocol of the ways to deliver it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import grpc

from common.weights.version import PolicyVersion
from trainer_service.engine.base import WeightsSnapshot


@dataclass(frozen=True, slots=True, eq=False)
class Published:
    """A version, ready to be delivered."""

    version: PolicyVersion
    snapshot: WeightsSnapshot | None
    """The bytes, where they are sent."""
    path: str | None
    """The checkpoint's folder, relative to the shared root, where they are read from disk."""


@dataclass(frozen=True, slots=True, eq=False)
class Publication:
    """A version that was ordered, and becomes ready."""

    step: int
    ordered_at: float
    """Seconds of the event loop's clock."""
    ready: asyncio.Future[Published]


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a delivery ended."""

    version: PolicyVersion
    applied: bool
    """False when a newer version took its place before it was applied."""
    receive_seconds: float
    apply_seconds: float
    sent_bytes: int = 0
    """Of weights, on this way to it; 0 where only a path was sent."""


class Publisher(Protocol):
    """One sync method."""

    async def prepare(self, step: int, snapshot: WeightsSnapshot) -> Published:
        """Makes the version ready, once for all explorers."""

    async def deliver(
        self, channel: grpc.aio.Channel, peer: str, published: Published, staged: Callable[[], None]
    ) -> Delivery:
        """Brings it to one explorer; calls `staged` when it is there and verified, returns when it is applied.

        Raises the peer's error; PeerUnavailable and WaitTimedOut may be tried again.
        """
