"""Calls CRI by gRPC's C core: client.py TARGET [AUTHORITY]. A line for each call."""

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

RUNTIME = "/runtime.v1.RuntimeService/"
LIMIT = 20


def field(number, value):
    """A field of a message: a length and bytes."""
    length, prefix = len(value), bytes([number << 3 | 2])
    while length > 127:
        prefix += bytes([length & 127 | 128])
        length >>= 7
    return prefix + bytes([length]) + value


def call(channel, method, request=b"", metadata=()):
    try:
        answer = channel.unary_unary(RUNTIME + method)(
            request, timeout=LIMIT, metadata=metadata
        )
    except grpc.RpcError as error:
        return error.code().name
    return "docker" if b"docker" in answer else "answer"


target, *authority = sys.argv[1:]
options = [("grpc.default_authority", name) for name in authority]
with grpc.insecure_channel(target, options) as channel:
    # A stream that stays open all the time.
    events = channel.unary_stream(RUNTIME + "GetContainerEvents")(b"")
    for _ in range(3):
        print("Version", call(channel, "Version"))
    print("Status", call(channel, "Status", metadata=[("x-text", "v" * 8000)]))
    binary = [("x-data-bin", bytes(range(256)) * 20)]
    print("binary", call(channel, "Version", metadata=binary))
    # More than a frame of data: a filter by a label.
    label = field(1, b"a") + field(2, b"b" * 300_000)
    filter = field(1, field(4, label))
    print("data", call(channel, "ListContainers", filter))
    print("refused", call(channel, "ContainerStatus", field(1, b"none")))
    print("unknown", call(channel, "NoSuchMethod"))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: call(channel, "Version"), range(200)))
    print("at once", answers.count("docker"))
    events.cancel()
    # The interpreter freezes the stream's thread when it exits, perhaps while that has the lock that
    # the stream's destructor takes.
    del events
