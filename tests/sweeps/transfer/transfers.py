"""What tests of shared ends and of shared trunks have in common."""

from __future__ import annotations

import logging
import uuid

import pytest
from fake_gcs import FakeGcs
from s3_server import Doors

from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.objects.store import ObjectStore
from sweeps.storage.retries import RetryPolicy


def bucket(gcs: FakeGcs) -> GcsStore:
    """Return a store of its own in the fake bucket, which gives up within a second."""
    quick = RetryPolicy(total_s=1.0, attempt_s=0.5, first_wait_s=0.02, longest_wait_s=0.1)
    return GcsStore(f"gs://bucket/shared/{uuid.uuid4().hex}", endpoint=gcs.url, retries=quick)


def s3_bucket(doors: Doors) -> ObjectStore:
    """Return a store of its own in the S3 server, which gives up within seconds."""
    quick = RetryPolicy(total_s=10.0, attempt_s=3.0, first_wait_s=0.02, longest_wait_s=0.1)
    return ObjectStore(f"s3://bucket/shared/{uuid.uuid4().hex}", endpoint=doors.door("a"), retries=quick)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING]
