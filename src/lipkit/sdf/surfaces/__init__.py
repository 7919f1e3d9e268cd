"""Networks trained to be the signed distance of a surface."""
