"""The service: one server that owns the clusters, loses nothing, and answers every upload with one model."""
