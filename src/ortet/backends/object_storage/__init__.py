"""The Bucket on S3, Google Cloud Storage and Azure, with an optional upload queue.

Start with `bucket.S3Bucket`. Then:

- `url`: parses bucket URLs and opens the client library (obstore).
- `retry`: classifies failures, and retries those that may be temporary.
- `upload_queue`: stores objects on the local disk first and uploads them in the background.
- `pending_uploads`: tells other hosts which hosts have not uploaded everything.

Main invariants:

- The server itself refuses to overwrite an object (If-None-Match), however many hosts write.
- A put whose answer was lost is checked by comparing the stored object.
- A host announces pending uploads before other hosts can learn of the objects.
- No URL and no error message contains credentials.

This package may import the top-level modules of `backends`, `backends.local`, `_util`, `ids` and
`errors`. obstore is an optional dependency.
"""
