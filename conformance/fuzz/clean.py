"""Removes what was made on the way: clean.py SERVER CA HEADER"""

import sys

import requests

server, authority, header = sys.argv[1:]
name, _, value = header.partition(": ")
group = f"{server}/apis/dormouse.dev/v1alpha1"
session = requests.Session()
# The environment may name another authority.
session.trust_env = False
session.headers[name] = value
session.verify = authority
# Those first that would make others anew.
for kind in ["sandboxclaims", "sandboxpools", "sandboxes"]:
    listed = session.get(f"{group}/{kind}")
    listed.raise_for_status()
    for item in listed.json()["items"]:
        meta = item["metadata"]
        gone = session.delete(f"{group}/namespaces/{meta['namespace']}/{kind}/{meta['name']}")
        if gone.status_code not in (200, 202, 404):
            sys.exit(f"{kind}/{meta['name']} stays: {gone.text}")
