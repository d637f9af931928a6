//! The protocol between host and agent.
