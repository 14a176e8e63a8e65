"""The wire contract: protos and the code generated from them (see `protos.generate`)."""
