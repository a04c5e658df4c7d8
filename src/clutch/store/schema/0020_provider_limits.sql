-- What all gateways of a database share of one model provider: what its refusals taught, its circuit breaker, and which
-- worker holds how many slots of its limit. `state` is JSON (core/provider_limits.py).
CREATE TABLE provider_limits(name {text} PRIMARY KEY, state {text} NOT NULL){without_rowid};
