"""Encode and decode, three ways, from experiences to one packed TrainBatch: seconds of CPU an experience.

The losers are what such pairs usually send: a message with repeated scalars, and pickled torch tensors. Each is given
lists instead of item by item and one pickle a batch; repeated scalars are read back in two ways, the usual one into torch
tensors, and one by numpy's iteration, the fastest that was found.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from support import say
from support_experiences import LONG, SHORT, Size, made_groups

from common.config.root import LimitsConfig
from common.experience.experience import Experience, ExperienceGroup
from common.process import prepare_process
from common.wire.bulk import BatchView, parse_stream_response, wrap_batch
from common.wire.experiences import batch_from_view, batch_to_wire
from trainer_service.buffer.assemble import assemble
from trainer_service.engine.base import TrainBatch

Groups = Sequence[ExperienceGroup]
FIELDS = (("tokens", 5, 3), ("mask", 5, 3), ("logprobs", 2, 3), ("prompt", 5, 1), ("reward", 2, 1), ("version", 3, 1))
"""Name, descriptor type (int32, float, int64), label (repeated, optional)."""
LIMITS = LimitsConfig()
MIN_CALLS = 5


def repeated_message() -> type[Message]:
    """The class of `message Batch { repeated Experience experiences = 1; }` with repeated scalars in Experience."""
    file = descriptor_pb2.FileDescriptorProto(name="repeated.proto", package="benchmark", syntax="proto3")
    experience = file.message_type.add(name="Experience")
    for number, (name, kind, label) in enumerate(FIELDS, start=1):
        experience.field.add(name=name, number=number, type=kind, label=label)
    batch = file.message_type.add(name="Batch")
    batch.field.add(name="experiences", number=1, type=11, label=3, type_name=".benchmark.Experience")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("benchmark.Batch"))


BATCH = repeated_message()


def columnar_encode(groups: Groups) -> bytes:
    """As the explorer does."""
    return wrap_batch(batch_to_wire("explorer-0", 1, groups, send_text=False))


def columnar_decode(data: bytes) -> TrainBatch:
    """As the trainer does: every check, and copies that own their memory."""
    view = parse_stream_response(data)
    if not isinstance(view, BatchView):
        raise TypeError(view)
    return assemble(batch_from_view(view, LIMITS).groups, 1.0)


def repeated_encode(groups: Groups) -> bytes:
    """Lists into repeated fields."""
    message = BATCH()
    for experience in flat(groups):
        message.experiences.add(
            tokens=experience.tokens.tolist(),
            mask=experience.action_mask.tolist(),
            logprobs=experience.logprobs.tolist(),
            prompt=experience.prompt_length,
            reward=experience.reward,
            version=experience.oldest_version,
        )
    return message.SerializeToString()


def repeated_decode(data: bytes) -> TrainBatch:
    """Repeated fields into arrays; nothing is checked."""
    rows = BATCH.FromString(data).experiences
    return packed(
        [np.array(row.tokens, np.int32) for row in rows],
        [np.array(row.mask, np.bool_) for row in rows],
        [np.array(row.logprobs, np.float32) for row in rows],
        [row.prompt for row in rows],
        [row.reward for row in rows],
    )


def repeated_usual_decode(data: bytes) -> TrainBatch:
    """As most code reads a repeated field: `torch.tensor` of it, field by field."""
    rows = BATCH.FromString(data).experiences
    return packed(
        [torch.tensor(list(row.tokens), dtype=torch.int32).numpy() for row in rows],
        [torch.tensor(list(row.mask), dtype=torch.bool).numpy() for row in rows],
        [torch.tensor(list(row.logprobs), dtype=torch.float32).numpy() for row in rows],
        [row.prompt for row in rows],
        [row.reward for row in rows],
    )


def pickle_encode(groups: Groups) -> bytes:
    """One pickle of a list of dicts of tensors."""
    return pickle.dumps(
        [
            {
                "tokens": torch.from_numpy(experience.tokens),
                "mask": torch.from_numpy(experience.action_mask),
                "logprobs": torch.from_numpy(experience.logprobs),
                "prompt": experience.prompt_length,
                "reward": experience.reward,
                "version": experience.oldest_version,
            }
            for experience in flat(groups)
        ],
        protocol=pickle.HIGHEST_PROTOCOL,
    )


def pickle_decode(data: bytes) -> TrainBatch:
    """And back; nothing is checked."""
    rows = pickle.loads(data)  # noqa: S301 - bytes that this process has just made
    return packed(
        [row["tokens"].numpy() for row in rows],
        [row["mask"].numpy().view(np.bool_) for row in rows],
        [row["logprobs"].numpy() for row in rows],
        [row["prompt"] for row in rows],
        [row["reward"] for row in rows],
    )


def flat(groups: Groups) -> list[Experience]:
    """All experiences."""
    return [experience for group in groups for experience in group.experiences]


def packed(
    tokens: list[np.ndarray], masks: list[np.ndarray], logprobs: list[np.ndarray], prompts: list[int], rewards: list
) -> TrainBatch:
    """What `assemble` gives."""
    offsets = np.concatenate([[0], np.cumsum([row.size for row in tokens])])
    return TrainBatch(
        tokens=torch.from_numpy(np.concatenate(tokens)),
        token_offsets=torch.from_numpy(offsets),
        prompt_lengths=torch.tensor(prompts),
        action_mask=torch.from_numpy(np.concatenate(masks)),
        logprobs=torch.from_numpy(np.concatenate(logprobs)),
        rewards=torch.tensor(rewards),
        group_index=torch.zeros(len(rewards), dtype=torch.int64),
    )


def cpu_seconds(work: Callable[[], object], seconds: float) -> float:
    """CPU time of the quickest of many calls: what other processes do to the caches counts least there."""
    times: list[float] = []
    work()
    while sum(times) < seconds or len(times) < MIN_CALLS:
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times)


def main() -> None:
    """One JSON line: experiences a CPU second of each way, and the bytes on the wire over the raw ones."""
    prepare_process()
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1.0, help="of each of the 16 measurements")
    parser.add_argument("--groups", type=int, default=8, help="in a batch")
    arguments = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    ways = {
        "columnar": (columnar_encode, columnar_decode),
        "repeated": (repeated_encode, repeated_decode),
        "repeated_usual": (repeated_encode, repeated_usual_decode),
        "pickle": (pickle_encode, pickle_decode),
    }
    for label, size in (("long", LONG), ("short", SHORT)):
        groups = made_groups(arguments.groups, size)
        expected = columnar_decode(columnar_encode(groups))
        results[label] = {"experiences": len(flat(groups))}
        for name, (encode, decode) in ways.items():
            data = encode(groups)
            check(decode(data), expected)
            spent = [cpu_seconds(lambda e=encode, g=groups: e(g), arguments.seconds)]
            spent.append(cpu_seconds(lambda d=decode, b=data: d(b), arguments.seconds))
            results[label] |= {
                f"{name}_encode_us": spent[0] * 1e6 / len(flat(groups)),
                f"{name}_decode_us": spent[1] * 1e6 / len(flat(groups)),
                f"{name}_per_s": len(flat(groups)) / sum(spent),
                f"{name}_bytes_over_raw": len(data) / (len(flat(groups)) * size.raw_bytes),
            }
    say(**results)


def check(batch: TrainBatch, expected: TrainBatch) -> None:
    """All ways must end in the same tensors. Raises ValueError."""
    for name in ("tokens", "token_offsets", "prompt_lengths", "action_mask", "logprobs"):
        if not torch.equal(getattr(batch, name), getattr(expected, name)):
            raise ValueError(f"{name} differ")


def describe(size: Size) -> str:
    """For the table."""
    return f"{size.tokens} tokens, {size.raw_bytes / 1000:.1f} KB"


if __name__ == "__main__":
    main()
