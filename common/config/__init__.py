"""The configuration: one pydantic model a section, validated at the edge, trusted past it."""
