"""What nodes that pool their knowledge can compute: exact audits from graphs, selections and transcripts."""

from cesar.audit.exchange import Exchange
from cesar.audit.exposure import Audit, Finding, audit

__all__ = ["Audit", "Exchange", "Finding", "audit"]
