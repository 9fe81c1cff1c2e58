"""Messages of the service as bytes: what is written is read, and nothing else is."""

import random

import msgspec
import pytest
from tests.cases import for_each
from tests.random_examples import seeds

from penstock.service import protocol
from penstock.service.protocol import (
    Ask,
    Batch,
    Beat,
    Bye,
    End,
    Hello,
    Malformed,
    Ready,
    Refused,
    Want,
    Welcome,
    decode_from_client,
    decode_from_server,
    encode,
)  # fmt: skip

TOKEN = bytes(range(16))
CLIENT = [
    Ask(1, TOKEN, 0),
    Hello(TOKEN, 0, 3),
    Hello(TOKEN, 1, 3, 4, 6, 3, "abc", 7, b"{}", (1, 5)),
    Want(TOKEN, 1, 5, 15, 1 << 40, 0.25),
    Bye(TOKEN, 1),
]
SERVER = [
    Welcome(TOKEN, 0, "shard", "abc", 10),
    Ready(TOKEN, 1, (4, 5)),
    Refused(TOKEN, 0, "version", "no"),
    End(TOKEN, 0, 5, 10),
    Beat(TOKEN, 0, 3, 2),
]


@for_each("message", CLIENT)
def test_what_a_client_says_is_read(message):
    assert decode_from_client([encode(message)]) == message


@for_each("message", SERVER)
def test_what_a_server_says_is_read(message):
    assert decode_from_server([encode(message)]) == message


def test_only_a_batch_has_more_frames():
    batch = Batch(TOKEN, 0, 1, 2, b"state")
    assert decode_from_server([encode(batch), b"header", b""]) == batch
    for frames in ([], [encode(batch)], [encode(SERVER[0]), b"more"], [encode(batch)] * 2000):
        with pytest.raises(Malformed):
            decode_from_server(frames)
    with pytest.raises(Malformed, match="1 frame"):
        decode_from_client([encode(CLIENT[0]), b""])


@for_each(
    "plain",
    [
        [],
        [99, TOKEN],
        [4, b"short", 1],
        [4, TOKEN, -1],
        [4, TOKEN, 1 << 63],
        [4, TOKEN, "1"],
        [4, TOKEN, 1, "more"],
        [2, TOKEN, 0, 0, 0, 0],
        [2, TOKEN, 0, 0, 0, 1, 5000],
        [2, TOKEN, 0, 0, 0, 1, 1, "x" * 65],
        [2, TOKEN, 0, 0, 0, 1, 1, "", 0, b"", [-1]],
        *([3, TOKEN, 0, 0, 0, 0, waited_s] for waited_s in (-1.0, float("nan"), float("inf"))),
        {"session": TOKEN},
        17,
        None,
    ],
)
def test_anything_else_is_malformed(plain):
    with pytest.raises(Malformed):
        decode_from_client([msgspec.msgpack.encode(plain)])


def test_a_message_of_the_other_side_is_malformed():
    with pytest.raises(Malformed):
        decode_from_client([encode(SERVER[0])])
    with pytest.raises(Malformed):
        decode_from_server([encode(CLIENT[0])])


def test_a_long_head_is_not_decoded():
    with pytest.raises(Malformed, match="are accepted"):
        decode_from_client([bytes(protocol._HEAD_BYTES + 1)])


@for_each("seed", seeds(2))
@pytest.mark.fuzz
def test_mutated_frames_are_messages_or_malformed(seed):
    draw = random.Random(seed)
    malformed = 0
    for _ in range(1500):
        message = draw.choice([*CLIENT, *SERVER, Batch(TOKEN, 0, 1, 2, b"state")])
        frame = bytearray(encode(message))
        for _ in range(draw.choice((1, 1, 2, 6))):
            at = draw.randrange(len(frame))
            match draw.randrange(3):
                case 0:
                    frame[at] = draw.choice((0, 0x7F, 0xC1, 0xDD, 0xDF, 0xFF, draw.randrange(256)))
                case 1:
                    del frame[at : at + draw.randrange(1, 4)]
                    frame += b"\x00" * (not frame)
                case 2:
                    frame[at:at] = draw.randbytes(draw.randrange(1, 5))
        for decode in (decode_from_client, lambda frames: decode_from_server([*frames, b""])):
            try:
                decode([frame])
            except Malformed:
                malformed += 1
    assert malformed > 500
