"""A plugin on gRPC's C core: plugin.py SOCKET. Writes what the kubelet tells it."""

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc


def get_info(request, context):
    return b"\x0a\x06Python\x12\x0bpython.test\x22\x051.0.0"


def notified(request, context):
    print(request.decode(errors="replace"), flush=True)
    return b""


handlers = {
    "GetInfo": grpc.unary_unary_rpc_method_handler(get_info),
    "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(notified),
}
service = grpc.method_handlers_generic_handler("pluginregistration.Registration", handlers)
server = grpc.server(ThreadPoolExecutor(2), handlers=[service])
server.add_insecure_port("unix:" + sys.argv[1])
server.start()
server.wait_for_termination()
