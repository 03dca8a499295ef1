"""The line protocol of the drivers: one JSON request a line on standard input, one JSON answer a line on standard
output. The requests are those of test/interop/driver_test.go; bytes are base64, null is null."""

import base64
import json
import sys


class Cannot(Exception):
    """The client has no way to do what is asked."""


def encode(b):
    return None if b is None else base64.b64encode(b).decode()


def decode(s):
    return None if s is None else base64.b64decode(s)


def headers(record):
    """A record's headers to send, as most clients take them."""
    return [(h["name"], decode(h["value"])) for h in record.get("headers") or []]


def plain(partition, offset, timestamp, key, value, headers):
    """A record that was read."""
    return {
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
        "key": encode(key),
        "value": encode(value),
        "headers": [{"name": n, "value": encode(v)} for n, v in headers or []],
    }


def serve(produce, consume, group, admin, member):
    """Answers requests with these functions until there are no more. member starts a member of a group, which has
    the methods records and leave."""
    members = {}

    def join(request):
        members[request["member"]] = member(request)
        return {}

    ops = {
        "produce": produce,
        "consume": consume,
        "group": group,
        "admin": lambda r: {"admin": admin(r)},
        "join": join,
        "records": lambda r: members[r["member"]].records(),
        "leave": lambda r: members.pop(r["member"]).leave(),
    }
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = ops[request["op"]](request)
        except Cannot as e:
            answer = {"error": str(e), "cannot": True}
        except Exception as e:
            answer = {"error": "%s: %s" % (type(e).__name__, e)}
        print(json.dumps(answer), flush=True)
