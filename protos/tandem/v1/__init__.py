"""`tandem.v1`: experiences, weights, and the two services."""
