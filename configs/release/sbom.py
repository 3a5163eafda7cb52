#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the programs and the modules that they are made of, as a bill of materials in CycloneDX 1.6: the same programs give the same bytes.

    sbom.py GO VERSION ARCH=FILE…

`go version -m` names the modules of each FILE, and the texts in the module cache give their licences. (cyclonedx-gomod 1.10 writes a document for each
program, takes 20 s for it, and needs the module proxy.)
"""
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse

OURS = "github.com/gpuslice/gpuslice"
# Words that only the text of that licence has.
LICENCES = {
    "Apache-2.0": r"Licensed under the Apache License, Version 2\.0|Apache License Version 2\.0, January 2004",
    "BSD-2-Clause": r"Redistributions in binary form must reproduce(?!.*(Neither the name|may not be used to endorse))",
    "BSD-3-Clause": r"Redistributions in binary form must reproduce.*(Neither the name|may not be used to endorse)",
    "ISC": r"Permission to use, copy, modify, and(/or)? distribute this software for any purpose",
    "MIT": r"Permission is hereby granted, free of charge, to any person obtaining a copy",
    "MPL-2.0": r"Mozilla Public License,? [Vv]ersion 2\.0",
}


def output(*words):
    return subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout


def url(path, version):
    return f"pkg:golang/{path}@{urllib.parse.quote(version)}"


def licences(directory):
    found = set()
    for path in glob.glob(glob.escape(directory) + "/*"):
        if re.match(r"(LICEN[CS]E|COPYING)", os.path.basename(path), re.IGNORECASE) and os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                text = " ".join(file.read().split())
            found |= {name for name, words in LICENCES.items() if re.search(words, text)}
    return sorted(found)


def licensed(component, names):
    if len(names) == 1:
        component["licenses"] = [{"license": {"id": names[0]}}]
    elif names:
        component["licenses"] = [{"expression": " AND ".join(names)}]
    else:
        print(f"sbom.py: the licence of {component['name']} is not known", file=sys.stderr)
    return component


def module(cache, path, version, checksum):
    reference = f"pkg:golang/{path}@{version}"
    escaped = re.sub("[A-Z]", lambda upper: "!" + upper[0].lower(), f"{path}@{version}")
    component = {"type": "library", "bom-ref": reference, "name": path, "version": version, "purl": url(path, version)}
    if checksum.startswith("h1:"):  # the sum that go.sum has: of all files, not of an archive
        component["properties"] = [{"name": "go.sum", "value": checksum}]
    return licensed(component, licences(os.path.join(cache, escaped)))


def digest(path):
    with open(path, "rb") as file:
        return [{"alg": "SHA-256", "content": hashlib.sha256(file.read()).hexdigest()}]


def main(go, version, *files):
    cache = output(go, "env", "GOMODCACHE").strip()
    modules, programs, depends = {}, [], {}
    for arch, path in sorted({tuple(word.split("=", 1)) for word in files}):
        name = os.path.basename(path)
        reference = f"{url(OURS, version)}?goarch={arch}#cmd/{name}"
        program = {"type": "application", "bom-ref": reference, "name": name, "version": version, "purl": reference,
                   "hashes": digest(path), "properties": [{"name": "GOARCH", "value": arch}]}
        if name.endswith(".so"):  # in C, and of nothing but the C library
            program["type"], program["bom-ref"] = "library", f"{name}?arch={arch}"
            del program["purl"]
            built = {"Deps": []}
        else:
            built = json.loads(output(go, "version", "-m", "-json", path))
        programs.append(licensed(program, ["Apache-2.0"]))
        needs = set()
        for found in built["Deps"]:
            found = found.get("Replace", found)
            if found["Path"].startswith("."):  # this repository itself
                continue
            component = module(cache, found["Path"], found["Version"], found.get("Sum", ""))
            needs.add(component["bom-ref"])
            modules[component["bom-ref"]] = component
        if "GoVersion" in built:
            standard = {"type": "library", "bom-ref": "pkg:golang/std@" + built["GoVersion"][2:], "name": "std", "version": built["GoVersion"][2:]}
            standard["purl"] = standard["bom-ref"]
            needs.add(standard["bom-ref"])
            modules[standard["bom-ref"]] = licensed(standard, ["BSD-3-Clause"])
        depends[program["bom-ref"]] = sorted(needs)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"])))
    whole = url(OURS, version)
    print(json.dumps({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"timestamp": created, "component": licensed(
            {"type": "application", "bom-ref": whole, "name": "gpuslice", "version": version, "purl": whole}, ["Apache-2.0"])},
        "components": programs + [modules[reference] for reference in sorted(modules)],
        "dependencies": [{"ref": whole, "dependsOn": sorted(depends)}] + [
            {"ref": reference, "dependsOn": needs} for reference, needs in sorted(depends.items())],
    }, indent=1))


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: sbom.py GO VERSION ARCH=FILE…")
    main(*sys.argv[1:])
