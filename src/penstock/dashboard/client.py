"""What a loader shows, asked from another process of the same user."""

from __future__ import annotations

import http.client
import json
from typing import Any

from penstock.dashboard.notices import Notice

_PATIENCE_S = 5.0


def look(notice: Notice) -> dict[str, Any] | None:
    """What the loader of `notice` shows now; None if it has ended or does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", notice.port, timeout=_PATIENCE_S)
    try:
        connection.request("GET", "/stats.json", headers={"Authorization": f"Bearer {notice.token}"})
        answer = connection.getresponse()
        body = answer.read()
        shown = json.loads(body) if answer.status == 200 else None
        return shown if isinstance(shown, dict) else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
