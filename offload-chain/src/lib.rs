//! Group primitives over pre-posted work queues, executed by the endpoint (see the design notes of the workspace).
