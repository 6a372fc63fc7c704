"""The version of the contract between processes; devices whose versions differ don't train together."""

PROTOCOL_VERSION = 8
