//! CRI v1 on top of a Docker engine.
