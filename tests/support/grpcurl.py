"""The real grpcurl as a child process."""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(sys.executable).with_name("grpcurl")
SECONDS = 60.0
EXPLORER = "tandem.v1.ExplorerService"
TRAINER = "tandem.v1.TrainerService"


@dataclass(frozen=True)
class Answer:
    """What it ended with."""

    code: int
    """Exit code: 64 + the gRPC status code of a call that was refused."""
    stdout: str
    stderr: str

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The JSON messages on standard output of a call that went well."""
        assert self.code == 0, self.stderr
        decoder = json.JSONDecoder()
        found, text = [], self.stdout.strip()
        while text:
            message, end = decoder.raw_decode(text)
            found.append(message)
            text = text[end:].lstrip()
        return found

    @property
    def only(self) -> dict[str, Any]:
        """The one message of a call that went well."""
        (message,) = self.messages
        return message

    @property
    def reason(self) -> str:
        """The reason in the `google.rpc.ErrorInfo` of a call that was refused."""
        assert self.code != 0, self.stdout
        _, _, details = self.stderr.partition("1)")
        info = json.loads(details)
        assert info["domain"] == "tandem.v1"
        return str(info["reason"])


async def grpcurl(
    address: str,
    *words: str,
    data: Mapping[str, Any] | None = None,
    lines: Sequence[Mapping[str, Any]] | None = None,
    secured: Sequence[str] = ("-plaintext",),
) -> Answer:
    """Runs it: `data` is the one message of a call, `lines` are those that it reads from standard input.

    `secured` are its words for how to connect; plain text unless a test says otherwise.
    """
    flags: tuple[str, ...] = ()
    if data is not None:
        flags = ("-d", json.dumps(data))
    if lines is not None:
        flags = ("-d", "@")
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *secured,
        *flags,
        address,
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    text = "\n".join(json.dumps(line) for line in lines or ()).encode()
    async with asyncio.timeout(SECONDS):
        out, err = await process.communicate(text)
    return Answer(process.returncode or 0, out.decode(), err.decode())
