# SPDX-License-Identifier: Apache-2.0
"""What test/vulnerabilities.sh does with JSON.

    vulnerabilities.py --index ENTRIES DB     write the index of a database, and link its entries
    vulnerabilities.py ACCEPTED FOUND SEEN    fail if govulncheck's output FOUND has a call that ACCEPTED does not name

The database's layout: go.dev/doc/security/vuln/database. The output's: pkg.go.dev/golang.org/x/vuln/internal/govulncheck.
"""
import json
import os
import sys


def index(source, target):
    modules, newest = {}, ""
    for name in os.listdir(source):
        with open(os.path.join(source, name)) as f:
            entry = json.load(f)
        newest = max(newest, entry["modified"])
        for affected in entry.get("affected", []):
            modules.setdefault(affected["package"]["name"], {})[entry["id"]] = entry["modified"]
    if len(modules) < 1000:
        sys.exit(f"the vulnerability database names only {len(modules)} modules: has its layout changed?")
    os.mkdir(target + "/index")
    os.symlink(source, target + "/ID")
    with open(target + "/index/db.json", "w") as f:
        json.dump({"modified": newest}, f)
    with open(target + "/index/modules.json", "w") as f:
        json.dump([{"path": path, "vulns": [{"id": i, "modified": m} for i, m in ids.items()]} for path, ids in modules.items()], f)


def messages(path):
    """The values of a file that has one JSON value after the other."""
    with open(path) as f:
        text = f.read()
    at, decoder = 0, json.JSONDecoder()
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        yield value
        while at < len(text) and text[at].isspace():
            at += 1


def check(accepted, found, seen):
    with open(accepted) as f:
        names = {line.split()[0] for line in f if line.startswith("GO-")}
    called, summaries, complete = {}, {}, False
    for message in messages(found):
        if "config" in message:
            complete = True
        if "osv" in message:
            summaries[message["osv"]["id"]] = message["osv"].get("summary", "")
        finding = message.get("finding")
        if finding and finding["trace"][0].get("function"):
            called[finding["osv"]] = finding
    if not complete:
        sys.exit("govulncheck printed no result")
    with open(seen, "a") as f:
        f.writelines(name + "\n" for name in called)
    wrong = sorted(set(called) - names)
    for name in wrong:
        finding = called[name]
        first = finding["trace"][0]
        print(f"{name}: {summaries.get(name)}: {first['module']} {first.get('version', '')} (fixed in {finding.get('fixed_version') or 'no version'})")
    if wrong:
        sys.exit(1)


if sys.argv[1] == "--index":
    index(*sys.argv[2:])
else:
    check(*sys.argv[1:])
