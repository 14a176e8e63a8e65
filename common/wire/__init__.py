"""Our types to protobuf messages and back: the one place, beside servicers and clients, that knows both."""
