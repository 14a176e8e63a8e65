"""gRPC as both services use it: channel and server options, error mapping, health, reflection, channelz."""
