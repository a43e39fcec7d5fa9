"""Small fake of Google Cloud Storage for tests: real HTTP on 127.0.0.1, with injected faults.

    objects.py   buckets and objects, generations, preconditions; no HTTP, no clock of its own
    faults.py    injected faults: which requests, how often
    journal.py   requests, and Google's bill for them
    api.py       the JSON API over `objects`
    xml_api.py   the XML API over `objects`
    uploads.py   media, multipart and resumable uploads
    partial.py   the `fields` parameter
    server.py    the HTTP server in a thread of the test: `FakeGcs`
    control.py   client of a fake in another process, which `python -m fake_gcs` starts

A *door* is one more port of the same service. With a door for each client, a fault can cut off one of them.

Assumptions about the real service (from its documentation and the gcsfs sources, not verified against it):

- Reads, listings and overwrites are strongly consistent.
- A generation is greater than every earlier one of the same name, also across a delete, and looks like a time in
  microseconds. `metageneration` starts at 1.
- `ifGenerationMatch=0` means "if absent". An upload to a missing object with another generation answers 412; so does a
  read; a delete of a missing object answers 404. `ifGenerationNotMatch` with the current one answers 304 on a
  read and 412 on a change.
- A missing bucket answers 404 on everything. A read of another generation than the current one answers 404 (no
  versioning, and soft-deleted objects cannot be read).
- The rate limit of one name answers 429 before preconditions are checked; deletes count as changes; it is one
  change per second, without a burst.
- Every answer carries `Date` in whole seconds, the errors too. `updated` has milliseconds.
- A wrong `md5Hash` or `crc32c` in an upload's metadata answers 400, and nothing is stored.
- A listing gives at most 1,000 entries a page, sorted by UTF-8 bytes.
- Resumable: 308 with `Range` while incomplete, parts of 256 KiB except the last, `bytes */N` asks for the state; a
  session is not bound to a process; preconditions are judged when the upload is finished.
- XML: a write of an object that has not the generation named answers 412, as in JSON; an upload in parts has no
  preconditions, its object no MD5, and an ETag of another kind. A missing bucket is `NoSuchBucket`.
- Class A: insert, parts of an XML upload and its end, copy, patch, compose, list, making a bucket. Class B: reads of data or metadata, failed ones too.
  Free: deletes; parts of a resumable upload after its start.
- Missing: authentication (every caller is allowed), batch requests, ACLs, versioning, moveTo (gcsfs then copies and
  deletes), customer keys.
"""

from fake_gcs.control import Remote
from fake_gcs.faults import Fault
from fake_gcs.server import FakeGcs

__all__ = ["FakeGcs", "Fault", "Remote"]
