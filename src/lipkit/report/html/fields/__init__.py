"""Pages of fields: detectors of anomalies and surfaces."""
