"""The sync schedule: pure state machines, driven by the services, the simulator and the property tests alike."""
