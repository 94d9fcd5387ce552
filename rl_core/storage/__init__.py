"""An object store (S3, GCS, Azure) that a local folder is mirrored to, and brought down from."""
